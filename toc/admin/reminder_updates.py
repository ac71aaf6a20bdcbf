"""Updates Redis after a bulk change."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from toc.center.reminder_queue import ReminderQueue
from toc.domain.ids import gene_of
from toc.domain.routing import slot_of
from toc.errors import TimerUnavailable
from toc.runtime.clock import Clock, ServerTime
from toc.runtime.settings import Settings
from toc.store.bulk_update import ChangedJob
from toc.timer.slots import Entry, Slots

log = logging.getLogger(__name__)

REDIS_RETRY_S = 5.0  # after no answer, Redis is not tried again sooner
STOP_S = 5.0


class ReminderUpdates:
    """Updates reminders after a commit. Never raises: the claim reads the row, which is right."""

    def __init__(self, settings: Settings, clock: Clock, time: ServerTime) -> None:
        self._settings, self._clock = settings, clock
        self._slots = Slots(
            settings.redis_url, settings.namespace, clock, timeout_s=settings.connect_timeout_s
        )
        near_s = settings.timer.horizon_s + settings.timer.slack_s
        self._reminder_queue = ReminderQueue(
            lambda: self._slots,
            settings.slots_of,
            time,
            clock,
            near_ms=round(near_s * 1000),
            kept_max=settings.timer.arm_retries_max,
        )
        self._retry_at_s = float("-inf")  # no try before this time, by the monotonic clock

    def send(self, moved: Sequence[ChangedJob], names: Mapping[int, str]) -> None:
        """Acks the reminders of ended jobs and arms jobs that are due soon. `names`: the biz_types by
        number.
        """
        ended: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        live: list[tuple[str, Entry]] = []
        for job_id, type_no, due_ms in moved:
            if type_no not in names:  # no worker takes a job of such a type
                continue
            topic = self._settings.topic_of(names[type_no])
            if due_ms is None:
                slot = slot_of(gene_of(job_id), self._settings.slots_of(topic))
                ended[topic][slot].append(job_id)
            else:
                live.append((topic, Entry(due_ms, job_id)))
        self._reminder_queue.place(live)
        for topic, ids in ended.items():
            if self._clock.monotonic_s() >= self._retry_at_s:
                self._ack_ended(topic, ids)

    def _ack_ended(self, topic: str, ids: Mapping[int, Sequence[int]]) -> None:
        try:
            self._slots.ack(topic, ids)
            return
        except TimerUnavailable as error:
            log.warning("reminders of ended jobs stay until they are popped: %s", error)
        except Exception:
            log.exception("reminders of ended jobs stay until they are popped")
        self._retry_at_s = self._clock.monotonic_s() + REDIS_RETRY_S

    def close(self) -> None:
        self._reminder_queue.stop(STOP_S)
        self._slots.close()
