"""deploy/sql: each query runs over the whole, and in any client over the views, by the read-only account."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import CLIENT
from sqlalchemy import make_url

from tests.admin.world import NOW_MS, World, same_rows
from toc.admin.query_plan import plan_query
from toc.admin.query_run import shard_row_limit
from toc.admin.sql_writer import make_shard_queries, sql_for_display
from toc.domain.ids import ID_EPOCH_MS
from toc.store.account_roles import ROLES
from toc.store.account_roles import grant_statements as account_statements
from toc.store.column_types import sql_time_of_ms

DIRECTORY = Path(__file__).parents[2] / "deploy/sql"
QUERIES = sorted(path.stem for path in DIRECTORY.glob("*.sql"))
VALUES = {"order_history": "biz_id", "job_events": "job_id"}
INDEXES = {
    "due_next_hour": "ix_due", "stuck": "ix_due", "busiest_minutes": "ix_due",
    "order_history": "uq_live", "job_events": "ix_job", "dead_by_error": "ix_dead_time",
    "lateness": "PRIMARY", "oldest_ended": "PRIMARY",
}  # fmt: skip


def text_of(name: str) -> str:
    return (DIRECTORY / f"{name}.sql").read_text("utf-8")


def values_of(world: World, name: str) -> dict[str, str]:
    """Of an order, or a job, that is there."""
    if name not in VALUES:
        return {}
    table = "toc_jobs WHERE shard = 2" if name == "order_history" else "toc_events"
    ((value,),) = world.rows(f"SELECT MAX({VALUES[name]}) FROM {table}")
    return {VALUES[name]: str(value)}


def test_there_is_a_query_for_each_question() -> None:
    assert set(QUERIES) == {
        "due_next_hour", "stuck", "busiest_minutes", "order_history", "job_events", "lateness",
        "dead_by_error", "changed_today", "by_type_and_status", "oldest_ended",
    }  # fmt: skip
    page = (DIRECTORY / "README.md").read_text("utf-8")
    assert [name for name in QUERIES if f"`{name}.sql`" not in page] == []


@pytest.mark.parametrize("name", QUERIES)
def test_the_head_says_what_it_answers_what_it_costs_and_by_which_index(name: str) -> None:
    head = text_of(name).partition("\nSELECT")[0].splitlines()
    assert all(line.startswith("--") for line in head)
    assert re.match(r"-- [A-Z].*[.?]$", head[0])
    assert re.search(r"\n-- Costs: ", "\n".join(head))
    index = re.search(r"\n-- Index: (\w+)", "\n".join(head))
    assert index
    assert index[1] == INDEXES.get(name, "none")
    for value in [VALUES[name]] if name in VALUES else []:
        assert f"--set {value}=" in "\n".join(head)
        assert f"SET @{value} = " in "\n".join(head)


ACCOUNT = 7
"""The column of job_events."""


@pytest.mark.parametrize("name", QUERIES)
def test_it_has_an_answer_on_every_engine(world: World, name: str) -> None:
    assert world.rows(text_of(name), values=values_of(world, name))


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("world", ["mysql"], indirect=True)
def test_it_answers_the_same_on_sqlite(sqlite_rows: World, world: World, name: str) -> None:
    values = values_of(sqlite_rows, name)
    ours, theirs = (
        sqlite_rows.rows(text_of(name), values=values),
        world.rows(text_of(name), values=values),
    )
    if name == "job_events":  # SQLite has no accounts
        assert all(row[ACCOUNT] is None for row in ours)
        assert any(row[ACCOUNT] for row in theirs)
        ours, theirs = (
            [row[:ACCOUNT] + row[ACCOUNT + 1 :] for row in rows] for rows in (ours, theirs)
        )
    assert same_rows(ours, theirs, nearly=True), f"{ours[:5]}\n{theirs[:5]}"


# ---- by the account of a reader


@pytest.fixture
def reader(world: World) -> Iterator[World]:
    """The world as seen by the read-only account, on MySQL or MariaDB."""
    administrator = connected(world, 0)
    with closing(administrator), closing(administrator.cursor()) as cursor:
        for database in (0, 1):
            for sql in account_statements(
                ROLES["reader"],
                "'toc_read'@'%'",
                world.schema(database),
                world.settings.routing.shards_of_database(database),
            ):
                # The servers have no TLS here; tests/contract/test_tls.py has servers that have.
                cursor.execute(sql.replace(" REQUIRE SSL", ""))
        cursor.execute("ALTER USER 'toc_read'@'%' IDENTIFIED BY 'reads-only' ACCOUNT UNLOCK")
    urls = [
        make_url(url)
        .set(username="toc_read", password="reads-only")
        .render_as_string(hide_password=False)
        for url in world.settings.databases
    ]
    yield replace(world, settings=world.settings.model_copy(update={"databases": tuple(urls)}))
    with closing(connected(world, 0)) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("DROP USER toc_read@'%'")


def connected(world: World, database: int) -> Any:
    url = make_url(world.settings.databases[database])
    return pymysql.connect(
        host=url.host, port=url.port or 3306, user=url.username, password=url.password or "",
        database=url.database, client_flag=CLIENT.MULTI_STATEMENTS,
    )  # fmt: skip


@pytest.mark.parametrize("world", ["mysql", "mariadb"], indirect=True)
def test_the_account_can_run_all_of_it_and_nothing_else(reader: World, world: World) -> None:
    for name in QUERIES:
        values = values_of(world, name)
        text = text_of(name)
        assert reader.rows(text, values=values) == world.rows(text, values=values)
        over_the_view(reader, name, values, "EXPLAIN ")
    with closing(connected(reader, 0)) as connection, closing(connection.cursor()) as cursor:
        for sql in ("UPDATE toc_job_0000 SET status = 3", "DELETE FROM toc_jobs", "DROP VIEW toc_jobs",
                    "CREATE TABLE x (a INT)", "INSERT INTO toc_biz_type (name) VALUES ('x')",
                    "CREATE TEMPORARY TABLE y (a INT)", "SELECT * FROM mysql.user"):  # fmt: skip
            with pytest.raises(pymysql.MySQLError, match=r"denied|command"):
                cursor.execute(sql)


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.parametrize("world", ["mysql", "mariadb"], indirect=True)
def test_in_any_client_over_the_views_it_answers_for_one_database(world: World, name: str) -> None:
    values = values_of(world, name)
    text = text_of(name)
    for database in (0, 1):
        asked = world.rows(text, values=values, database=database)
        assert same_rows(over_the_view(world, name, values, database=database), asked, nearly=True)


def over_the_view(
    world: World, name: str, values: dict[str, str], before: str = "", database: int = 0
) -> list[tuple[Any, ...]]:
    """The file as it is, as a client of MySQL runs it."""
    with closing(connected(world, database)) as connection, closing(connection.cursor()) as cursor:
        cursor.execute(f"SET SESSION timestamp = {NOW_MS / 1000:.3f}")
        for value, number in values.items():
            cursor.execute(f"SET @{value} = {number}")
        cursor.execute(before + text_of(name))
        return list(cursor.fetchall())


# ---- what it costs


@pytest.mark.parametrize("own_world", ["mysql", "mariadb"], indirect=True)
def test_each_uses_the_index_that_its_head_names(own_world: World) -> None:
    """On shards of some thousand rows."""
    filled = set()
    with closing(connected(own_world, 0)) as connection, closing(connection.cursor()) as cursor:
        cursor.execute("SELECT VERSION() LIKE '%MariaDB%'")
        (is_mariadb,) = cursor.fetchone()
        depth = "max_recursive_iterations" if is_mariadb else "cte_max_recursion_depth"
        cursor.execute(f"SET SESSION {depth} = 10000, sql_log_bin = 0")
        cursor.execute(f"SET SESSION timestamp = {NOW_MS / 1000:.3f}")
        for name, index in INDEXES.items():
            table, sql = first_statement(own_world, name)
            if table not in filled:
                fill_shard(cursor, table)
                filled.add(table)
            cursor.execute(f"EXPLAIN {'' if is_mariadb else 'FORMAT = TRADITIONAL '}{sql}")
            columns = [column[0] for column in cursor.description]
            lines = [dict(zip(columns, line, strict=True)) for line in cursor.fetchall()]
            used = {line["table"]: (line["key"], line["type"]) for line in lines}
            ((key, access),) = (found for table, found in used.items() if table in ("j", "d", "e"))
            assert key == index, f"{name}: {used}"
            # A whole index only to walk it from its start, until there are enough.
            allowed = ("range", "ref", "index") if name == "oldest_ended" else ("range", "ref")
            assert access in allowed, f"{name}: {used}"


def first_statement(world: World, name: str) -> tuple[str, str]:
    """The first table of database 0 that a query asks, and how."""
    plan = plan_query(text_of(name), {VALUES[name]: "42"} if name in VALUES else {})
    (table,) = plan.tables
    first, *_ = make_shard_queries(
        table,
        world.settings.routing,
        sqlite=False,
        rows_max=shard_row_limit(plan, table, 1000),
        database=0,
    )
    return first.table, sql_for_display(first.sql, first.values, sqlite=False)


def fill_shard(cursor: Any, table: str) -> None:
    """Thousands of rows; most ended, made through a month."""
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 6000)"
    first_id = (NOW_MS - 30 * 86_400_000 - ID_EPOCH_MS) << 22
    step = (30 * 86_400_000 // 6000) << 22
    now = sql_time_of_ms(NOW_MS)
    fills = {
        "toc_job_": (
            "(job_id, biz_id, type_no, status, action_time, due_time, claim_time, attempts) "
            f"{numbers} SELECT {first_id} + i * {step}, i, i % 3, IF(i % 10, 2, 0), "
            f"'{now}' + INTERVAL i - 3000 MINUTE, "
            f"IF(i % 10, NULL, '{now}' + INTERVAL i MINUTE), '{now}', 1 FROM n"
        ),
        "toc_dead_job": (
            "(job_id, biz_id, type_no, attempts, error, dead_time) "
            f"{numbers} SELECT 1000000 + i, i, 1, 1, 'x', '{now}' - INTERVAL i HOUR FROM n"
        ),
        "toc_event": (
            "(job_id, what, from_status, to_status, attempts, actor) "
            f"{numbers} SELECT i, 'x', 0, 1, 1, 'x' FROM n"
        ),
    }
    fill = next(text for start, text in fills.items() if table.startswith(start))
    cursor.execute(f"INSERT INTO {table} {fill}")
    cursor.connection.commit()
    cursor.execute(f"ANALYZE TABLE {table}")
    cursor.fetchall()
