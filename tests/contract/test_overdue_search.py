"""Checks for overdue rows behind the rows of paused types: what they find, and how many rows they read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection

from tests.contract.library import Library
from toc.scanner import overdue_search as module
from toc.scanner.overdue_search import BEGINNING, OverdueSearch
from toc.store.databases import Database

STEP = 50
PAUSED = 12 * STEP
CALLS_MAX = PAUSED // STEP + 2


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_READ_MAX", STEP)


@pytest.fixture(params=[1, 0], ids=["due one after the other", "due at one time"])
def shard(request: pytest.FixtureRequest, library: Library) -> int:
    """A shard with many overdue rows of a type that is left out."""
    jobs = [
        library.new(42, -1 - n * request.param, type_no=library.report_no) for n in range(PAUSED)
    ]
    library.insert(*jobs)
    return library.shard(jobs[0].job_id)


def find(search: OverdueSearch, library: Library, shard: int) -> dict[int, tuple[int, int]]:
    """What the search finds, when it has read all rows or found one."""
    for _ in range(CALLS_MAX):
        found = search.find_overdue_shards({shard: 0}, [library.report_no])
        if found or not search.is_behind:
            return found
    raise AssertionError("the search comes to no end")


def ids_after(library: Library, found: dict[int, tuple[int, int]]) -> list[int]:
    ((shard, after),) = found.items()
    rows = library.pages.read_overdue_rows(shard, after, 0, [library.close_no], 10)
    return [row.job_id for row in rows]


def test_a_row_behind_many_paused_rows_is_found(library: Library, shard: int) -> None:
    search = OverdueSearch(library.pages)
    assert find(search, library, shard) == {}
    job_id = library.pending(42)
    found = find(search, library, shard)
    assert ids_after(library, found) == [job_id]
    assert found[shard] > BEGINNING


def test_a_row_before_the_passed_rows_is_found_later(library: Library, shard: int) -> None:
    search = OverdueSearch(library.pages)
    assert find(search, library, shard) == {}
    early = library.pending(42, in_ms=-PAUSED // 2)
    for _ in range(CALLS_MAX):
        found = search.find_overdue_shards({shard: 0}, [library.report_no])
        if found:
            break
    assert ids_after(library, found) == [early]
    library.jobs.cancel(early)
    first = library.pending(42, in_ms=-2 * PAUSED)  # the second check begins anew
    for _ in range(CALLS_MAX):
        found = search.find_overdue_shards({shard: 0}, [library.report_no])
        if found:
            break
    assert ids_after(library, found) == [first]


def test_a_few_passed_rows_in_each_shard_are_checked_in_one_call(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = library.databases[0].shards
    monkeypatch.setattr(module, "ROWS_READ_MAX", len(shards) * STEP)
    of_shard = {library.shard(library.new(biz_id).job_id): biz_id for biz_id in range(50)}
    businesses = {shard: of_shard[shard] for shard in shards}
    library.insert(
        *(
            library.new(biz_id, -1 - n, type_no=library.report_no)
            for biz_id in businesses.values()
            for n in range(STEP)
        )
    )
    search = OverdueSearch(library.pages)
    grace_ms = dict.fromkeys(shards, 0)
    assert search.find_overdue_shards(grace_ms, [library.report_no]) == {}
    assert search.is_behind
    assert search.find_overdue_shards(grace_ms, [library.report_no]) == {}
    assert not search.is_behind
    for biz_id in businesses.values():
        library.pending(biz_id, in_ms=-PAUSED)
    found = search.find_overdue_shards(grace_ms, [library.report_no])
    assert found == dict.fromkeys(shards, BEGINNING)


def test_rows_of_a_type_that_is_resumed_are_found(library: Library, shard: int) -> None:
    search = OverdueSearch(library.pages)
    assert find(search, library, shard) == {}
    # Another type is paused instead: the rows that were passed are wanted now.
    assert search.find_overdue_shards({shard: 0}, [library.close_no]) == {shard: BEGINNING}
    assert find(search, library, shard) == {}
    assert search.find_overdue_shards({shard: 0}, ()) == {shard: BEGINNING}


def test_a_check_reads_a_few_steps_of_rows(
    library: Library, shard: int, request: pytest.FixtureRequest
) -> None:
    if library.sqlite:
        pytest.skip("SQLite does not count the rows that a statement has read")
    search = OverdueSearch(library.pages)
    database = library.databases.database_of_shard(shard)
    are_times_different = request.node.callspec.params["shard"] == 1
    if are_times_different and not getattr(database.engine.dialect, "is_mariadb", False):
        pytest.skip("of a table with few rows MySQL sometimes reads the index from its beginning")
    with rows_read(database) as read:
        assert find(search, library, shard) == {}
        walked = len(read)
        assert max(read) < 3 * STEP
        # All has been passed: from now on each check reads a few steps.
        assert search.find_overdue_shards({shard: 0}, [library.report_no]) == {}
        assert sum(read[walked:]) < 6 * STEP < PAUSED
        job_id = library.pending(42)
        found = search.find_overdue_shards({shard: 0}, [library.report_no])
    assert ids_after(library, found) == [job_id]


@contextmanager
def rows_read(database: Database) -> Iterator[list[int]]:
    """How many rows each read has read."""
    read: list[int] = []
    run_read = database.run_read

    def counted(work: Callable[[Connection], Any]) -> Any:
        def work_and_count(connection: Connection) -> Any:
            before = _handler_reads(connection)
            result = work(connection)
            read.append(_handler_reads(connection) - before)
            return result

        return run_read(work_and_count)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "run_read", counted)
        yield read


def _handler_reads(connection: Connection) -> int:
    """Rows that this connection has read by an index. (SHOW itself reads rows in another way.)"""
    query = (
        "SHOW SESSION STATUS WHERE Variable_name IN "
        "('Handler_read_first', 'Handler_read_key', 'Handler_read_next', 'Handler_read_prev')"
    )
    return sum(int(value) for _, value in connection.exec_driver_sql(query))
