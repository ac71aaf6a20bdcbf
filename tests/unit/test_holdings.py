"""What a node holds and since when, as text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toc.cluster.ownership_times import (
    OwnershipTimes,
    format_number_ranges,
    parse_number_ranges,
    parse_ownership_times,
)


@given(st.sets(st.integers(0, 1023)))
def test_ranges_there_and_back(numbers: set[int]) -> None:
    assert set(parse_number_ranges(format_number_ranges(numbers))) == numbers


def test_ranges_are_short() -> None:
    assert format_number_ranges([7, 0, 1, 2, 9, 8]) == "0-2,7-9"
    assert format_number_ranges([4]) == "4"
    assert format_number_ranges([]) == ""


def test_what_stays_keeps_its_time() -> None:
    holding = OwnershipTimes()
    holding.set_owned([1, 2, 3], 100)
    holding.set_owned([2, 3, 4], 200)
    assert holding.as_time_by_range() == {"2-3": 100, "4": 200}
    holding.set_owned([1, 2], 300)  # 1 was given away in between
    assert parse_ownership_times(holding.as_time_by_range()) == {1: 300, 2: 100}
