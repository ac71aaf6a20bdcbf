"""The adaptive limit of the jobs in flight (I8, ADR 5): a worker claims no more than it can start soon.

The limit doubles while all claimed jobs start at once, and halves when jobs wait for a thread or when the
limit was not reached for a while.
"""

from __future__ import annotations

from toc.runtime.clock import Clock

KEEP_LIMIT_S = 5.0  # a limit that was not reached for so long is halved


class AdaptiveLimiter:
    """Not thread-safe: `Permits` calls it under a lock. `limit_min`: the first limit, and the smallest."""

    def __init__(self, clock: Clock, *, limit_min: int, limit_max: int) -> None:
        self._clock = clock
        self._limit_min, self._limit_max = min(limit_min, limit_max), limit_max
        self.limit = self._limit_min
        self.was_reached = False
        self._reached_s = clock.monotonic_s()

    def adapt(self, waiting: int) -> None:
        """Doubles or halves the limit. `waiting`: claimed jobs without a thread."""
        now_s = self._clock.monotonic_s()
        if self.was_reached and waiting == 0:
            self.was_reached = False
            self._reached_s = now_s
            self.limit = min(self._limit_max, self.limit * 2)
        elif now_s - self._reached_s > KEEP_LIMIT_S:
            self._reached_s = now_s
            self.halve()

    def halve(self) -> None:
        self.limit = max(self._limit_min, self.limit // 2)
