"""Times: whole milliseconds, rounded up, never early."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toc.domain.times import EPOCH, MS_MAX, action_time_to_ms, ceil_ms, datetime_of
from toc.errors import InvalidInput
from toc.store.column_types import ms_of_sql_time, sql_time_of_ms

NOW = 1_795_000_000_000
ZONES = st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)))
MOMENTS = st.datetimes(datetime(1970, 1, 3), datetime(9999, 12, 29), timezones=ZONES)  # noqa: DTZ001


@pytest.mark.invariant("I4")
@given(MOMENTS)
def test_a_moment_is_rounded_up_by_less_than_a_millisecond(moment: datetime) -> None:
    ms = action_time_to_ms(moment, NOW)
    assert timedelta(0) <= datetime_of(ms) - moment < timedelta(milliseconds=1)


@pytest.mark.invariant("I4")
@given(st.timedeltas(timedelta(days=-20_000), timedelta(days=2_900_000)))
def test_a_wait_is_rounded_up_by_less_than_a_millisecond(wait: timedelta) -> None:
    ms = action_time_to_ms(wait, NOW)
    assert timedelta(0) <= timedelta(milliseconds=ms - NOW) - wait < timedelta(milliseconds=1)


@pytest.mark.parametrize("text", ["0000-00-00 00:00:00", "2026-00-01 00:00:00", "2026-01-00"])
def test_zero_dates_are_the_oldest(text: str) -> None:
    assert ms_of_sql_time(text) == 0


def test_what_is_no_time_is_an_error() -> None:
    with pytest.raises(ValueError, match="noon"):
        ms_of_sql_time("noon")


@pytest.mark.parametrize(
    ("microseconds", "ms"), [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2), (-1, 0), (-1000, -1)]
)
def test_rounding(microseconds: int, ms: int) -> None:
    assert ceil_ms(timedelta(microseconds=microseconds)) == ms


def test_whole_milliseconds_stay() -> None:
    moment = datetime(2026, 5, 6, 7, 8, 9, 123_000, tzinfo=UTC)
    assert datetime_of(action_time_to_ms(moment, 0)) == moment


def test_the_past_is_allowed() -> None:
    assert action_time_to_ms(timedelta(hours=-1), NOW) == NOW - 3_600_000
    assert action_time_to_ms(EPOCH, NOW) == 0


def test_the_same_moment_in_two_zones_is_one() -> None:
    there = timezone(timedelta(hours=8))
    one = datetime(2026, 1, 1, 8, tzinfo=there)
    assert action_time_to_ms(one, 0) == action_time_to_ms(datetime(2026, 1, 1, tzinfo=UTC), 0)


def test_the_end_of_datetime() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    assert action_time_to_ms(last, NOW) == MS_MAX
    for beyond in (last + timedelta(microseconds=1), timedelta.max, timedelta.min):
        with pytest.raises(InvalidInput, match="between 1970-01-01 and 9999-12-31 UTC"):
            action_time_to_ms(beyond, NOW)
    with pytest.raises(InvalidInput, match="between 1970-01-01"):
        action_time_to_ms(EPOCH - timedelta(milliseconds=1), NOW)


class Undecided(tzinfo):
    def utcoffset(self, moment: datetime | None) -> None:
        return None

    dst = utcoffset

    def tzname(self, moment: datetime | None) -> str:
        return "nowhere"


@pytest.mark.parametrize(
    "naive",
    [datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=Undecided())],  # noqa: DTZ001
)
def test_a_naive_datetime_is_refused_with_help(naive: datetime) -> None:
    with pytest.raises(InvalidInput) as caught:
        action_time_to_ms(naive, NOW)
    assert caught.value.field == "action_time"
    assert caught.value.value is naive
    for way_out in ("tzinfo=UTC", "datetime.now(UTC)", "timedelta"):
        assert way_out in str(caught.value)


@pytest.mark.parametrize("value", [None, 5, 1.5, "2026-01-01", NOW])
def test_anything_else_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="must be an aware datetime or a timedelta"):
        action_time_to_ms(value, NOW)


@given(st.integers(0, MS_MAX))
def test_sql_text_is_exact_both_ways(ms: int) -> None:
    text = sql_time_of_ms(ms)
    assert len(text) == 23
    assert ms_of_sql_time(text) == ms
    assert ms_of_sql_time(datetime.fromisoformat(text)) == ms


@given(st.integers(0, MS_MAX), st.integers(0, MS_MAX))
def test_sql_text_sorts_as_time_does(one: int, two: int) -> None:
    assert (sql_time_of_ms(one) < sql_time_of_ms(two)) is (one < two)
