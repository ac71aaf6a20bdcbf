"""What a node holds and since when, as text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toc.cluster.holdings import Holding, format_ranges, parse_holding, parse_ranges


@given(st.sets(st.integers(0, 1023)))
def test_ranges_there_and_back(numbers: set[int]) -> None:
    assert set(parse_ranges(format_ranges(numbers))) == numbers


def test_ranges_are_short() -> None:
    assert format_ranges([7, 0, 1, 2, 9, 8]) == "0-2,7-9"
    assert format_ranges([4]) == "4"
    assert format_ranges([]) == ""


def test_what_stays_keeps_its_time() -> None:
    holding = Holding()
    holding.hold([1, 2, 3], 100)
    holding.hold([2, 3, 4], 200)
    assert holding.as_text() == {"2-3": 100, "4": 200}
    holding.hold([1, 2], 300)  # 1 was given away in between
    assert parse_holding(holding.as_text()) == {1: 300, 2: 100}
