"""Retry policies: how long to wait before a failed job is tried again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toc.errors import InvalidInput

ATTEMPTS_MAX = 1000  # upper bound of max_attempts; the column is a SMALLINT
DELAY_S_MAX = 365 * 86_400.0
# Bounds of the delay before the reminder of a job without a handler in this process is popped again.
UNHANDLED_MS_MIN, UNHANDLED_MS_MAX = 10_000, 300_000


def unhandled_delay_ms(overdue_ms: int) -> int:
    """The delay, in ms, before the reminder of a job without a handler in this process is popped again.

    The delay is as long as the job is overdue, so the reminder is popped less and less often. A node that
    has the handler does not wait for the reminder: its scanner claims overdue rows.
    """
    return max(UNHANDLED_MS_MIN, min(overdue_ms, UNHANDLED_MS_MAX))


@dataclass(frozen=True, slots=True)
class Exponential:
    """Exponential back-off: first_s, first_s * factor, ... up to max_s, varied at random by ± jitter.

    Jitter prevents jobs that failed together from being retried together (M. Brooker, "Exponential
    Backoff and Jitter", AWS Architecture Blog, 2015). `jitter` is a fraction: 0.2 means ± 20 %.
    """

    first_s: float = 10.0
    factor: float = 2.0
    max_s: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        for field, value, low, high in (
            ("first_s", self.first_s, 0.0, DELAY_S_MAX),
            ("factor", self.factor, 1.0, 1000.0),
            ("max_s", self.max_s, self.first_s, DELAY_S_MAX),
            ("jitter", self.jitter, 0.0, 1.0),
        ):
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not (math.isfinite(value) and low <= value <= high):
                raise InvalidInput(
                    f"retry.{field}", value, f"must lie between {low:g} and {high:g}"
                )

    def delay_s(self, attempt: int, spread: float) -> float:
        """Seconds to wait after attempt number `attempt` (from 1). `spread`: a random number from -1 to 1."""
        try:
            delay = self.first_s * self.factor ** (attempt - 1)
        except OverflowError:  # for example a factor of 1000 after 103 attempts
            delay = self.max_s if self.first_s > 0 else 0.0
        return min(delay, self.max_s) * (1 + self.jitter * spread)


@dataclass(frozen=True, slots=True)
class DelayList:
    """A fixed list of waits in seconds, one after each failed attempt; the last one repeats."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.seconds:
            raise InvalidInput("retry", list(self.seconds), "needs at least one delay in seconds")
        for value in self.seconds:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not (math.isfinite(value) and 0 <= value <= DELAY_S_MAX):
                raise InvalidInput(
                    "retry", value, f"each delay must be 0 to {DELAY_S_MAX:g} seconds"
                )

    def delay_s(self, attempt: int, spread: float) -> float:
        """Seconds to wait after attempt number `attempt` (from 1).

        `spread` is ignored: a list has no jitter.
        """
        del spread
        return self.seconds[min(attempt, len(self.seconds)) - 1]


RetryPolicy = Exponential | DelayList


def to_retry_policy(value: RetryPolicy | Sequence[float] | None) -> RetryPolicy:
    """Converts the argument `retry=` (a list of seconds, a policy, or None for the default) to a policy."""
    if value is None:
        return Exponential()
    if isinstance(value, (Exponential, DelayList)):
        return value
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return DelayList(tuple(value))
    raise InvalidInput("retry", value, "must be a list of seconds or toc.Exponential(...)")
