"""Updates Redis after a bulk change."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from toc.center.reminder_queue import ReminderQueue
from toc.errors import TimerUnavailable
from toc.runtime.clock import Clock, ServerTime
from toc.runtime.settings import Settings
from toc.store.bulk_update import ChangedJob
from toc.timer.reminder import Reminder

log = logging.getLogger(__name__)

REDIS_RETRY_S = 5.0  # after no answer, Redis is not tried again sooner
STOP_S = 5.0


class ReminderUpdates:
    """Updates reminders after a commit. Never raises: the claim reads the row, which is right."""

    def __init__(self, settings: Settings, clock: Clock, time: ServerTime) -> None:
        self._settings, self._clock = settings, clock
        self._reminder_queue = ReminderQueue(settings, time, clock)
        self._retry_at_s = float("-inf")  # no try before this time, by the monotonic clock

    def send(self, moved: Sequence[ChangedJob], names: Mapping[int, str]) -> None:
        """Acks the reminders of ended jobs and arms jobs that are due soon. `names`: the biz_types by
        number.
        """
        ended: dict[str, list[int]] = defaultdict(list)
        live: list[tuple[str, Reminder]] = []
        for job_id, type_no, due_ms in moved:
            if type_no not in names:  # no worker takes a job of such a type
                continue
            topic = self._settings.topic_of(names[type_no])
            if due_ms is None:
                ended[topic].append(job_id)
            else:
                live.append((topic, Reminder(due_ms, job_id)))
        self._reminder_queue.place(live)
        for topic, ids in ended.items():
            if self._clock.monotonic_s() >= self._retry_at_s:
                self._ack_ended(topic, ids)

    def _ack_ended(self, topic: str, ids: Sequence[int]) -> None:
        try:
            self._reminder_queue.reminders.ack(topic, ids)
            return
        except TimerUnavailable as error:
            log.warning("reminders of ended jobs stay until they are popped: %s", error)
        except Exception:
            log.exception("reminders of ended jobs stay until they are popped")
        self._retry_at_s = self._clock.monotonic_s() + REDIS_RETRY_S

    def close(self) -> None:
        self._reminder_queue.close(STOP_S)
