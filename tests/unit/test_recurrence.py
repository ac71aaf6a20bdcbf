"""The nominal times of schedules: against a model that walks through years, minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.deep import ALL as ALL_TESTS
from toc.domain.recurrence import Recurrence
from toc.domain.times import EPOCH, datetime_of
from toc.errors import InvalidInput

# Lord Howe moves its clocks by half an hour; the others by an hour, on either side of the equator.
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]
FIRST_YEAR, END_YEAR = (2021, 2031) if ALL_TESTS else (2027, 2029)  # 2028 has a 29 February
FROM, UNTIL = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC), datetime(END_YEAR, 1, 1, tzinfo=UTC)
MINUTE, QUARTER = timedelta(minutes=1), timedelta(minutes=15)


def ms_of(*parts: int) -> int:
    return round((datetime(*parts, tzinfo=UTC) - EPOCH).total_seconds() * 1000)  # type: ignore[misc, arg-type]


class Fields(NamedTuple):
    """The sets of a cron expression; weekdays: 0 is Monday."""

    minutes: set[int]
    hours: set[int]
    days: set[int]
    months: set[int]
    weekdays: set[int]

    def fit(self, wall: datetime) -> bool:
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.day in self.days
            and wall.month in self.months
            and wall.weekday() in self.weekdays
        )


ALL = Fields(set(range(60)), set(range(24)), set(range(1, 32)), set(range(1, 13)), set(range(7)))
EXPRESSIONS = {
    "30 2 * * *": ALL._replace(minutes={30}, hours={2}),
    "15,45 1-3 * * *": ALL._replace(minutes={15, 45}, hours={1, 2, 3}),
    "0 * * * *": ALL._replace(minutes={0}),
    "*/20 2 * * SUN": ALL._replace(minutes={0, 20, 40}, hours={2}, weekdays={6}),
    "5 2 * MAR,OCT *": ALL._replace(minutes={5}, hours={2}, months={3, 10}),
    "0 0 29 2 *": ALL._replace(minutes={0}, hours={0}, days={29}, months={2}),
    "59 23 31 12 *": ALL._replace(minutes={59}, hours={23}, days={31}, months={12}),
}


class Model:
    """The instants of every expression and gap rule in one zone, found minute by minute.

    A minute counts if the clock shows a fitting wall time that it has not shown before. Where the clock jumps
    ahead, the wall minutes that it leaves out are tried too: with "next" they count at the minute after the
    jump. Quarters of an hour without a change of the offset take a short cut: their wall minutes follow
    each other.
    """

    def __init__(self, zone_name: str) -> None:
        self._zone = ZoneInfo(zone_name)
        self.found: dict[tuple[str, str], list[datetime]] = {
            (text, gap): [] for text in EXPRESSIONS for gap in ("skip", "next")
        }
        interesting = {minute for fields in EXPRESSIONS.values() for minute in fields.minutes}
        at, before = FROM, (FROM - MINUTE).astimezone(self._zone)
        while at < UNTIL:
            local = at.astimezone(self._zone)
            last = (at + QUARTER - MINUTE).astimezone(self._zone)
            if local.utcoffset() == last.utcoffset() == before.utcoffset():
                for number in range(15):
                    if (local.minute + number) % 60 in interesting:
                        self._add_minute(at + number * MINUTE)
            else:
                for number in range(15):
                    before = self._add_minute(at + number * MINUTE, before)
            at, before = at + QUARTER, last

    def _add_minute(self, at: datetime, before: datetime | None = None) -> datetime:
        """before: what the clock showed a minute ago; None: the minute before this one's."""
        minute = at.astimezone(self._zone)
        wall = minute.replace(tzinfo=None, fold=0)
        if before is not None:
            shown, left_out = before.replace(tzinfo=None, fold=0), []
            while shown + MINUTE < wall:
                shown += MINUTE
                left_out.append(shown)
            self._add(at, left_out, ["next"])
        if minute.fold == 0:
            self._add(at, [wall], ["skip", "next"])
        return minute

    def _add(self, at: datetime, walls: list[datetime], gaps: list[str]) -> None:
        for text, fields in EXPRESSIONS.items():
            if any(fields.fit(wall) for wall in walls):
                for gap in gaps:
                    times = self.found[text, gap]
                    if not times or times[-1] != at:
                        times.append(at)


@cache
def model_times(zone_name: str) -> dict[tuple[str, str], list[datetime]]:
    return Model(zone_name).found


@pytest.mark.parametrize("zone", ZONES)
def test_the_nominal_times_of_years_are_those_of_the_model(zone: str) -> None:
    after, until = ms_of(FIRST_YEAR, 1, 1) - 1, ms_of(END_YEAR, 1, 1) - 1
    for (text, gap), expected in model_times(zone).items():
        rule = Recurrence(cron=text, tz=zone, gap=gap)  # type: ignore[arg-type]
        found = [datetime_of(ms) for ms in rule.times_ms(after, until)]
        assert found == expected, (text, gap)
        assert len(set(found)) == len(found)


@given(
    st.just(ZONES[-1]), st.sampled_from(list(EXPRESSIONS)), st.sampled_from(["skip", "next"]),
    st.integers(0, (END_YEAR - FIRST_YEAR) * 365 * 86_400 - 1),
)  # fmt: skip
def test_next_from_anywhere_is_the_first_of_the_model_after_it(
    zone: str, text: str, gap: Any, second: int
) -> None:
    after = FROM + timedelta(seconds=second)
    after_ms = round((after - EPOCH).total_seconds() * 1000)
    expected = next((each for each in model_times(zone)[text, gap] if each > after), None)
    if expected is not None:
        found = Recurrence(cron=text, tz=zone, gap=gap).next_ms(after_ms)
        assert found is not None
        assert datetime_of(found) == expected


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        ("skip", ["28 01:30", "30 00:30"]),
        ("next", ["28 01:30", "29 01:00", "30 00:30"]),  # 2026-03-29 02:30 is no time in Berlin
    ],
)
def test_a_wall_time_that_no_clock_shows(gap: Any, expected: list[str]) -> None:
    rule = Recurrence(cron="30 2 * * *", tz="Europe/Berlin", gap=gap)
    times = rule.times_ms(ms_of(2026, 3, 28), ms_of(2026, 3, 31))
    assert [f"{datetime_of(ms):%d %H:%M}" for ms in times] == [*expected, "31 00:30"][
        : len(expected)
    ]


def test_a_wall_time_that_a_clock_shows_twice_counts_the_first_time() -> None:
    rule = Recurrence(cron="30 2 * * *", tz="Europe/Berlin")
    times = rule.times_ms(ms_of(2026, 10, 24, 12), ms_of(2026, 10, 26, 12))
    assert [f"{datetime_of(ms):%d %H:%M}" for ms in times] == ["25 00:30", "26 01:30"]


def test_intervals_do_not_know_of_clock_changes() -> None:
    rule = Recurrence(every_s=3600, tz="Europe/Berlin", start_ms=ms_of(2026, 3, 29, 0, 10))
    found = list(rule.times_ms(0, ms_of(2026, 3, 29, 3, 10)))
    assert [f"{datetime_of(ms):%H:%M}" for ms in found] == ["00:10", "01:10", "02:10", "03:10"]


@given(st.integers(1, 10**6), st.integers(0, 10**12), st.integers(0, 10**13))
def test_intervals_count_from_their_start(every_s: int, start_s: int, after_ms: int) -> None:
    start_ms = start_s // 1000 * 1000
    found = Recurrence(every_s=every_s, start_ms=start_ms).next_ms(after_ms)
    assert found is not None
    assert found > after_ms
    assert found >= start_ms
    assert (found - start_ms) % (every_s * 1000) == 0
    assert found == start_ms or found - every_s * 1000 <= after_ms


def test_an_rrule_counts_from_its_start_in_its_zone() -> None:
    rule = Recurrence(
        rrule="FREQ=MONTHLY;BYDAY=-1FR;COUNT=3", tz="Asia/Shanghai", start_ms=ms_of(2026, 1, 1, 1)
    )
    found = [datetime_of(ms) for ms in rule.times_ms(0, ms_of(2030, 1, 1))]
    assert found == [
        datetime(2026, month, day, 1, tzinfo=UTC) for month, day in [(1, 30), (2, 27), (3, 27)]
    ]
    assert rule.next_ms(ms_of(2026, 3, 27, 1)) is None


def test_start_and_end_bound_a_rule_and_belong_to_it() -> None:
    start_ms, end_ms = ms_of(2026, 1, 2), ms_of(2026, 1, 4)
    rule = Recurrence(cron="0 0 * * *", start_ms=start_ms, end_ms=end_ms)
    assert list(rule.times_ms(0, ms_of(2027, 1, 1))) == [start_ms, ms_of(2026, 1, 3), end_ms]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("cron", {}),
        ("cron", {"cron": "0 3 * * *", "every_s": 5}),
        ("cron", {"cron": "0 3 * *"}),
        ("cron", {"cron": "* * * * * *"}),
        ("cron", {"cron": "60 3 * * *"}),
        ("cron", {"cron": "0 3 31 2 *"}),
        ("cron", {"cron": "@daily"}),
        ("cron", {"cron": "5L/2 * * * *"}),
        ("cron", {"cron": 5}),
        ("every", {"every_s": 0}),
        ("every", {"every_s": True}),
        ("every", {"every_s": 400 * 86_400}),
        ("tz", {"cron": "0 3 * * *", "tz": "Mars/Olympus"}),
        ("tz", {"cron": "0 3 * * *", "tz": "../etc/passwd"}),
        ("tz", {"cron": "0 3 * * *", "tz": "Europe"}),
        ("tz", {"cron": "0 3 * * *", "tz": "localtime"}),
        ("tz", {"cron": "0 3 * * *", "tz": "posixrules"}),
        ("tz", {"cron": "0 3 * * *", "tz": "right/UTC"}),
        ("gap", {"cron": "0 3 * * *", "gap": "both"}),
        ("start", {"every_s": 5, "start_ms": 1}),
        ("end", {"every_s": 5, "start_ms": 9000, "end_ms": 1000}),
        ("start", {"rrule": "FREQ=DAILY"}),
        ("rrule", {"rrule": "FREQ=SECONDLY", "start_ms": 0}),
        ("rrule", {"rrule": "FREQ=DAILY;BYMONTHDAY=30;BYMONTH=2", "start_ms": 0}),
        ("rrule", {"rrule": "FREQ=YEARLY;BYMONTHDAY=30;BYMONTH=2", "start_ms": 0}),
        ("rrule", {"rrule": "FREQ=DAILY;UNTIL=20300101T000000Z", "start_ms": 0}),
        ("rrule", {"rrule": "FREQ=DAILY\nRRULE:FREQ=WEEKLY", "start_ms": 0}),
        ("rrule", {"rrule": "FREQ=DAILY;BYHOUR=25", "start_ms": 0}),
        ("rrule", {"rrule": "FREQ=DAILY;INTERVAL=0", "start_ms": 0}),
        ("rrule", {"rrule": "FREQ=YEARLY;INTERVAL=-1", "start_ms": 0}),
        ("rrule", {"rrule": "FREQ=DAILY;COUNT=0", "start_ms": 0}),
        ("rrule", {"rrule": "FREQ=DAILY;FREQ=DAILY", "start_ms": 0}),
        ("rrule", {"rrule": "FREQ=DAILY; BYHOUR=1", "start_ms": 0}),
        ("rrule", {"rrule": "FREQ=MONTHLY;BYDAY=6MO", "start_ms": 0}),
        ("rrule", {"rrule": "FREQ=DAILY;BYHOUR=1,2,3,4,5;BYMINUTE=1,2,3,4,5", "start_ms": 0}),
    ],
)  # fmt: skip
def test_a_rule_that_makes_no_sense_is_refused(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Recurrence(**values)
    assert caught.value.field == field
