"""Times as people write and read them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from toc.domain.times import datetime_of
from toc.errors import InvalidInput

_MS_OF = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_STEP = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)", re.ASCII)
WHEN_HELP = "30m, 1h30m, 90s, 2d, 500ms from now, or a time with its zone: 2030-01-31T08:00:00Z"
_SOON_MS = 60_000


def parse_time_argument(text: str) -> datetime | timedelta:
    """Parses WHEN: a time with its zone, or a length of time from now. Raises InvalidInput."""
    steps = _STEP.findall(text)
    if steps and "".join(number + unit for number, unit in steps) == text:
        milliseconds = sum(float(number) * _MS_OF[unit] for number, unit in steps)
        try:
            return timedelta(milliseconds=milliseconds)
        except OverflowError:
            raise InvalidInput("WHEN", text, "lies too far ahead") from None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput("WHEN", text, f"must be {WHEN_HELP}") from None
    if moment.tzinfo is None:
        raise InvalidInput("WHEN", text, "must know its zone: add Z, or an offset like +08:00")
    return moment


def iso_utc(ms: int | None) -> str | None:
    """Milliseconds since 1970 for JSON: 2030-01-31T08:00:00.000Z."""
    if ms is None:
        return None
    return datetime_of(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def time_for_people(ms: int | None) -> str:
    """Milliseconds since 1970 for people: 2030-01-31 08:00:00.000Z; a dash for None."""
    return "-" if ms is None else str(iso_utc(ms)).replace("T", " ")


def relative_time(ms: int, now_ms: int) -> str:
    """How far a moment is from now: "in 1h 30m", "2.345s ago"."""
    text = duration_text(abs(ms - now_ms))
    return f"in {text}" if ms > now_ms else f"{text} ago"


def duration_text(ms: int) -> str:
    """Milliseconds as the two largest units; below a minute as seconds."""
    if ms < _SOON_MS:
        return f"{ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, ms = divmod(ms, _MS_OF[unit])
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
