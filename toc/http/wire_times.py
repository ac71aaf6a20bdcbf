"""Times and durations as HTTP has them: RFC 3339, seconds, and durations of ISO 8601."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from toc.domain.times import datetime_of
from toc.errors import InvalidInput

TEXT_CHARS_MAX = 64
_RFC_3339 = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_ISO_DURATION = re.compile(
    r"P(?:(\d{1,6})W|(?:(\d{1,7})D)?(?:T(?:(\d{1,8})H)?(?:(\d{1,10})M)?(?:(\d{1,12})(?:[.,](\d{1,9}))?S)?)?)",
    re.ASCII,
)
_SECONDS_MAX = 366 * 8000 * 86_400  # until the year 9999, from any time


def parse_action_time(value: str) -> datetime:
    """An RFC 3339 time, as 2026-01-31T18:00:00Z. Rounds up to microseconds. Raises InvalidInput."""
    found = _RFC_3339.fullmatch(value) if len(value) <= TEXT_CHARS_MAX else None
    rule = "must be a time of RFC 3339 with its zone, as 2026-01-31T18:00:00Z"
    if found is None:
        raise InvalidInput("action_time", value[:TEXT_CHARS_MAX], rule)
    day, clock, fraction, zone = found.groups()
    try:
        if fraction is None or len(fraction) <= 6:  # microseconds, which Python reads by itself
            return datetime.fromisoformat(value.upper()).astimezone(UTC)
        moment = datetime.fromisoformat(f"{day}T{clock}{zone.upper()}")
        return (moment + _fraction_of_second(fraction)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidInput("action_time", value, rule) from None


def parse_delay(value: float | str, field: str = "delay") -> timedelta:
    """Seconds, or an ISO 8601 duration of weeks, or of days, hours, minutes and seconds, as PT30M.

    Never negative. Months and years are refused: their length differs. Raises InvalidInput.
    """
    rule = "must be seconds, or a duration of ISO 8601 without months and years, as PT30M; not negative"
    if isinstance(value, str):
        found = _ISO_DURATION.fullmatch(value) if len(value) <= TEXT_CHARS_MAX else None
        if found is None or value.endswith(("P", "T")):
            raise InvalidInput(field, value[:TEXT_CHARS_MAX], rule)
        weeks, days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[:5])
        whole = ((weeks * 7 + days) * 24 + hours) * 3600 + minutes * 60 + seconds
        if whole > _SECONDS_MAX:
            raise InvalidInput(field, value, rule)
        return timedelta(seconds=whole) + _fraction_of_second(found.group(6))
    if not 0 <= value <= _SECONDS_MAX:
        raise InvalidInput(field, value, rule)
    return timedelta(seconds=value)


def format_time(ms: int | None) -> str | None:
    """Milliseconds since 1970 as RFC 3339 in UTC."""
    if ms is None:
        return None
    return datetime_of(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_datetime(moment: datetime) -> str:
    """An aware datetime as RFC 3339 in UTC."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _fraction_of_second(digits: str | None) -> timedelta:
    """The digits after the decimal point, rounded up to microseconds: a job is never early."""
    nanoseconds = int((digits or "0").ljust(9, "0"))
    return timedelta(microseconds=-(-nanoseconds // 1000))
