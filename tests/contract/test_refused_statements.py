"""A server that refuses a statement answers: the error says so, and nobody takes the server for away."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.engines import library_on
from tests.contract.library import Library
from toc.domain.ids import routing_bits_of
from toc.domain.job import NewJob
from toc.errors import StatementFailed, is_away


@pytest.fixture(params=["mariadb", "mysql"])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Library]:
    """A library whose tables a test may change."""
    with library_on(request.param, request, tmp_path) as library:
        yield library


def alter(library: Library, *statements: str) -> None:
    for statement in statements:
        library.databases[0].run_transaction(lambda c, sql=statement: c.exec_driver_sql(sql))  # type: ignore[misc]


def table_of(library: Library, job: NewJob) -> str:
    return f"toc_job_{library.settings.routing.shard_of_hash(routing_bits_of(job.job_id)):04d}"


REFUSED = {
    "a column without a default": (
        ["ALTER TABLE {table} ADD COLUMN customer INT NOT NULL"],
        1364,
        "customer",
    ),
    "a trigger": (
        ["CREATE TRIGGER toc_no BEFORE INSERT ON {table} FOR EACH ROW SIGNAL SQLSTATE '45000'"],
        1644,
        "user-defined exception",
    ),
    "a unique key": (["ALTER TABLE {table} ADD UNIQUE KEY one (type_no)"], 1062, "one"),
    "a missing table": (["DROP TABLE {table}"], 1146, "exist"),
}


@pytest.mark.parametrize("packets", [True, False], ids=["packets", "one by one"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_statement_that_is_refused(own: Library, name: str, packets: bool) -> None:
    own.databases[0]._supports_packets &= packets
    first, second = own.new(), own.new(attribute='{"card": "4111-1111"}')
    table = table_of(own, first)
    changes, number, word = REFUSED[name]
    if "missing" not in name:
        own.insert(first)
    alter(own, *(change.format(table=table) for change in changes))
    with pytest.raises(StatementFailed, match=word) as caught:
        own.insert(second)
    error = caught.value
    assert (error.database, error.table, error.number) == (0, table, number)
    assert f"database 0, table {table}" in str(error)
    assert "does not answer" not in str(error)
    assert "\n" not in str(error)
    assert not error.retryable
    assert not is_away(error)
    shown = "".join(traceback.format_exception(error))
    assert "INSERT" in shown
    assert "4111" not in shown
    assert str(second.job_id) not in shown


def test_a_check_that_a_claim_breaks(own: Library) -> None:
    job = own.new()
    own.insert(job)
    table = table_of(own, job)
    alter(own, f"ALTER TABLE {table} ADD CONSTRAINT mine CHECK (status <> 1)")
    shard = own.settings.routing.shard_of_hash(routing_bits_of(job.job_id))
    with pytest.raises(StatementFailed, match="mine") as caught:
        own.claims.claim_jobs(own.databases[0], {shard: [job.job_id]},
                         "token", own.now_ms)  # fmt: skip
    assert caught.value.number in (3819, 4025)
    assert caught.value.table == table


def test_on_sqlite_too(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with library_on("sqlite", request, tmp_path) as library:
        job = library.new()
        table = table_of(library, job)
        alter(library, "DROP VIEW toc_jobs", f"DROP TABLE {table}")
        with pytest.raises(StatementFailed, match=f"no such table: {table}") as caught:
            library.insert(job)
        assert (caught.value.table, caught.value.number) == (table, None)
