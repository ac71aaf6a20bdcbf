"""Follows the clock of one database, and bounds the times that this process believes.

A database's clock decides when jobs are due and when leases end. It may step: NTP sets it, or the
database fails over to a host whose clock is wrong. A step must neither start jobs early nor end valid
leases. So a process expects the database's last time plus the time that has passed in this process since
then, with a tolerance of `STEP_MS_MAX` (for leases without it). The expected time bounds statements that
start or take over jobs (`statement_bounds`), so that even the first statement after a step does no harm.
A process does not follow a measurement outside the tolerance: the clock has *stepped*, until the clock
is back, or until a comparison with other servers' clocks shows that the clock is right
(`trust_last_measurement`).
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from toc.domain.times import MS_MAX
from toc.runtime.clock import Clock

STEP_MS_MAX = 1000
"""A step of at most so much between two measurements is followed at once."""
DRIFT_PER_S_MS = 0.2
"""How much two clocks may drift apart in a second (200 ppm)."""


class ClockOffset(NamedTuple):
    """A server's time minus this process' monotonic time: between `low_ms` and `high_ms`.

    The server read its clock at some moment between question and answer: the slower the answer, the wider.
    """

    low_ms: float
    high_ms: float

    @classmethod
    def from_answer(cls, server_ms: int, asked_s: float, answered_s: float) -> ClockOffset:
        """Made from one answer. `asked_s`, `answered_s`: this process' monotonic time before and after."""
        return cls(server_ms - answered_s * 1000, server_ms - asked_s * 1000)

    @property
    def middle_ms(self) -> float:
        return (self.low_ms + self.high_ms) / 2

    def ms_later_than(self, other: ClockOffset) -> float:
        """The gap to the other offset in ms: positive when this one is later; 0 when they overlap."""
        if self.low_ms > other.high_ms:
            return self.low_ms - other.high_ms
        return min(0.0, self.high_ms - other.low_ms)


class TimeBounds(NamedTuple):
    """Bounds for a statement that is sent now, in milliseconds since 1970.

    due_ms: jobs due later are not started, whatever the database's clock says. lease_ms: a lease that ends
    later is still valid. from_ms: a new lease counts from no earlier time.
    """

    due_ms: int
    lease_ms: int
    from_ms: int


NO_BOUNDS = TimeBounds(MS_MAX, MS_MAX, 0)
NOTHING_IS_DUE = TimeBounds(0, 0, 0)


class ServerClock:
    """Follows one database's clock. One thread records measurements; any thread may read.

    In a process that measures nothing (clients, commands), statements have no bounds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._watched = False
        self._hold_s = 0.0
        self._believed: ClockOffset | None = None
        self._believed_s = 0.0  # when the believed offset was last confirmed
        self._seen: ClockOffset | None = None  # the last measurement
        # This machine's wall clock minus its monotonic clock, at the last measurement.
        self._wall_ms = 0.0
        # Recent lower values of high_ms, and when each was last in force.
        self._lows: list[tuple[float, float]] = []
        self.stepped_s = 0.0
        """How far the clock has stepped, in seconds: ahead, or (negative) back. 0: it is believed."""

    def start_following(self, hold_s: float) -> None:
        """From now on measurements count; before the first measurement no job is due.

        `hold_s`: the longest lease. For so long after an adopted step ahead, older leases stay valid.
        """
        self._watched, self._hold_s = True, hold_s

    @property
    def last_measurement(self) -> ClockOffset | None:
        """The last measured offset; None: nothing was measured yet."""
        return self._seen

    def record_offset(self, span: ClockOffset) -> None:
        """Records a measurement, and follows it unless the clock has stepped."""
        with self._lock:
            self._seen, self._wall_ms = span, self._wall_minus_monotonic_ms()
            self._remember_lowest_offset(span.high_ms)  # guard: lowest-clock-kept
            if self._believed is None:
                self._follow_offset(span)
                return
            step_ms = span.ms_later_than(self._believed)
            if abs(step_ms) > self._step_tolerance_ms():  # guard: clock-step
                self.stepped_s = step_ms / 1000
                return
            self._follow_offset(span)

    def trust_last_measurement(self) -> None:
        """Follows the last measurement, because the other servers' clocks agree with it."""
        with self._lock:
            if self._seen is not None:
                self._follow_offset(self._seen)

    def follow_other_servers(self, span: ClockOffset) -> None:
        """Follows the other servers' time instead of this database's clock, which is ahead."""
        with self._lock:
            if self._seen is not None:
                self._believed, self._believed_s = span, self._clock.monotonic_s()
                self.stepped_s = self._seen.ms_later_than(span) / 1000

    def statement_bounds(self) -> TimeBounds:
        """The bounds for a statement that is about to be sent."""
        if not self._watched:
            return NO_BOUNDS
        with self._lock:
            believed = self._believed
            if believed is None:
                return NOTHING_IS_DUE
            now_ms = self._clock.monotonic_s() * 1000
            latest_ms = now_ms + _latest_believed_ms(believed)
            lows = (high_ms for high_ms, _ in self._lows)
            # Without the tolerance: a step within it would end leases early by as much.
            lease_ms = min(latest_ms, now_ms + min(lows, default=believed.high_ms))
            return TimeBounds(
                int(latest_ms + self._step_tolerance_ms()),  # guard: believed-due
                int(lease_ms),
                max(
                    0, int(now_ms + _earliest_believed_ms(believed))
                ),  # guard: believed-lease-start
            )

    def clamp_server_time_ms(self, server_ms: int) -> int:
        """A time that the database has just returned, clamped to the believed bounds.

        If this machine was paused since the last measurement (a VM; its wall clock shows that), the believed
        time is too early by the length of the pause: the upper bound is raised by as much.
        """
        bounds = self.statement_bounds()
        if bounds is NOTHING_IS_DUE:
            return server_ms
        stood_ms = max(0.0, self._wall_minus_monotonic_ms() - self._wall_ms)
        return max(bounds.from_ms, min(server_ms, bounds.due_ms + round(stood_ms)))

    def believed_now_ms(self) -> int | None:
        """The believed time of the database, in ms since 1970; None: not known."""
        believed = self._believed
        if believed is None:
            return None
        return int(self._clock.monotonic_s() * 1000 + believed.middle_ms)

    def _follow_offset(self, span: ClockOffset) -> None:
        """Follows the clock; narrows the offset by the previous one where both overlap."""
        old = self._believed
        if old is not None and span.ms_later_than(old) == 0:
            span = ClockOffset(max(span.low_ms, old.low_ms), min(span.high_ms, old.high_ms))
        self._believed, self._believed_s, self.stepped_s = span, self._clock.monotonic_s(), 0.0

    def _wall_minus_monotonic_ms(self) -> float:
        """This machine's wall clock minus its monotonic clock."""
        return self._clock.wall_ms() - self._clock.monotonic_s() * 1000

    def _step_tolerance_ms(self) -> float:
        age_s = self._clock.monotonic_s() - self._believed_s
        return STEP_MS_MAX + DRIFT_PER_S_MS * max(0.0, age_s)

    def _remember_lowest_offset(self, high_ms: float) -> None:
        """Remembers the lowest offsets within the last `hold_s`, the longest lease."""
        now_s = self._clock.monotonic_s()
        kept = [(low, at_s) for low, at_s in self._lows if now_s - at_s <= self._hold_s]
        if kept and abs(kept[-1][0] - high_ms) <= STEP_MS_MAX:
            kept[-1] = (min(kept[-1][0], high_ms), now_s)
        else:
            kept.append((high_ms, now_s))
        self._lows = kept


def _latest_believed_ms(span: ClockOffset) -> float:
    """The latest time to believe: a slow first answer must not let jobs start early by its duration."""
    return min(span.high_ms, span.low_ms + STEP_MS_MAX)


def _earliest_believed_ms(span: ClockOffset) -> float:
    """The earliest time to believe: after a slow answer too, at most STEP_MS_MAX before the latest."""
    return max(span.low_ms, span.high_ms - STEP_MS_MAX)
