"""Retry policies: how long to wait before a failed job is tried again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from toc.errors import InvalidInput

ATTEMPTS_MAX = 1000  # upper bound of max_attempts; the column is a SMALLINT
ATTEMPTS_DEFAULT = 16
TIMEOUT_S_DEFAULT, TIMEOUT_S_MAX = 30.0, 86_400.0  # how long one run may take
DELAY_S_MAX = 365 * 86_400.0
DELAYS_MAX = 100  # delays of a list
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
            if not number or not low <= value <= high:  # NaN does not lie between them either
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
        if len(self.seconds) > DELAYS_MAX:
            raise InvalidInput("retry", list(self.seconds), f"needs at most {DELAYS_MAX} delays")
        for value in self.seconds:
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 <= value <= DELAY_S_MAX:
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

RetryName = Literal["exponential", "webhook"]
NAMED_POLICIES: Mapping[str, RetryPolicy] = {
    "exponential": Exponential(),
    # A receiver that was away for a moment gets the job at once; one that is away for a day, later.
    "webhook": DelayList((0, 0, 120, 600, 600, 3600, 7200, 21_600, 54_000)),
}
"""The policies that have a name: `retry="webhook"`. The webhook policy waits 0 s, 0 s, 2 min, 10 min, 10 min,
1 h, 2 h, 6 h and 15 h."""


def to_retry_policy(value: RetryPolicy | RetryName | Sequence[float] | None) -> RetryPolicy:
    """Converts the argument `retry=` to a policy. `value`: a list of seconds, a policy, the name of a policy,
    or None for the default.
    """
    if value is None:
        return Exponential()
    if isinstance(value, (Exponential, DelayList)):
        return value
    if isinstance(value, str) and value in NAMED_POLICIES:
        return NAMED_POLICIES[value]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return DelayList(tuple(value))
    names = " or ".join(f'"{name}"' for name in sorted(NAMED_POLICIES))
    raise InvalidInput("retry", value, f"must be a list of seconds, toc.Exponential(...), {names}")


def retry_policy_to_json(policy: RetryPolicy) -> object:
    """A policy as JSON: its name if it has one, else a list of seconds or the fields of an Exponential."""
    for name, named in NAMED_POLICIES.items():
        if policy == named:
            return name
    return list(policy.seconds) if isinstance(policy, DelayList) else asdict(policy)


def retry_policy_from_json(value: object) -> RetryPolicy:
    """The reverse of `retry_policy_to_json`. Raises InvalidInput."""
    if isinstance(value, dict):
        try:
            return Exponential(**value)
        except TypeError:
            rule = "has a field that an exponential policy does not have"
            raise InvalidInput("retry", value, rule) from None
    if value is None:
        raise InvalidInput("retry", value, "must be a list of seconds, a name or an object")
    return to_retry_policy(cast(Any, value))
