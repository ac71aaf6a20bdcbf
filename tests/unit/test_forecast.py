"""The arithmetic of the forecast, beside models that look at each job."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toc.dashboard.due_outlook import read_occurrences, shares_of_types
from toc.domain.due_grid import DAY_MS, DAYS, HOUR_MS, MINUTE_MS, make_grid, move_counts
from toc.domain.fluid_queue import (
    add_curves,
    counts_of,
    curve_of,
    most_late,
    serve,
    value_at,
    waits_between,
)
from toc.domain.forecast import TypeGate, make_forecast
from toc.store.recurring_rows import RecurringRow

NOW_MS = 1_790_000_123_456
times_ms = st.integers(1_700_000_000_000, 1_900_000_000_000)
counts_st = st.lists(st.integers(0, 25), min_size=1, max_size=8)
rates = st.sampled_from([0.002, 0.005, 0.01, 0.05])  # jobs a ms
SLICE_MS = 1000


def due_times(counts: list[int], before: int) -> list[float]:
    """When each job is due: those of a slice evenly, the last one at its end."""
    found = [0.0] * before
    for place, count in enumerate(counts):
        found += [(place + (n + 1) / count) * SLICE_MS for n in range(count)]
    return found


def serve_each(due: list[float], per_ms: float | None, closed_until_ms: float) -> list[float]:
    """When each job is done, one after the other."""
    done: list[float] = []
    for each in sorted(due):
        free = done[-1] + 1 / per_ms if done and per_ms is not None else 0.0
        done.append(max(each, closed_until_ms, free))
    return done


@given(counts_st, st.integers(0, 40), st.one_of(st.none(), rates), st.integers(0, 9000))
def test_the_fluid_is_done_when_single_jobs_are(
    counts: list[int], before: int, per_ms: float | None, closed_ms: int
) -> None:
    edges = [place * SLICE_MS for place in range(len(counts) + 1)]
    due = curve_of(edges, counts, before)
    done = serve(due, per_ms, closed_ms)
    assert all(low[0] <= high[0] and low[1] <= high[1] for low, high in pairwise(done))
    assert done[-1][1] == pytest.approx(before + sum(counts))
    each_due = due_times(counts, before)
    each_done = serve_each(each_due, per_ms, closed_ms)
    step_ms = 0.0 if per_ms is None else 1 / per_ms
    waits = waits_between(due, done)
    late = [end - begin for begin, end in zip(each_due, each_done, strict=True)]
    fluid = max((max(wait.begin_late_ms, wait.end_late_ms) for wait in waits), default=0.0)
    # A job's first part is due before the job itself, by up to a slice.
    assert fluid >= max(late, default=0.0) - step_ms - 1
    assert fluid <= max(late, default=0.0) + step_ms + SLICE_MS + 1
    for number, time in enumerate(each_done, 1):
        reached = [point for point in done if point[1] >= number - 0.01]
        assert reached[-1][0] >= time - 1
    for (begin, end), count in zip(pairwise(edges), counts_of(done, edges), strict=True):
        single = sum(begin < time <= end for time in each_done)
        assert abs(count - single) <= 2 or per_ms is None


@given(counts_st, counts_st, rates, rates, st.integers(0, 5000))
def test_a_limited_type_and_a_capacity_are_two_queues(
    limited: list[int], free: list[int], type_per_ms: float, per_ms: float, closed_ms: int
) -> None:
    length = max(len(limited), len(free))
    limited, free = (list(part) + [0] * (length - len(part)) for part in (limited, free))
    edges = [place * SLICE_MS for place in range(length + 1)]
    gates = {"a": TypeGate(type_per_ms * 1000, float(closed_ms))}
    found = make_forecast(edges, {"a": [0, *limited], "b": [0, *free]}, gates, per_ms * 1000)
    passed = serve_each(due_times(limited, 0), type_per_ms, closed_ms)
    done = serve_each(passed + due_times(free, 0), per_ms, 0)
    assert found.done[-1][1] == pytest.approx(sum(limited) + sum(free))
    slack_ms = 2 / type_per_ms + 2 / per_ms + SLICE_MS
    for number, time in enumerate(done, 1):
        assert value_at(found.done, time - slack_ms) - 1 <= number
        assert number <= value_at(found.done, time + slack_ms) + 1


@given(st.lists(counts_st, min_size=1, max_size=4))
def test_a_sum_of_curves_is_the_curve_of_the_sum(parts: list[list[int]]) -> None:
    length = max(map(len, parts))
    parts = [part + [0] * (length - len(part)) for part in parts]
    edges = [place * SLICE_MS for place in range(length + 1)]
    summed = add_curves([curve_of(edges, part, 1) for part in parts])
    wanted = [sum(numbers) for numbers in zip(*parts, strict=True)]
    assert counts_of(summed, edges) == pytest.approx(wanted)


def test_a_peak_above_the_capacity_is_told_beforehand() -> None:
    """5,400 a minute for half an hour, of which 3,000 can be done: 72,000 are left, for 24 minutes."""
    edges = [place * 60_000 for place in range(121)]
    counts = [0.0] + [1000.0] * 30 + [5400.0] * 30 + [1000.0] * 60
    found = make_forecast(edges, {"mail": counts}, {}, 50.0)
    late = found.late_period
    assert late is not None
    assert late.begin_ms == pytest.approx(30 * 60_000)
    assert late.due_per_min == pytest.approx(5400)
    assert late.worst_due_ms == pytest.approx(60 * 60_000)
    assert late.worst_late_ms == pytest.approx(24 * 60_000)
    assert late.worst_done_ms == pytest.approx(84 * 60_000)
    assert late.over_ms == pytest.approx(96 * 60_000)  # 2,000 fewer wait after each minute
    by_minute = [most_late(found.waits, begin, end) for begin, end in pairwise(edges)]
    assert by_minute[29] == 0
    assert by_minute[30] == pytest.approx(0.8 * 60_000)
    assert max(by_minute) == by_minute[59] == pytest.approx(24 * 60_000)
    assert by_minute[96:] == [0] * 24
    assert make_forecast(edges, {"mail": counts}, {}, 90.0).late_period is None
    assert not make_forecast(edges, {"mail": counts}, {}, None).waits


def test_jobs_that_wait_already_and_pauses() -> None:
    edges = [place * 60_000 for place in range(61)]
    counts = [6000.0] + [0.0] * 60
    late = make_forecast(edges, {"mail": counts}, {}, 10.0).late_period
    assert late is not None
    assert (late.due_per_min, late.jobs) == (inf, 6000)
    assert late.worst_late_ms == pytest.approx(600_000)
    paused = make_forecast(
        edges, {"mail": [0.0] + [60.0] * 60, "sms": [5.0] * 61},
        {"mail": TypeGate(None, 600_000.0), "sms": TypeGate(None, inf)}, None,
    )  # fmt: skip
    assert paused.held == {"sms": 305.0}
    (mail,) = paused.late_types.values()
    assert mail.worst_late_ms == pytest.approx(600_000)
    assert mail.over_ms == pytest.approx(600_000)


@given(times_ms)
def test_a_grid_has_whole_minutes_hours_and_days(now_ms: int) -> None:
    grid = make_grid(now_ms)
    lengths = [end - begin for begin, end in pairwise(grid.edges_ms)]
    assert set(lengths) == {MINUTE_MS, HOUR_MS, DAY_MS}
    assert lengths == sorted(lengths)
    assert len(lengths) <= 200
    for begin, length in zip(grid.edges_ms, lengths, strict=False):
        assert begin % length == 0
        assert grid.slice_of(begin) == bisect_right(grid.edges_ms, begin)
    assert grid.begin_ms <= now_ms < grid.begin_ms + MINUTE_MS
    assert grid.hours_ms >= grid.begin_ms + HOUR_MS
    assert grid.days_ms >= grid.begin_ms + DAY_MS
    assert grid.end_ms >= grid.begin_ms + DAYS * DAY_MS
    assert [grid.region_of(place) for place in (0, 1, len(lengths))] == [0, 1, 3]


@given(
    st.lists(st.integers(0, 60), min_size=2, max_size=9, unique=True).map(sorted),
    st.lists(st.integers(0, 60), min_size=2, max_size=9, unique=True).map(sorted),
    st.data(),
)
def test_counts_move_with_the_time_that_slices_share(
    edges: list[int], wanted: list[int], data: st.DataObject
) -> None:
    counts = [data.draw(st.integers(0, 100)) for _ in edges[1:]]
    density = [0.0] * 60
    for (begin, end), count in zip(pairwise(edges), counts, strict=True):
        for unit in range(begin, end):
            density[unit] = count / (end - begin)
    moved = move_counts(edges, counts, wanted)
    assert moved == pytest.approx([sum(density[begin:end]) for begin, end in pairwise(wanted)])


def test_shares_are_exact_where_all_rows_were_sampled_and_lean_elsewhere() -> None:
    grid = make_grid(NOW_MS)
    counts = [0.0] * len(grid.edges_ms)
    counts[1], counts[2], counts[3] = 4, 1000, 500
    a, b = ("a", None), ("b", "acme")
    samples = {1: Counter({a: 1, b: 3}), 2: Counter({a: 60, b: 20})}
    found = shares_of_types(grid, counts, samples)
    assert (found[a][1], found[b][1]) == (1, 3)
    assert found[a][2] == pytest.approx(750, abs=5)
    assert found[a][3] == pytest.approx(375, abs=5)  # no sample: as the other minutes
    for place, count in enumerate(counts):
        assert sum(numbers[place] for numbers in found.values()) == pytest.approx(count)
    assert shares_of_types(grid, [5.0, *counts[1:]], {})[("?", None)][0] == 5


def make_row(
    name: str, definition: dict[str, object], cursor_ms: int, paused_ms: int | None = None
) -> RecurringRow:
    text = json.dumps(definition)
    return RecurringRow(
        None, name, 1, text, 1, cursor_ms, None, None, 0, 0, paused_ms, "ann", None
    )  # fmt: skip


def test_occurrences_of_schedules_are_added_up_to_a_bound() -> None:
    grid = make_grid(NOW_MS)
    rows = [
        make_row(
            "hourly", {"biz_type": "mail", "every_s": 3600}, cursor_ms=grid.begin_ms + 2 * HOUR_MS
        ),
        make_row("often", {"biz_type": "sms", "every_s": 10}, cursor_ms=0),
        make_row("paused", {"biz_type": "fax", "every_s": 10}, cursor_ms=0, paused_ms=1),
        make_row("newer", {"biz_type": "fax", "wrong": 1}, cursor_ms=0),
    ]
    found = read_occurrences(rows, grid)
    assert found.left_out == 1
    assert set(found.by_owner) == {("mail", None), ("sms", None)}
    length_s = (grid.end_ms - grid.begin_ms) / 1000
    assert sum(found.by_owner["mail", None]) == length_s // 3600 - 2  # two are decided already
    often = found.by_owner["sms", None]
    assert sum(often) == pytest.approx(length_s / 10, rel=0.001)
    assert often[1:61] == [6] * 60  # by the rule; the later ones are estimated
    assert often[-1] == pytest.approx(8640, rel=0.01)
