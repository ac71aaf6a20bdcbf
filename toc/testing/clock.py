"""A clock for tests. Statements and scripts use this clock's time in place of their server's."""

from __future__ import annotations

import math
import threading
from datetime import UTC, datetime, timedelta

from toc.domain.times import EPOCH, ceil_ms, datetime_of
from toc.errors import InvalidInput

START = datetime(2026, 1, 1, tzinfo=UTC)
# MySQL's session clock ends in 2038; ids begin in 2024.
FIRST, LAST = datetime(2024, 1, 2, tzinfo=UTC), datetime(2037, 12, 31, tzinfo=UTC)
_BREATH_S = 0.001


class TestClock:
    """Stands still until `advance` moves it; thread-safe. Implements `toc.runtime.clock.Clock`.

    `start`: an aware datetime from 2024 to 2037 (default 2026-01-01 UTC). One clock may serve
    clients, nodes and whatever else a test has in this process: all of them, and their databases
    and Redis, then agree on the time. `sleep_s` moves the clock too: so nothing waits for ever.
    """

    __test__ = False  # pytest: this is no test class

    def __init__(self, start: datetime = START) -> None:
        if start.tzinfo is None or not FIRST <= start <= LAST:
            rule = f"must be an aware datetime, {FIRST:%Y} to {LAST:%Y}"
            raise InvalidInput("start", start, rule)
        self._lock = threading.Lock()
        self._start_ms = self._ms = ceil_ms(start - EPOCH)
        self._pause = threading.Event()  # never set: a wait for this event is a sleep

    def advance(self, by: timedelta | float) -> datetime:
        """Moves the clock on by a timedelta or by seconds, rounded up to milliseconds.

        Returns the new time. Raises InvalidInput for a step back.
        """
        step_ms = ceil_ms(by) if isinstance(by, timedelta) else math.ceil(round(by * 1000, 6))
        if step_ms < 0:
            raise InvalidInput("by", by, "must not be negative: toc's clocks never go back")
        with self._lock:
            self._ms += step_ms
            return datetime_of(self._ms)

    @property
    def now(self) -> datetime:
        """The time of this clock, as an aware UTC datetime."""
        return datetime_of(self._ms)

    def wall_ms(self) -> int:
        return self._ms

    def monotonic_s(self) -> float:
        return (self._ms - self._start_ms) / 1000

    def sleep_s(self, seconds: float) -> None:
        self.advance(max(0.0, seconds))
        # The caller usually waits for other threads: this short real pause lets them run.
        self._pause.wait(_BREATH_S)

    def time_for_servers_ms(self) -> int | None:
        return self._ms
