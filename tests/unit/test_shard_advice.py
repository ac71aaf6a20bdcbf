"""How many shards and databases `toc bench` advises."""

from __future__ import annotations

import pytest

from toc.bench.advice import ROWS_PER_TABLE_MAX, advise_shards


@pytest.mark.parametrize(
    ("rows", "databases", "shards"),
    [
        (1, 1, 8),
        (8 * ROWS_PER_TABLE_MAX, 1, 8),
        (8 * ROWS_PER_TABLE_MAX + 1, 1, 16),
        (1, 3, 32),  # a power of two
        (10_000_000_000, 64, 512),
    ],
)
def test_shards_follow_rows_and_databases(rows: int, databases: int, shards: int) -> None:
    (line,) = advise_shards(rows, 300, databases)
    assert f"you need {shards:,} shards" in line


@pytest.mark.parametrize(("rate", "databases"), [(300, 1), (10_000, 1), (10_001, 2), (90_000, 16)])
def test_databases_follow_half_of_what_one_ran(rate: float, databases: int) -> None:
    _, line = advise_shards(1000, rate, 1, 20_000)
    assert f"you need {databases} database" in line
