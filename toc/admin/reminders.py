"""What Redis is told of the jobs that a person has changed."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence

from toc.center.arms import Arms
from toc.domain.ids import gene_of
from toc.domain.routing import slot_of
from toc.errors import TimerUnavailable
from toc.runtime.clock import Clock, ServerTime
from toc.runtime.settings import Settings
from toc.store.sets import Moved
from toc.timer.slots import Entry, Slots

log = logging.getLogger(__name__)

AGAIN_S = 5.0  # a Redis that did not answer is not waited for at every page
STOP_S = 5.0


class Reminders:
    """What Redis is told after a commit. Never raises: the row has the truth, and the claim reads it."""

    def __init__(self, settings: Settings, clock: Clock, time: ServerTime) -> None:
        self._settings, self._clock = settings, clock
        self._slots = Slots(
            settings.redis_url, settings.namespace, clock, timeout_s=settings.connect_timeout_s
        )
        near_s = settings.timer.horizon_s + settings.timer.slack_s
        self._arms = Arms(
            self._slots,
            settings.slots_of,
            time,
            clock,
            near_ms=round(near_s * 1000),
            kept_max=settings.timer.arm_retries_max,
        )
        self._again_s = float("-inf")  # not before, by the monotonic clock

    def tell(self, moved: Sequence[Moved], names: Mapping[int, str]) -> None:
        """Forgets what has ended and arms what is due soon. `names`: the biz_types by number."""
        ended: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        live: list[tuple[str, Entry]] = []
        for job_id, type_no, due_ms in moved:
            if type_no not in names:  # no worker takes it either
                continue
            topic = self._settings.topic_of(names[type_no])
            if due_ms is None:
                slot = slot_of(gene_of(job_id), self._settings.slots_of(topic))
                ended[topic][slot].append(job_id)
            else:
                live.append((topic, Entry(due_ms, job_id)))
        self._arms.place(live)
        for topic, ids in ended.items():
            if self._clock.monotonic_s() >= self._again_s:
                self._forget(topic, ids)

    def _forget(self, topic: str, ids: Mapping[int, Sequence[int]]) -> None:
        try:
            self._slots.ack(topic, ids)
            return
        except TimerUnavailable as error:
            log.warning("reminders of ended jobs stay until they are popped: %s", error)
        except Exception:
            log.exception("reminders of ended jobs stay until they are popped")
        self._again_s = self._clock.monotonic_s() + AGAIN_S

    def close(self) -> None:
        self._arms.stop(STOP_S)
        self._slots.close()
