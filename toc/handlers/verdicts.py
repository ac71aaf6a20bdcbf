"""What a handler may say instead of "done". Return one, or raise it from deep inside."""

from __future__ import annotations

from datetime import datetime, timedelta

from toc.errors import InvalidInput

REASON_CHARS_MAX = 1000


def _text(reason: object) -> str:
    """Bounded, and without lone surrogates, which no database takes."""
    return str(reason)[:REASON_CHARS_MAX].encode(errors="replace").decode()


class Verdict(Exception):
    """The root of all verdicts. A plain return means done, any other exception means retry."""


class Retry(Verdict):
    """Try again after so many seconds (or a timedelta), in place of the type's back-off.

    Counts as an attempt: the last one ends dead.
    """

    def __init__(
        self, after: float | timedelta, reason: str = "retry asked for by the handler"
    ) -> None:
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if (
            isinstance(seconds, bool)
            or not isinstance(seconds, (int, float))
            or not 0 <= seconds <= 366 * 86_400
        ):
            raise InvalidInput("after", after, "must be 0 seconds to 366 days, or such a timedelta")
        self.after_s = float(seconds)
        self.reason = _text(reason)
        super().__init__(self.reason)


class Snooze(Verdict):
    """Act at another time (an aware datetime or a timedelta from now). Not an attempt.

    The job's action_time moves, as with reschedule. A moment that has passed, or is closer than
    `worker.snooze_s_min` (1 s), counts as that much from now.
    """

    def __init__(self, until: datetime | timedelta) -> None:
        if isinstance(until, datetime) and until.tzinfo is None:
            raise InvalidInput("until", until, "must know its time zone, or be a timedelta")
        if not isinstance(until, (datetime, timedelta)):
            raise InvalidInput("until", until, "must be an aware datetime or a timedelta")
        self.until = until
        super().__init__(f"snooze until {until}")


class Drop(Verdict):
    """Nothing needs to be done any more: the job ends as cancelled."""

    def __init__(self, reason: str) -> None:
        self.reason = _text(reason)
        super().__init__(self.reason)


class Dead(Verdict):
    """Further tries are pointless: the job ends dead at once, with this reason."""

    def __init__(self, reason: str) -> None:
        self.reason = _text(reason)
        super().__init__(self.reason)
