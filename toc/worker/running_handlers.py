"""Which handlers run at this moment, and which of them run beyond their timeout (are stuck)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.worker.run import Run

log = logging.getLogger(__name__)


class RunningHandlers:
    """Thread-safe. A key is a thread or a task; it runs one handler at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By key: the run, and since when by the monotonic clock.
        self._running: dict[int, tuple[Run, float]] = {}
        self._stuck: set[int] = set()

    def begin(self, key: int, run: Run, allowance_s: float = 0.0) -> None:
        """Records a start. `allowance_s`: this much more than its timeout makes it stuck."""
        self._running[key] = (run, self._clock.monotonic_s() + allowance_s)

    def end(self, key: int) -> bool:
        """Records that a handler has ended; True: it was stuck."""
        with self._lock:
            del self._running[key]
            stuck = key in self._stuck
            if stuck:
                self._stuck.discard(key)
                metrics.HANDLERS_STUCK.set(len(self._stuck))
            return stuck

    def is_running(self, key: int | None) -> bool:
        return key in self._running

    def find_stuck(self) -> Iterator[tuple[Run, int]]:
        """Handlers that have become stuck since the last call, and how many are stuck with each."""
        now_s = self._clock.monotonic_s()
        for key, (run, since_s) in list(self._running.items()):
            if key in self._stuck or now_s - since_s <= run.spec.timeout_s:
                continue
            log.warning(
                "handler of %s runs beyond its timeout of %g s (job %d): its thread is counted as stuck",
                run.job.biz_type, run.spec.timeout_s, run.job.job_id,
            )  # fmt: skip
            with self._lock:
                if key not in self._running:
                    continue  # it ended just now
                self._stuck.add(key)
                count = len(self._stuck)
                metrics.HANDLERS_STUCK.set(count)
            yield run, count

    @property
    def stuck(self) -> int:
        with self._lock:  # so that it always equals the metric
            return len(self._stuck)

    @property
    def stuck_jobs(self) -> set[int]:
        """The ids of jobs whose handlers are stuck."""
        with self._lock:
            return {self._running[key][0].job.job_id for key in self._stuck}
