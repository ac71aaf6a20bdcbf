"""The views: what they show is what `store/views.py` says, and a question for one order reads few rows."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Engine, inspect
from sqlalchemy.exc import DBAPIError

from tests.migration.conftest import RAW, SHARDS, engine_of, run, scalar, settings_of
from tests.servers.fixtures import _database as temporary_database
from toc.runtime.settings import Settings
from toc.store import migrate, views
from toc.store.schema_steps import MakeView

MANY = 128  # shards in one database
ROWS = 20  # in each


def made_views(settings: Settings) -> dict[str, MakeView]:
    target = migrate.schema_target(settings, 0)
    steps = [step for revision in migrate.revisions() for step in revision.steps(target)]
    return {step.table: step for step in steps if isinstance(step, MakeView)}


def test_the_columns_are_those_that_are_promised(settings: Settings, engine: Engine) -> None:
    migrate.upgrade(settings)
    found = inspect(engine)
    for name, columns in views.COLUMNS.items():
        assert tuple(column["name"] for column in found.get_columns(name)) == columns
    assert {name: tuple(v.columns) for name, v in made_views(settings).items()} == views.COLUMNS


def test_the_frozen_text_is_that_of_today(settings: Settings) -> None:
    """A change of `store/views.py` needs a revision of its own; then this compares that one."""
    sqlite = migrate.schema_target(settings, 0).sqlite
    made = made_views(settings)
    parts = made[views.JOBS].select.split("\nUNION ALL ")
    assert parts == [views.jobs_of_shard(shard, sqlite=sqlite) for shard in range(SHARDS)]
    assert made[views.DEAD_JOBS].select == views.DEAD_JOBS_SELECT
    assert made[views.EVENTS].select == views.EVENTS_SELECT
    assert made[views.PURGES].select == views.PURGES_SELECT


def test_names_stand_beside_the_numbers(settings: Settings, engine: Engine, url: str) -> None:
    migrate.upgrade(settings)
    run(
        url,
        "INSERT INTO toc_biz_type (type_no, name) VALUES (7, 'order.close')",
        "INSERT INTO toc_job_0001 (job_id, biz_id, biz_type, status, action_time, claim_time) VALUES "
        "(11, 42, 7, 2, '2030-01-01 00:00:00.000', '2030-01-01 00:00:01.250'), "
        "(12, 43, 8, 4, '2030-01-01 00:00:00.000', NULL)",
        "INSERT INTO toc_dead_job (job_id, biz_id, biz_type, attempts, error, dead_time) VALUES "
        "(12, 43, 7, 3, 'no way', '2030-01-01 00:00:02.000')",
        "INSERT INTO toc_event (job_id, what, from_status, to_status, attempts, actor) VALUES "
        "(12, 'bury', 1, 4, 3, 'somebody')",
        "INSERT INTO toc_purge (day, biz_type, status, jobs, first_id, last_id) VALUES "
        "('2030-01-02', 7, 3, 1200, 1, 11)",
    )
    with engine.connect() as connection:

        def asked(sql: str) -> list[tuple[Any, ...]]:
            return [tuple(row) for row in connection.exec_driver_sql(sql)]

        assert asked(
            "SELECT shard, job_id, type_name, status_name, late_ms FROM toc_jobs ORDER BY job_id"
        ) == [(1, 11, "order.close", "done", 1250), (1, 12, None, "dead", None)]
        assert asked("SELECT job_id, type_name, error FROM toc_dead_jobs") == [
            (12, "order.close", "no way")
        ]
        assert asked("SELECT job_id, what, from_name, to_name, actor FROM toc_events") == [
            (12, "bury", "running", "dead", "somebody")
        ]
        ((day, *rest),) = asked("SELECT day, type_name, status_name, jobs, last_id FROM toc_purges")
        assert [str(day), *rest] == ["2030-01-02", "order.close", "cancelled", 1200, 11]


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def many(request: pytest.FixtureRequest) -> Any:
    """A database of 128 shards with rows in each."""
    server = request.getfixturevalue(f"{request.param}_server")
    with temporary_database(server) as url:
        migrate.upgrade(settings_of(url, shards=MANY))
        inserts = []
        for shard in range(MANY):
            rows = ", ".join(
                f"({shard * 1000 + n}, {shard * 1000 + n}, 1, UTC_TIMESTAMP(3))"
                for n in range(ROWS)
            )
            columns = "(job_id, biz_id, biz_type, action_time)"
            inserts.append(f"INSERT INTO toc_job_{shard:04d} {columns} VALUES {rows}")
        run(url, *inserts)
        yield url


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("job_id = 77003", 1),
        ("biz_id = 77003", 1),
        ("biz_id IN (5001, 99019)", 2),
        ("shard = 77 AND biz_id = 77003", 1),
        ("job_id = 77003 AND status_name = 'pending'", 1),
        ("job_id = 999999", 0),
    ],
)
def test_a_condition_reaches_every_shard_s_index(many: str, where: str, found: int) -> None:
    """The server counts the rows it reads: few per shard by index, not all of all tables."""
    with engine_of(many) as engine, engine.connect() as connection:
        connection.exec_driver_sql("FLUSH STATUS")
        rows = connection.exec_driver_sql(f"SELECT * FROM toc_jobs WHERE {where}").all()
        sql = "SHOW SESSION STATUS LIKE 'Handler_read%'"
        shown = connection.exec_driver_sql(sql, execution_options=RAW).all()
        read = {str(name): int(value) for name, value in shown}
    assert len(rows) == found
    # What scans a table counts in rnd_next; the union's own few rows are read like that too.
    assert read["Handler_read_rnd_next"] < 2 * MANY, read
    assert sum(read.values()) < 6 * MANY, read


def test_explain_shows_an_index_in_every_shard(many: str) -> None:
    with engine_of(many) as engine, engine.connect() as connection:
        if "mariadb" not in str(connection.exec_driver_sql("SELECT VERSION()").scalar()).lower():
            connection.exec_driver_sql("SET SESSION explain_format = 'TRADITIONAL'")
        plan = connection.exec_driver_sql(
            "EXPLAIN SELECT * FROM toc_jobs WHERE biz_id = 5"
        ).mappings()
        parts = [row for row in plan if row["table"] == "j"]
    assert len(parts) == MANY
    assert {(row["type"], row["key"]) for row in parts} == {("ref", "uq_live")}


def test_a_reader_needs_rights_of_his_own(server_url: str) -> None:
    """SQL SECURITY INVOKER: the right to read a view gives no right to what is below it."""
    migrate.upgrade(settings_of(server_url))
    name = server_url.rpartition("/")[2]
    account = f"'reader_{name[-8:]}'@'%'"
    run(server_url, f"CREATE USER {account} IDENTIFIED BY 'p'")
    try:
        run(server_url, f"GRANT SELECT ON {name}.toc_dead_jobs TO {account}")
        scheme, _, rest = server_url.partition("root@")
        reader = f"{scheme}reader_{name[-8:]}:p@{rest}"
        with pytest.raises(DBAPIError, match=r"denied|invalid"):
            scalar(reader, "SELECT COUNT(*) FROM toc_dead_jobs")
        for table in ("toc_dead_job", "toc_biz_type"):
            run(server_url, f"GRANT SELECT ON {name}.{table} TO {account}")
        assert scalar(reader, "SELECT COUNT(*) FROM toc_dead_jobs") == 0
    finally:
        run(server_url, f"DROP USER {account}")
