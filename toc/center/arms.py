"""Placing jobs after their commit: near ones are armed, far ones are the loader's."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from toc.domain.ids import gene_of
from toc.domain.routing import slot_of
from toc.errors import TimerUnavailable
from toc.runtime import metrics
from toc.runtime.clock import Clock, ServerTime
from toc.runtime.service import Service
from toc.timer.slots import Entry, Slots

log = logging.getLogger(__name__)

AGAIN_S_MIN, AGAIN_S_MAX = 0.2, 5.0
BATCH = 1000


class Arms(Service):
    """Arms near jobs in line; what fails is kept (up to `kept_max`) and tried again behind the scenes.

    After a failure, calls do not wait for Redis until a retry has succeeded: they queue at once.
    """

    def __init__(
        self,
        slots: Slots,
        slots_of: Callable[[str], int],
        time: ServerTime,
        clock: Clock,
        *,
        near_ms: int,
        kept_max: int,
    ) -> None:
        super().__init__("toc-rearm")
        self._slots, self._slots_of, self._time, self._clock = slots, slots_of, time, clock
        self._near_ms, self._kept_max = near_ms, kept_max
        self._kept: deque[tuple[str, Entry]] = deque()
        self._down = False
        self._again_s = AGAIN_S_MIN

    def place(self, jobs: Sequence[tuple[str, Entry]]) -> None:
        """Arms the near ones of (topic, entry). Only after the jobs' commit. Never raises."""
        until_ms = self._time.now_ms() + self._near_ms
        near = [job for job in jobs if job[1].due_ms is not None and job[1].due_ms <= until_ms]
        if not near:
            return
        if not self._down:
            try:
                self._arm(near)
                return
            except TimerUnavailable as error:
                log.warning("reminders are kept for a retry: %s", error)
            except Exception:
                # The job is committed: whatever Redis says, the call must not fail now.
                log.exception("reminders are kept for a retry")
        self._keep(near)

    def run_once(self) -> float:
        """Tries kept reminders again. Returns the seconds until the next try."""
        if not self._kept:
            self._down = False
            return 3600.0  # woken when there is something
        batch = [self._kept[position] for position in range(min(BATCH, len(self._kept)))]
        try:
            self._arm(batch)
        except Exception as error:
            if not isinstance(error, TimerUnavailable):
                log.exception("reminders cannot be armed")
            self._again_s = min(self._again_s * 2, AGAIN_S_MAX)
            return self._again_s
        self._again_s = AGAIN_S_MIN
        for _ in batch:
            self._kept.popleft()
        return 0

    def _arm(self, jobs: Sequence[tuple[str, Entry]]) -> None:
        by_topic: dict[str, dict[int, list[Entry]]] = defaultdict(lambda: defaultdict(list))
        for topic, entry in jobs:
            by_topic[topic][slot_of(gene_of(entry.job_id), self._slots_of(topic))].append(entry)
        for topic, entries in by_topic.items():
            self._time.heard(self._slots.arm(topic, entries))

    def _keep(self, jobs: Sequence[tuple[str, Entry]]) -> None:
        metrics.ARMS_FAILED.inc(len(jobs))
        self._down = True
        for job in jobs:
            if len(self._kept) >= self._kept_max:
                metrics.ARMS_DROPPED.inc()  # the loader and the scanner know it from the database
            else:
                self._kept.append(job)
        self.start()
        self.wake()
