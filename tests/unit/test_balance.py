"""How the tests are shared out among processes: tests/balance.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.balance import SINGLE_FILES, SPARK_FILES, unit_of

ROOT = Path(__file__).parents[2]
SIMULATION = "tests/simulation/test_simulation.py"


@pytest.mark.parametrize("name", sorted(SINGLE_FILES | SPARK_FILES))
def test_each_file_that_is_named_is_there(name: str) -> None:
    assert (ROOT / name).is_file()


def test_tests_that_share_nothing_are_units_of_their_own() -> None:
    tests = [f"{SIMULATION}::test_a[1]", f"{SIMULATION}::test_a[2]", f"{SIMULATION}::test_b"]
    assert [unit_of(test) for test in tests] == tests


def test_a_small_file_is_a_unit_and_spark_is_one() -> None:
    small = "tests/unit/test_balance.py"
    assert {unit_of(f"{small}::test_a"), unit_of(f"{small}::test_b[1]")} == {small}
    assert len({unit_of(f"{file}::test_a") for file in SPARK_FILES}) == 1
