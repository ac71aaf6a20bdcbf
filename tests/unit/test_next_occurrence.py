"""The rules of overlap and catch-up: against a model that looks at each nominal time by itself."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toc.domain.recurrence import Recurrence
from toc.domain.recurring import COUNTED_MAX, OVERLAPS, RecurringSchedule, next_occurrence
from toc.errors import InvalidInput

MINUTE_MS = 60_000
HORIZON = 300  # minutes of the model


def model(
    times: list[int], overlap: str, catch_up_s: int, cursor: int, ended: int, now: int
) -> tuple[int | None, int]:
    """(the next time, how many are left out), by the table of rules, one nominal time after the other."""
    undecided = [each for each in times if each > cursor]
    fresh = [each for each in undecided if each >= now - catch_up_s * 1000]
    if overlap == "skip":
        fresh = [each for each in fresh if each > min(ended, now)]
    if overlap == "cancel-other":
        passed = [each for each in fresh if each <= now]
        fresh = passed[-1:] + [each for each in fresh if each > now]
    if not fresh:
        return None, -1
    return fresh[0], sum(each < fresh[0] for each in undecided)


@settings(max_examples=500)
@given(
    overlap=st.sampled_from(OVERLAPS),
    every=st.integers(1, 40),
    catch_up_s=st.integers(10, 7200),
    cursor=st.integers(0, 100),
    ended=st.integers(0, 200),
    now=st.integers(0, 200),
    rest_ms=st.integers(0, MINUTE_MS - 1),
    end=st.none() | st.integers(0, 250),
)
def test_the_next_occurrence_is_that_of_the_table_of_rules(
    overlap: Any,
    every: int,
    catch_up_s: int,
    cursor: int,
    ended: int,
    now: int,
    rest_ms: int,
    end: int | None,
) -> None:
    """Minutes after 1970; `now` may lie before the cursor or the end of the job before: clocks step."""
    last, now_ms = HORIZON if end is None else end, now * MINUTE_MS + rest_ms
    rule = Recurrence(every_s=every * 60, end_ms=last * MINUTE_MS)
    schedule = RecurringSchedule("n", "t", rule, overlap, catch_up_s)
    found = next_occurrence(schedule, cursor * MINUTE_MS, ended * MINUTE_MS, now_ms)
    times = [each * MINUTE_MS for each in range(0, last + 1, every)]
    expected, left_out = model(
        times, overlap, catch_up_s, cursor * MINUTE_MS, ended * MINUTE_MS, now_ms
    )
    assert found.nominal_ms == expected
    assert found.cursor_ms >= cursor * MINUTE_MS
    if expected is not None:
        assert (found.cursor_ms, found.skipped) == (expected, left_out)


@given(st.sampled_from(OVERLAPS), st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_a_chain_makes_each_time_at_most_once_and_in_order(
    overlap: Any, lengths: list[int]
) -> None:
    """Jobs run for so many minutes, one after the other; the cursor never goes back."""
    schedule = RecurringSchedule("n", "t", Recurrence(every_s=300), overlap)
    made, cursor, now = list[int](), 0, 0
    for length in lengths:
        found = next_occurrence(schedule, cursor, now, now)
        assert found.nominal_ms is not None
        made.append(found.nominal_ms)
        cursor, now = found.cursor_ms, max(now, found.nominal_ms) + length * MINUTE_MS
    assert made == sorted(set(made))
    if overlap == "queue":  # nothing is older than the catch-up of an hour unless it waited so long
        gaps = {after - before for before, after in itertools.pairwise(made)}
        assert gaps <= {300_000} or sum(lengths) > 60


def test_the_count_of_left_out_times_is_bounded() -> None:
    schedule = RecurringSchedule("n", "t", Recurrence(every_s=1), "cancel-other", 30 * 86_400)
    found = next_occurrence(schedule, 0, 0, 10 * 86_400_000)
    assert found.nominal_ms == 10 * 86_400_000
    assert found.skipped == COUNTED_MAX


def test_jitter_depends_on_the_name_and_the_time_alone() -> None:
    rule = Recurrence(every_s=60)
    first = RecurringSchedule("a", "t", rule, jitter_s=30)
    moved = {first.action_ms(ms) - ms for ms in range(0, 6_000_000, 60_000)}
    assert len(moved) > 50
    assert min(moved) >= 0
    assert max(moved) <= 30_000
    again = RecurringSchedule("a", "other", rule, "queue", jitter_s=30)
    other = RecurringSchedule("b", "t", rule, jitter_s=30)
    assert again.action_ms(60_000) == first.action_ms(60_000)
    assert other.action_ms(60_000) != first.action_ms(60_000)


def test_a_definition_is_read_back_as_it_was_written() -> None:
    rule = Recurrence(cron="0 3 * * *", tz="Asia/Shanghai", gap="next", start_ms=0, end_ms=10**12)
    made = RecurringSchedule("n", "t", rule, "queue", 60, 5, '{"ä":1}', "shop")
    assert RecurringSchedule.from_json("n", "shop", made.to_json()) == made
    # Without a priority it is as before there were any: a change of a text replaces the schedule's job.
    assert "priority" not in made.to_json()
    first = replace(made, priority=9)
    assert RecurringSchedule.from_json("n", "shop", first.to_json()) == first


@pytest.mark.parametrize(
    "text",
    ["", "[]", "5", "{}", '{"biz_type":"t"}', '{"biz_type":"t","every_s":5,"x":1}', "[" * 9000],
)
def test_a_definition_that_cannot_be_read_says_so(text: str) -> None:
    with pytest.raises(InvalidInput):
        RecurringSchedule.from_json("n", None, text)


def test_the_attribute_of_an_unreadable_definition_is_not_shown() -> None:
    made = RecurringSchedule("n", "t", Recurrence(every_s=60), attribute='{"card":"4111"}')
    newer = made.to_json().replace("}", ',"moon_phase":1}')
    with pytest.raises(InvalidInput) as caught:
        RecurringSchedule.from_json("n", None, newer)
    assert "4111" not in f"{caught.value} {caught.value.value}"


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("name", {"name": ""}), ("name", {"name": "a b"}), ("name", {"name": "x" * 65}),
        ("biz_type", {"biz_type": "a b"}), ("overlap", {"overlap": "both"}),
        ("catch_up", {"catch_up_s": 9}), ("catch_up", {"catch_up_s": 31 * 86_400}),
        ("jitter", {"jitter_s": -1}), ("jitter", {"jitter_s": 1.5}), ("tenant", {"tenant": "a b"}),
        ("attribute", {"attribute": "x" * 65_000}),
    ],
)  # fmt: skip
def test_a_schedule_that_cannot_be_is_refused(field: str, values: dict[str, Any]) -> None:
    given_values = {"name": "n", "biz_type": "t", "recurrence": Recurrence(every_s=60)} | values
    with pytest.raises(InvalidInput) as caught:
        RecurringSchedule(**given_values)
    assert caught.value.field == field
