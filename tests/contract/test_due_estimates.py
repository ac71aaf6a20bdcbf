"""Estimates of what is due, by every engine, beside counting."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from tests.contract.library import Library
from toc.domain.due_grid import DAY_MS, HOUR_MS, DueGrid, make_grid
from toc.domain.ids import lowest_id_at
from toc.errors import SchemaMismatch
from toc.store.column_types import sql_time_of_ms
from toc.store.due_estimates import (
    PARTS_MAX,
    PROBE_ROWS,
    PROBES_MAX,
    RANGES_PER_QUERY_MAX,
    SAMPLED_MAX,
    DueEstimate,
    DueEstimator,
    _entries_of_estimate,
)
from toc.store.schema import job_table_name

SHARD, LIVE, ENDED = 2, 20_000, 2000
Wanted = dict[int, Counter[int]]


def fill(library: Library, grid: DueGrid, live: int, ended: int) -> Wanted:
    """Live rows, whose types depend on their time; returns them by slice.

    Half of them are due on one day, which has too many to be counted; of the others more are due soon.
    """
    rng = random.Random(5)  # noqa: S311 - a test
    wanted: Wanted = {}
    rows = []
    for n in range(live):
        due_ms = grid.begin_ms + round(DAY_MS * 31 * rng.random() ** 4) - HOUR_MS // 2
        if n % 2 and live == LIVE:
            due_ms = grid.days_ms + 9 * DAY_MS + rng.randrange(DAY_MS)
        is_soon = due_ms < grid.hours_ms
        type_no = 1 if rng.random() < (0.8 if is_soon else 0.3) else 2
        if due_ms < grid.end_ms:
            wanted.setdefault(grid.slice_of(due_ms), Counter())[type_no] += 1
        rows.append(row_of(library, n, due_ms, type_no, 0))
    rows += [row_of(library, live + n, None, 1, 2) for n in range(ended)]
    names, mark = ", ".join(rows[0]), "?" if library.sqlite else "%s"
    sql = (
        f"INSERT INTO {job_table_name(SHARD)} ({names}) VALUES ({', '.join([mark] * len(rows[0]))})"
    )
    with library.databases[0].engine.begin() as connection:
        connection.exec_driver_sql(sql, [tuple(row.values()) for row in rows])
    if not library.sqlite:
        with library.databases[0].engine.begin() as connection:
            connection.exec_driver_sql(f"ANALYZE TABLE {job_table_name(SHARD)}")
    return wanted


def row_of(
    library: Library, n: int, due_ms: int | None, type_no: int, status: int
) -> dict[str, Any]:
    time = sql_time_of_ms(library.now_ms if due_ms is None else due_ms)
    return {
        "job_id": lowest_id_at(library.now_ms) + n, "biz_id": n, "type_no": type_no, "status": status,
        "action_time": time, "due_time": None if due_ms is None else time,
    }  # fmt: skip


@contextmanager
def statements_of(library: Library) -> Iterator[list[str]]:
    found: list[str] = []

    def record(*call: Any) -> None:
        found.append(call[2])

    engine = library.databases[0].autocommit_engine
    event.listen(engine, "before_cursor_execute", record)
    try:
        yield found
    finally:
        event.remove(engine, "before_cursor_execute", record)


def totals(found: DueEstimate) -> dict[int, float]:
    return {place: count for place, count in enumerate(found.counts) if count}


def test_few_rows_are_counted_and_many_are_estimated(library: Library) -> None:
    if not (library.packets or library.sqlite):
        pytest.skip("the proxy changes nothing here")
    grid = make_grid(library.now_ms)
    wanted = fill(library, grid, LIVE, ENDED)
    sums = {place: rows.total() for place, rows in wanted.items()}

    # A bound above the number of rows: every engine counts.
    exact = DueEstimator(library.databases, scanned_max=LIVE + 1).estimate_due(SHARD, grid)
    assert totals(exact) == sums
    assert exact.counted == sum(sums.values())
    check_samples(exact, wanted, grid)

    # The usual bound, which SQLite does not reach.
    with statements_of(library) as statements:
        usual = DueEstimator(library.databases).estimate_due(SHARD, grid)
    assert sum(usual.counts) == pytest.approx(sum(sums.values()), rel=0.2)
    assert usual.known_ms == grid.end_ms
    check_samples(usual, wanted, grid)
    if library.sqlite:
        assert totals(usual) == sums
        assert len(statements) == 2
        return
    assert usual.counted == 10_000
    assert len(statements) <= 5 + (len(grid.edges_ms) + PARTS_MAX) // RANGES_PER_QUERY_MAX
    up_to, cut = 0, 0
    while up_to + sums.get(cut, 0) < usual.counted:
        up_to += sums.get(cut, 0)
        cut += 1
    assert list(usual.counts[:cut]) == [sums.get(place, 0) for place in range(cut)]
    for place in range(cut, len(usual.counts)):
        assert usual.counts[place] == pytest.approx(sums.get(place, 0), rel=0.35, abs=5)

    # Nearly everything is estimated.
    rough = DueEstimator(library.databases, scanned_max=50).estimate_due(SHARD, grid, turn=1)
    assert sum(rough.counts) == pytest.approx(sum(sums.values()), rel=0.2)
    probed = sum(rows.total() for place, rows in rough.samples.items() if place)
    assert 0 < probed <= PROBES_MAX * PROBE_ROWS + SAMPLED_MAX


def check_samples(found: DueEstimate, wanted: Wanted, grid: DueGrid) -> None:
    """The shares of the types in each region are about those of the sampled rows."""
    shares: dict[int, Counter[int]] = {}
    truth: dict[int, Counter[int]] = {}
    for place, rows in found.samples.items():
        for (type_no, tenant), number in rows.items():
            assert tenant is None
            assert wanted[place][type_no]
            shares.setdefault(grid.region_of(place), Counter())[type_no] += number
    for place, numbers in wanted.items():
        truth.setdefault(grid.region_of(place), Counter()).update(numbers)
    assert set(shares) == set(truth)
    for region, rows in shares.items():
        assert rows.total() <= 2 * SAMPLED_MAX + PROBES_MAX * PROBE_ROWS
        share, true = rows[1] / rows.total(), truth[region][1] / truth[region].total()
        assert share == pytest.approx(true, abs=0.2)


def test_an_empty_shard_and_one_with_few_rows(library: Library) -> None:
    grid = make_grid(library.now_ms)
    estimator = DueEstimator(library.databases)
    assert totals(estimator.estimate_due(1, grid)) == {}
    wanted = fill(library, grid, 30, 5)
    found = estimator.estimate_due(SHARD, grid)
    # All rows are sampled: the types are exact, too.
    assert {
        place: Counter({type_no: number for (type_no, _), number in rows.items()})
        for place, rows in found.samples.items()
    } == wanted


def test_what_sqlite_cannot_count_is_not_known(library: Library) -> None:
    if not library.sqlite:
        pytest.skip("the other engines estimate it")
    grid = make_grid(library.now_ms)
    wanted = fill(library, grid, 300, 0)
    found = DueEstimator(library.databases, scanned_max=100).estimate_due(SHARD, grid)
    assert found.counted == 100
    assert grid.begin_ms <= found.known_ms < grid.end_ms
    for place in range(grid.slice_of(found.known_ms)):
        assert found.counts[place] == wanted.get(place, Counter()).total()


def test_a_missing_table_is_named(library: Library) -> None:
    database = library.databases[0]
    name, other = job_table_name(3), "toc_job_away"
    with database.engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {name} RENAME TO {other}")
    try:
        with pytest.raises(SchemaMismatch, match=name):
            DueEstimator(library.databases).estimate_due(3, make_grid(library.now_ms))
    finally:
        with database.engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {other} RENAME TO {name}")


def test_an_estimate_that_innodb_has_doubled_is_halved() -> None:
    assert [_entries_of_estimate(rows) for rows in (0, 1, 2, 7400, 20_000)] == [
        0,
        0,
        2,
        7400,
        10_000,
    ]
