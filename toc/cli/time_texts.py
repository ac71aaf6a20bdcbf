"""Times as people write and read them."""

from __future__ import annotations

from datetime import datetime, timedelta

from toc.domain.duration_texts import duration_text, parse_duration_text, relative_time
from toc.domain.times import iso_utc
from toc.errors import InvalidInput

__all__ = [
    "WHEN_HELP", "duration_text", "iso_utc", "parse_time_argument", "relative_time", "time_for_people",
]  # fmt: skip

WHEN_HELP = "30m, 1h30m, 90s, 2d, 500ms from now, or a time with its zone: 2030-01-31T08:00:00Z"


def parse_time_argument(text: str) -> datetime | timedelta:
    """Parses WHEN: a time with its zone, or a length of time from now. Raises InvalidInput."""
    try:
        length = parse_duration_text(text)
    except OverflowError:
        raise InvalidInput("WHEN", text, "lies too far ahead") from None
    if length is not None:
        return length
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("WHEN", text, f"must be {WHEN_HELP}") from None
    if moment.tzinfo is None:
        raise InvalidInput("WHEN", text, "must know its zone: add Z, or an offset like +08:00")
    return moment


def time_for_people(ms: int | None) -> str:
    """Milliseconds since 1970 for people: 2030-01-31 08:00:00.000Z; a dash for None."""
    return "-" if ms is None else str(iso_utc(ms)).replace("T", " ")
