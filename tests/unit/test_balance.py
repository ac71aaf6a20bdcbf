"""How the tests are shared out among processes: tests/balance.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.balance import COMPUTING, COMPUTING_PARTS, SPARK_UNITS, places_of, unit_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(name for files in SPARK_UNITS.values() for name in files))
def test_each_file_that_is_named_is_there(name: str) -> None:
    assert (ROOT / name).is_file()


def test_a_small_file_is_a_unit_and_spark_files_are_two() -> None:
    small = "tests/unit/test_balance.py"
    assert {unit_of(f"{small}::test_a"), unit_of(f"{small}::test_b[1]")} == {small}
    units = {unit_of(f"{file}::test_a[1]") for files in SPARK_UNITS.values() for file in files}
    assert units == set(SPARK_UNITS)


def test_what_computes_is_spread_between_the_others() -> None:
    others = [f"tests/unit/test_not_there_{n}.py::test" for n in range(8)]
    computing = [f"{COMPUTING[0]}::test[{n}]" for n in range(200)]
    assert len({unit_of(each) for each in computing}) == COMPUTING_PARTS
    places = places_of([*computing, *others])
    assert [places[each] for each in others] == sorted(places[each] for each in others)
    middle = places[others[4]]
    assert 60 < sum(places[each] < middle for each in computing) < 140
