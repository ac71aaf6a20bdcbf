"""Verdicts: results of a handler other than "done". A handler returns or raises a verdict."""

from __future__ import annotations

from datetime import datetime, timedelta

from toc.domain.argument_checks import is_number
from toc.domain.result_document import encode_result
from toc.errors import InvalidInput

REASON_CHARS_MAX = 1000


def _make_storable_reason(reason: object) -> str:
    """The reason as a text of bounded length, without lone surrogates, which no database accepts."""
    return str(reason)[:REASON_CHARS_MAX].encode(errors="replace").decode()


class Verdict(Exception):
    """The base class of all verdicts. A return of None means done; any other exception means retry."""


class Done(Verdict):
    """Ends the job as done, as a return of None does, and keeps `result` in the job's row.

    result: a value that is JSON, at most `limits.result_bytes` (a larger one is not kept, and an error is
    logged: the job is done all the same). `get(job_id).result` reads it until retention deletes the job.
    Raises InvalidInput for a value that is not JSON, or has more than 60,000 bytes.
    """

    def __init__(self, result: object) -> None:
        self.result_json = encode_result(result)
        super().__init__("done")


class Retry(Verdict):
    """Retries the job after `after` seconds (or a timedelta), instead of after the type's back-off.

    None: after the type's back-off, as after an exception, but logs and dead letters have no traceback. The
    run counts as an attempt; after the last attempt the job is dead.
    """

    def __init__(
        self, after: float | timedelta | None, reason: str = "retry asked for by the handler"
    ) -> None:
        self.reason = _make_storable_reason(reason)
        super().__init__(self.reason)
        self.after_s: float | None = None
        if after is None:
            return
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if not is_number(seconds) or not 0 <= seconds <= 366 * 86_400:
            raise InvalidInput("after", after, "must be 0 seconds to 366 days, or such a timedelta")
        self.after_s = float(seconds)


class Snooze(Verdict):
    """Runs the job again at another time: an aware datetime, or a timedelta from now.

    The run does not count as an attempt. The job's action_time changes, as with reschedule. A time in the
    past, or nearer than `worker.snooze_s_min` (1 s) from now, is replaced by that minimum.
    """

    def __init__(self, until: datetime | timedelta) -> None:
        if isinstance(until, datetime) and until.tzinfo is None:
            raise InvalidInput("until", until, "must know its time zone, or be a timedelta")
        if not isinstance(until, (datetime, timedelta)):
            raise InvalidInput("until", until, "must be an aware datetime or a timedelta")
        self.until = until
        super().__init__(f"snooze until {until}")


class Drop(Verdict):
    """Ends the job as cancelled: no action is needed any more."""

    def __init__(self, reason: str) -> None:
        self.reason = _make_storable_reason(reason)
        super().__init__(self.reason)


class Dead(Verdict):
    """Ends the job dead at once, with this reason: more attempts would not help."""

    def __init__(self, reason: str) -> None:
        self.reason = _make_storable_reason(reason)
        super().__init__(self.reason)
