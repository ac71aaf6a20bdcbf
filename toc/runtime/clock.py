"""Clocks, passed in as objects. This is the only module that reads the system's clocks.

Deadlines inside a process use `monotonic_s`; decisions use the *servers'* time (Redis' TIME, the
database's UTC_TIMESTAMP). `wall_ms`, this machine's clock, serves ids and logs, never decisions. With a test
clock, scripts and statements use `time_for_servers_ms` in place of their server's time.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

# Where the system has it, this clock runs on while the machine is suspended: a worker that was suspended
# beyond its lease must know that the lease is over (I3, I5). CLOCK_MONOTONIC stands still meanwhile.
_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def wall_ms(self) -> int:
        """This machine's time, in milliseconds since 1970."""

    def monotonic_s(self) -> float:
        """Seconds of a clock that never goes back; only differences have a meaning."""

    def sleep_s(self, seconds: float) -> None:
        """Waits `seconds`. Only for short pauses inside a call; services wait in their loop."""

    def time_for_servers_ms(self) -> int | None:
        """In tests: the time that servers must use in place of their own clocks, in ms since 1970.

        None: servers use their own clocks.
        """


class SystemClock:
    """The clocks of the machine."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.clock_gettime(_CLOCK_ID)

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)

    def time_for_servers_ms(self) -> int | None:
        return None


# A server rounds its time down to a millisecond, and `ServerTimeEstimate.estimate_now_ms` rounds down again.
CUT_MS = 2


class ServerTimeEstimate:
    """Estimates a server's time: its last answer plus the time passed by the monotonic clock.

    Each answer with a server's time is recorded here. Between answers the estimate is behind by at most a
    round trip and the drift of this machine's oscillator (or ahead by as much, see `record_server_time`).
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._server_ms = 0
        self._at_s = 0.0
        self._wall_ms = 0
        self.known = False

    def record_server_time(self, server_ms: int, asked_s: float | None = None) -> None:
        """Records the time that a server just returned.

        `asked_s`: the monotonic time before it was asked. With it the estimate is never behind the server's
        time, because the server read its clock, cut to milliseconds, after `asked_s`.
        """
        with self._lock:
            self._server_ms, self._at_s = server_ms, self._clock.monotonic_s()
            self._wall_ms = self._clock.wall_ms()
            if asked_s is not None:
                self._server_ms, self._at_s = server_ms + CUT_MS, asked_s
            self.known = True

    @property
    def server_answer_age_s(self) -> float:
        """Seconds since the server's last answer."""
        return self._clock.monotonic_s() - self._at_s

    @property
    def machine_pause_s(self) -> float:
        """Seconds that this machine's wall clock has gained on its monotonic clock since the last answer.

        While a machine is paused as a whole, its monotonic clock may stand still.
        """
        return (self._clock.wall_ms() - self._wall_ms) / 1000 - self.server_answer_age_s

    def estimate_now_ms(self) -> int:
        for_servers_ms = self._clock.time_for_servers_ms()
        if for_servers_ms is not None:
            return for_servers_ms
        with self._lock:
            return self._server_ms + int((self._clock.monotonic_s() - self._at_s) * 1000)
