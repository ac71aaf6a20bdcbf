"""When a failed job is tried again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from toc.errors import InvalidInput

ATTEMPTS_MAX = 1000  # upper bound of max_attempts; the column is a SMALLINT
DELAY_S_MAX = 365 * 86_400.0
# A job without a handler here waits for another node, or a deploy: between these two.
UNHANDLED_MS_MIN, UNHANDLED_MS_MAX = 10_000, 300_000


def unhandled_ms(overdue_ms: int) -> int:
    """How long the reminder of a job without a handler here is put off: as long as the job is overdue.

    So it is popped less and less often. Nodes that have the handler do not wait for the reminder: their
    scanners claim what is overdue.
    """
    return max(UNHANDLED_MS_MIN, min(overdue_ms, UNHANDLED_MS_MAX))


@dataclass(frozen=True, slots=True)
class Exponential:
    """Back-off that grows: first_s, first_s * factor, ... up to max_s, each spread by ± jitter.

    Jitter keeps jobs that failed together from coming back together (M. Brooker, "Exponential
    Backoff and Jitter", AWS Architecture Blog, 2015).
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
        """Seconds to wait after the attempt-th attempt (from 1); `spread` lies in [-1, 1]."""
        try:
            delay = self.first_s * self.factor ** (attempt - 1)
        except OverflowError:  # a factor of 1000, say, after 103 attempts
            delay = self.max_s if self.first_s > 0 else 0.0
        return min(delay, self.max_s) * (1 + self.jitter * spread)


@dataclass(frozen=True, slots=True)
class Delays:
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
        """Seconds to wait after the attempt-th attempt (from 1); a list is not spread."""
        del spread
        return self.seconds[min(attempt, len(self.seconds)) - 1]


RetryPolicy = Exponential | Delays


def retry_policy(value: RetryPolicy | Sequence[float] | None) -> RetryPolicy:
    """What a caller may write for `retry=`: a list of seconds, a policy, or None for the default."""
    if value is None:
        return Exponential()
    if isinstance(value, (Exponential, Delays)):
        return value
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return Delays(tuple(value))
    raise InvalidInput("retry", value, "must be a list of seconds or toc.Exponential(...)")
