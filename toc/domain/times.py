"""Conversion of times. Every layer below the API uses whole milliseconds since 1970-01-01 UTC, rounded up.

Rounding up keeps invariant I4 (never early) when a caller gives microseconds. MySQL rounds and MariaDB
truncates fractions on INSERT, so toc never sends them fractions.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from toc.errors import InvalidInput

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
MS_MAX = 253_402_300_799_999  # 9999-12-31 23:59:59.999, the end of DATETIME


def ceil_ms(delta: timedelta) -> int:
    """A timedelta as whole milliseconds, rounded up."""
    if type(delta) is not timedelta:  # a subclass may count nanoseconds: pandas' Timedelta does
        whole, rest = divmod(delta, _MS)  # not by -(-delta // _MS): timedelta.max cannot be negated
        return whole + bool(rest)
    # By integers: dividing timedeltas takes twice as long. `microseconds` is never negative.
    return (delta.days * 86_400 + delta.seconds) * 1000 - (-delta.microseconds // 1000)


def datetime_of(ms: int) -> datetime:
    """Milliseconds since 1970 as an aware UTC datetime."""
    return EPOCH + timedelta(milliseconds=ms)


def iso_utc(ms: int | None) -> str | None:
    """Milliseconds since 1970 as a text in UTC: 2030-01-31T08:00:00.000Z; None for None."""
    if ms is None:
        return None
    return datetime_of(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def action_time_to_ms(value: datetime | timedelta, now_ms: int) -> int:
    """Converts the action time that a caller gives to milliseconds since 1970, rounded up.

    A timedelta counts from `now_ms`. A time in the past is allowed and means "at once". Raises InvalidInput
    for other types, for naive datetimes, and for times that DATETIME cannot hold.
    """
    if isinstance(value, timedelta):
        ms = now_ms + ceil_ms(value)
    elif isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise InvalidInput(
                "action_time",
                value,
                "must know its time zone: write datetime(..., tzinfo=UTC), datetime.now(UTC) + "
                "timedelta(...), or give a timedelta",
            )
        ms = ceil_ms(value - EPOCH)
    else:
        raise InvalidInput("action_time", value, "must be an aware datetime or a timedelta")
    if not 0 <= ms <= MS_MAX:
        raise InvalidInput("action_time", value, "must lie between 1970-01-01 and 9999-12-31 UTC")
    return ms
