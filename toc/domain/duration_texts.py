"""Lengths of time as people write and read them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

MS_OF_UNIT = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_SOON_MS = 60_000
_STEP = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time as a value of a Sentence."""

    ms: int

    def __str__(self) -> str:
        return duration_text(self.ms)


def parse_duration_text(text: str) -> timedelta | None:
    """Parses "30s", "5m", "1h30m". None: the text is no length of time. Raises OverflowError."""
    steps = _STEP.findall(text)
    if not steps or "".join(number + unit for number, unit in steps) != text:
        return None
    return timedelta(milliseconds=sum(float(number) * MS_OF_UNIT[unit] for number, unit in steps))


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
        count, ms = divmod(ms, MS_OF_UNIT[unit])
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])
