"""How a set is found: window by window, by the right index, and each row once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from tests.contract.library import Library
from toc.admin.where_condition import WhereCondition
from toc.domain.job import Status
from toc.errors import SchemaMismatch
from toc.store import bulk_update as sets_module
from toc.store.biz_types import read_known_types
from toc.store.bulk_update import BulkUpdate, RowWindow
from toc.store.claims import Outcome, OutcomeKind
from toc.store.row_conditions import AllOf, Condition, TruthValue, bounds_of_condition
from toc.store.schema import JOB, job_table_name

NOW_MS = 1_767_225_600_000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of three rows, lists of two ids."""
    monkeypatch.setattr(sets_module, "WINDOW_ROWS", 3)
    monkeypatch.setattr(sets_module, "IDS_MAX", 2)
    monkeypatch.setattr(sets_module, "DEAD_LETTERS_MAX", 3)


@pytest.fixture
def busy(library: Library) -> Library:
    """A good dozen jobs in each shard; several due at the same moment; in all states."""
    library.insert(*(library.new(n % 12, in_ms=1000 * (n // 6), key=f"{n}") for n in range(60)))
    for kind in (OutcomeKind.DONE, OutcomeKind.BURY, OutcomeKind.RETRY):
        ids = [job.job_id for job in library.insert(*(library.new(n) for n in range(8)))]
        library.claim(ids, "ended")
        assert len(library.settle(*(Outcome(job_id, "ended", kind) for job_id in ids))) == 8
    library.running("one", biz_id=5)
    return library


def parse(where: str) -> Condition:
    return WhereCondition(where).make_condition(NOW_MS)


def sets_of(library: Library, where: str, reach: str = "TRUE") -> BulkUpdate:
    return BulkUpdate(
        library.databases, read_known_types(library.databases).names, parse(where), parse(reach)
    )


def windows(library: Library, sets: BulkUpdate, where: str) -> Iterator[RowWindow]:
    for database in library.databases:
        yield from sets.split_into_windows(
            database, bounds_of_condition(parse(where)), lambda: None
        )


def found(library: Library, where: str) -> list[int]:
    sets = sets_of(library, where)
    return [
        job_id
        for window in windows(library, sets, where)
        for job_id in sorted(sets.find_changeable_jobs(window))
    ]


WHERES = {  # by which index
    "TRUE": "PRIMARY",
    "attempts = 0 OR status = 4": "PRIMARY",
    "status = 0": "ix_due",
    "status_name = 'running' AND attempts < 9": "ix_due",
    "due_time <= '2026-01-01 00:00:05'": "ix_due",
    "due_time > '2026-01-01 00:00:02' AND due_time < '2026-01-01 00:00:08'": "ix_due",
    "due_time = '2026-01-01 00:00:03'": "ix_due",
    "due_time IS NOT NULL AND shard = 2": "ix_due",
    "biz_id IN (1, 2, 3, 5, 7, 11, 99)": "uq_live",
    "biz_id = 7 AND status = 0": "uq_live",
    "status = 4": "PRIMARY",
    "status = 4 AND shard IN (1, 3)": "PRIMARY",
    "status = 4 AND biz_id = 3": "uq_live",
    "status = 0 AND status = 4": "PRIMARY",
    "shard = 7": "PRIMARY",
}


def test_small_windows_find_the_same(busy: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {where: found(busy, where) for where in WHERES}
    for name, size in (("WINDOW_ROWS", 3), ("IDS_MAX", 2), ("DEAD_LETTERS_MAX", 3)):
        monkeypatch.setattr(sets_module, name, size)
    again = {where: found(busy, where) for where in WHERES}
    assert {where: sorted(ids) for where, ids in again.items()} == {
        where: sorted(ids) for where, ids in expected.items()
    }
    assert [
        where for where, ids in again.items() if len(set(ids)) < len(ids)
    ] == []  # each row once


@pytest.mark.usefixtures("small")
def test_a_window_has_few_rows_and_its_index(busy: Library) -> None:
    sets = sets_of(busy, "TRUE")
    for where, key in WHERES.items():
        for window in windows(busy, sets, where):
            assert window.key == key, where
            if window.key != "uq_live":  # those of two business ids, however many they have
                assert len(sets.find_changeable_jobs(window)) <= 3, where


def test_the_walk_says_when_a_shard_is_done(busy: Library) -> None:
    passed: list[int] = []
    sets = sets_of(busy, "TRUE")
    for where, count in (("TRUE", 4), ("status = 0 AND shard IN (1, 2)", 2), ("biz_id = 1", 4)):
        passed.clear()
        list(
            sets.split_into_windows(
                busy.databases[0], bounds_of_condition(parse(where)), lambda: passed.append(1)
            )
        )
        assert len(passed) == count


@pytest.mark.usefixtures("small")
def test_jobs_that_come_behind_the_end_are_not_followed(library: Library) -> None:
    """A walk ends, though for each row that it reads two new ones are made."""
    for number in range(6):
        library.pending(42, in_ms=number)
    for where in ("TRUE", "status = 0"):
        sets = sets_of(library, where)
        for steps, _ in enumerate(windows(library, sets, where)):
            assert steps < 50
            library.clock.advance(0.001)
            for _ in range(6):
                library.pending(42, in_ms=3_600_000)


def test_a_tally_tells_types_states_and_reach_apart(busy: Library) -> None:
    sets = sets_of(busy, "biz_id < 100", "status = 0 AND due_time < '2026-01-01 00:00:05'")
    counts: dict[tuple[int, int], list[int]] = {}
    for window in windows(busy, sets, "TRUE"):
        for tally in sets.count_matching_jobs(window):
            count = counts.setdefault((tally.type_no, tally.status), [0, 0])
            count[0] += tally.matched
            count[1] += tally.changeable
            if tally.changeable:
                assert tally.example is not None
                assert busy.row(tally.example).status == Status.PENDING
            else:
                assert tally.example is None
    no = busy.close_no
    assert counts == {(no, 0): [68, 38], (no, 1): [1, 0], (no, 2): [8, 0], (no, 4): [8, 0]}


# ---- EXPLAIN


@contextmanager
def explained(library: Library) -> Iterator[list[dict[str, Any]]]:
    """How the server means to run each SELECT on a job table that is sent meanwhile."""
    plans: list[dict[str, Any]] = []
    asked: list[tuple[str, Any]] = []

    def note(
        connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        if statement.startswith("SELECT") and JOB.name not in statement and "toc_job_" in statement:
            asked.append((statement, parameters))

    database = library.databases[0]
    for engine in (database.engine, database.autocommit_engine):
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield plans
    finally:
        for engine in (database.engine, database.autocommit_engine):
            event.remove(engine, "before_cursor_execute", note)
    with database.engine.connect() as connection:
        for statement, parameters in asked:
            rows = connection.exec_driver_sql(
                f"EXPLAIN FORMAT=TRADITIONAL {statement}", parameters
            ).mappings()
            plans += [dict(row) for row in rows if str(row["table"]).startswith("toc_job_")]


def analyze(library: Library) -> None:
    """Fresh statistics: the servers' own come some time after the rows."""
    database = library.databases[0]
    with database.engine.connect() as connection:
        for shard in database.shards:
            connection.exec_driver_sql(f"ANALYZE TABLE {job_table_name(shard)}")


def test_the_server_uses_that_index(busy: Library) -> None:
    if busy.sqlite:
        pytest.skip("SQLite takes no hints; its shards are small")
    # Where nearly every row is wanted, a walk is the cheapest.
    busy.insert(*(busy.new(1000 + number, in_ms=60_000) for number in range(200)))
    analyze(busy)
    for where, key in WHERES.items():
        with explained(busy) as plans:
            sets = sets_of(busy, where)
            for window in windows(busy, sets, where):
                sets.count_matching_jobs(window)
                sets.find_changeable_jobs(window)
        assert {plan["key"] for plan in plans if plan["key"] is not None} <= {key, "PRIMARY"}, where
        on_index = [plan for plan in plans if plan["key"] == key]
        assert on_index or not found(busy, where), where
        walks = [plan for plan in plans if plan["type"] in ("ALL", "index") and plan["rows"] > 1]
        assert walks == [], where


# ---- what is wrong with a table


@pytest.mark.parametrize("where", ["TRUE", "status = 0", "biz_id < 9", "status = 4"])
def test_a_dropped_table_is_named(busy: Library, where: str) -> None:
    some_id = busy.new(0).job_id
    table = f"toc_job_{busy.shard(some_id):04d}"
    busy.sql(some_id, f"ALTER TABLE {table} RENAME TO away")
    try:
        with pytest.raises(SchemaMismatch, match=rf"^database 0, table {table}: .*{table}"):
            found(busy, where)
    finally:
        busy.sql(some_id, f"ALTER TABLE away RENAME TO {table}")


def test_a_dropped_column_is_named(busy: Library) -> None:
    some_id = busy.new(0).job_id
    table = f"toc_job_{busy.shard(some_id):04d}"
    busy.sql(some_id, f"ALTER TABLE {table} RENAME COLUMN claim_time TO away")
    try:
        with pytest.raises(SchemaMismatch, match=rf"^database 0, table {table}: .*claim_time"):
            found(busy, "claim_time IS NULL")
    finally:
        busy.sql(some_id, f"ALTER TABLE {table} RENAME COLUMN away TO claim_time")


def test_bounds_are_only_taken_from_what_must_hold() -> None:
    assert bounds_of_condition(
        AllOf((TruthValue(True), parse("status = 0 OR biz_id = 1")))
    ) == bounds_of_condition(TruthValue(True))
