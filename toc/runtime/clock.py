"""Time, passed in. The only place that reads a clock.

Two kinds: `monotonic_s` for deadlines inside a process, and *servers'* time for truth (Redis' TIME,
the database's UTC_TIMESTAMP). `wall_ms` is this machine's own opinion: good for ids and for logs,
never for a decision. A clock for tests answers `frozen_ms`: then scripts and statements take that
time instead of their server's.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

# Counts on while the machine is suspended, where the system has it: a worker that slept through its
# lease must know that the lease is over (I3, I5). CLOCK_MONOTONIC stands still then.
_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def wall_ms(self) -> int:
        """This machine's time, in milliseconds since 1970."""

    def monotonic_s(self) -> float:
        """Seconds that never go back; only differences mean something."""

    def sleep_s(self, seconds: float) -> None:
        """Waits. For short pauses inside a call; services wait in their loop."""

    def frozen_ms(self) -> int | None:
        """None: servers use their own time. Else the time that they must use (tests only)."""


class SystemClock:
    """The clocks of the machine."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.clock_gettime(_CLOCK_ID)

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)

    def frozen_ms(self) -> int | None:
        return None


class ServerTime:
    """A server's time, carried on from its last answer by the monotonic clock.

    Each answer that brings a server's time comes here; between answers the estimate is late by at
    most half a round trip and the drift of this machine's oscillator.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._server_ms = 0
        self._at_s = 0.0
        self.known = False

    def heard(self, server_ms: int) -> None:
        """Takes in what a server just said."""
        with self._lock:
            self._server_ms, self._at_s = server_ms, self._clock.monotonic_s()
            self.known = True

    @property
    def age_s(self) -> float:
        """Seconds since the last answer."""
        return self._clock.monotonic_s() - self._at_s

    def now_ms(self) -> int:
        frozen = self._clock.frozen_ms()
        if frozen is not None:
            return frozen
        with self._lock:
            return self._server_ms + int((self._clock.monotonic_s() - self._at_s) * 1000)
