"""Times as people write and read them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from toc.cli.output import printable_text
from toc.cli.time_texts import (
    duration_text,
    iso_utc,
    parse_time_argument,
    relative_time,
    time_for_people,
)
from toc.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("30m", timedelta(minutes=30)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("90s", timedelta(seconds=90)),
        ("2d", timedelta(days=2)),
        ("500ms", timedelta(milliseconds=500)),
        ("1m500ms", timedelta(minutes=1, milliseconds=500)),
        ("0.5s", timedelta(milliseconds=500)),
        ("0s", timedelta(0)),
        ("2030-01-31T08:00:00Z", datetime(2030, 1, 31, 8, tzinfo=UTC)),
        ("2030-01-31 08:00+08:00", datetime(2030, 1, 31, 8, tzinfo=timezone(timedelta(hours=8)))),
    ],
)
def test_when(text: str, meant: datetime | timedelta) -> None:
    assert parse_time_argument(text) == meant


@pytest.mark.parametrize(
    "text",
    ["", "soon", "30", "m", "30 m", "-5m", "5M", "٣m", "1h-5m", "2030-01-31T08:00:00",
     "2030-13-01T00:00Z", "99999999999999999999d", "1e3s"],
)  # fmt: skip
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_time_argument(text)
    assert refused.value.field == "WHEN"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (5, "0.005s"),
        (1500, "1.5s"),
        (59_999, "59.999s"),
        (60_000, "1m 0s"),
        (5_400_000, "1h 30m"),
        (90_061_000, "1d 1h"),
    ],
)
def test_duration(ms: int, text: str) -> None:
    assert duration_text(ms) == text


def test_moments() -> None:
    assert iso_utc(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert time_for_people(1_700_000_000_123) == "2023-11-14 22:13:20.123Z"
    assert (iso_utc(None), time_for_people(None)) == (None, "-")
    assert relative_time(2000, 500) == "in 1.5s"
    assert relative_time(500, 2000) == "1.5s ago"


def test_a_strangers_text_cannot_command_the_terminal() -> None:
    assert printable_text("a\x1b[31mb\r\nc中") == "a\\x1b[31mb\\x0d\nc中"
