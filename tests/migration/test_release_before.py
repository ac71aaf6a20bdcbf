"""What the release before says to the database still works on the newest schema (expand, then deploy).

Its statements were recorded from its own tests; `recorder.py` says how. They are run here one by one, and
each must find a row to change, to delete or to insert.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tests.migration.conftest import RAW, databases_of, settings_of
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.databases import Databases

RECORDED = {
    path.stem.removeprefix("release_"): json.loads(path.read_text())
    for path in sorted(Path(__file__).parent.glob("release_*.json"))
}
TABLE = "toc_job_0000"

# Whatever a statement asks for: a row in some state, taken by some token of the recorded tests.
STATES = list(itertools.product(range(5), (None, "one", "two", "ended"), (1, 0)))


@pytest.fixture
def head(settings: Settings) -> Iterator[Databases]:
    migrate.upgrade(settings)
    with databases_of(settings) as databases:
        yield databases


def records(databases: Databases, release: str) -> list[dict[str, Any]]:
    dialect = databases[0].engine.dialect
    with databases[0].engine.connect():  # only a connection knows that it is MariaDB
        name = "mariadb" if getattr(dialect, "is_mariadb", False) else dialect.name
    return [record for record in RECORDED[release] if record["dialect"] == name]


def execute(connection: Connection, record: dict[str, Any]) -> Any:
    values = record["values"]
    if isinstance(values, list):
        many = bool(values) and isinstance(values[0], list | dict)
        values = [tuple(v) if isinstance(v, list) else v for v in values] if many else tuple(values)
    return connection.exec_driver_sql(record["statement"].replace("toc_job_#", TABLE), values)


def job_ids(record: dict[str, Any]) -> set[int]:
    values = record["values"]
    flat = values.values() if isinstance(values, dict) else values
    return {value for value in flat if isinstance(value, int) and value > 2**40}


def put(connection: Connection, job_id: int, status: int, worker: str | None, type_no: int) -> None:
    token = "NULL" if worker is None else f"'{worker}'"
    connection.exec_driver_sql(
        f"INSERT INTO {TABLE} (job_id, biz_id, biz_type, status, action_time, due_time, attempts, worker) "
        f"VALUES ({job_id}, 42, {type_no}, {status}, '2024-01-01', '2024-01-01', 3, {token})",
        execution_options=RAW,
    )
    connection.exec_driver_sql(
        "INSERT INTO toc_dead_job (job_id, biz_id, biz_type, attempts, error, dead_time) "
        f"VALUES ({job_id}, 42, 1, 3, 'it failed', '2024-01-01')",
        execution_options=RAW,
    )


def finds_a_row(databases: Databases, record: dict[str, Any]) -> bool:
    """Whether there is a state of the jobs it names in which it changes something."""
    for status, worker, type_no in STATES:
        with databases[0].engine.connect() as connection:
            for job_id in job_ids(record):
                put(connection, job_id, status, worker, type_no)
            changed = execute(connection, record).rowcount
            connection.rollback()
        if changed:
            return True
    return False


@pytest.mark.parametrize("release", RECORDED)
def test_every_statement_runs(head: Databases, release: str) -> None:
    recorded = records(head, release)
    assert len(recorded) > 35
    for record in recorded:
        with head[0].engine.connect() as connection:
            execute(connection, record)
            connection.rollback()


@pytest.mark.parametrize("release", RECORDED)
def test_every_change_changes_something(head: Databases, release: str) -> None:
    recorded = records(head, release)
    changes = [r for r in recorded if r["statement"].startswith(("UPDATE", "DELETE"))]
    assert len(changes) > 12
    assert [r["statement"] for r in changes if not finds_a_row(head, r)] == []


@pytest.mark.parametrize("release", RECORDED)
def test_what_it_inserts_is_whole(head: Databases, release: str) -> None:
    """A row of the release before has no claim_time; everything else is as it was."""
    (insert,) = [
        r for r in records(head, release) if r["statement"].startswith("INSERT INTO toc_job_#")
    ]
    with head[0].engine.connect() as connection:
        assert execute(connection, insert).rowcount == 1
        row = connection.exec_driver_sql(
            f"SELECT job_id, biz_id, status, attempts, claim_time, gmt_create FROM {TABLE}"
        ).one()
        connection.rollback()
    assert row[:5] == (insert["values"][0], insert["values"][1], 0, 0, None)
    assert row[5] is not None


def test_a_schema_that_does_not_fit_is_seen(tmp_path: Path) -> None:
    """This test can fail: without a column that the release before names, its statements do not run."""
    url = f"sqlite:///{tmp_path}/toc.db"
    settings = settings_of(url)
    migrate.upgrade(settings, to="0002")
    with databases_of(settings) as databases:
        with databases[0].engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {TABLE} RENAME COLUMN attempts TO tries")
        broken = [record for record in records(databases, "0001") if not runs(databases, record)]
    assert len(broken) > 10
    assert all("attempts" in record["statement"] for record in broken)


def runs(databases: Databases, record: dict[str, Any]) -> bool:
    with databases[0].engine.connect() as connection:
        try:
            execute(connection, record)
        except DBAPIError:
            return False
        finally:
            connection.rollback()
    return True
