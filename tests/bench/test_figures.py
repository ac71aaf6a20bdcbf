"""Percentiles, spreads and pictures."""

import pytest

from toc.bench.statistics import (
    Spread,
    compute_spread,
    count_by_bucket,
    draw_histogram,
    draw_sparkline,
    percentile,
)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1), (1, 1), (50, 50), (50.5, 51), (99, 99), (100, 100)]
)
def test_a_percentile_is_a_measured_value(percent: float, expected: float) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == expected


def test_one_value_is_every_percentile() -> None:
    assert [percentile([7.5], percent) for percent in (0, 50, 99, 100)] == [7.5] * 4


def test_a_spread_has_the_median_in_the_middle() -> None:
    assert compute_spread([3, 1, 2]) == Spread(1, 2, 3)
    assert compute_spread([4, 1]) == Spread(1, 2.5, 4)


@pytest.mark.parametrize("call", [compute_spread, lambda values: percentile(values, 50)])
def test_nothing_measured_has_no_figure(call: type) -> None:
    with pytest.raises(ValueError, match="at least one value"):
        call([])


def test_an_edge_belongs_to_the_bucket_below_it() -> None:
    assert count_by_bucket([-1, 1, 1.1, 2, 9], (1, 2, 5)) == [2, 2, 0, 1]


def test_a_histogram_shows_what_holds_something_and_what_lies_between() -> None:
    lines = draw_histogram([1.5] * 1000 + [7], (1, 2, 5, 10), width=10)
    assert [line.split() for line in lines] == [
        ["<=", "2", "ms", "1,000", "█" * 10],
        ["<=", "5", "ms", "0"],
        ["<=", "10", "ms", "1", "█"],  # one in a thousand is still to be seen
    ]


def test_what_is_above_the_last_edge_has_its_own_line() -> None:
    assert [line.split()[:3] for line in draw_histogram([99], (1, 2))] == [[">", "2", "ms"]]


def test_nothing_has_no_histogram() -> None:
    assert draw_histogram([]) == []


def test_a_sparkline_is_as_high_as_its_values() -> None:
    assert draw_sparkline([0, 1, 4, 8]) == " ▁▄█"
    assert draw_sparkline([0, 0]) == "  "
    assert draw_sparkline([]) == ""
