"""It only reads, within limits; and what fails is named, whole or not at all."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool

from tests.admin.world import LIMITS, World
from tests.cli.processes import wait_until
from toc.admin.query_run import QueryFailed
from toc.admin.sqlite_functions import mysql_functions_for_sqlite
from toc.runtime.clock import Clock, SystemClock
from toc.store.query_fan_out import (
    DatabaseQuery,
    QueryFailure,
    QueryFanOut,
    QueryLimits,
    QueryRows,
    _ReadOnlyDatabase,
)
from toc.testing import TestClock

SLOW = (
    "SELECT COUNT(*) FROM toc_job_0000 a JOIN toc_job_0000 b JOIN toc_job_0000 c JOIN toc_job_0000 d "
    "JOIN toc_job_0000 e WHERE a.attempts + b.attempts + c.attempts + d.attempts + e.attempts < 0"
)


def asking(world: World, limits: QueryLimits = LIMITS, clock: Clock | None = None) -> QueryFanOut:
    settings = world.settings
    return QueryFanOut(
        settings.databases,
        settings.routing,
        clock or SystemClock(),
        limits,
        mysql_functions_for_sqlite,
    )


def one(sql: str, database: int = 0, table: str = "toc_job_0000", place: int = 0) -> DatabaseQuery:
    return DatabaseQuery(place, database, table, sql, {})


def failed(reply: QueryRows | QueryFailure) -> QueryFailure:
    assert isinstance(reply, QueryFailure), reply
    return reply


# ---- it only reads


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE toc_job_0000 SET status = 3",
        "DELETE FROM toc_job_0000",
        "INSERT INTO toc_biz_type (name) VALUES ('x')",
        "CREATE TABLE surprise (a INTEGER)",
        "DROP TABLE toc_job_0000",
    ],
)
def test_its_sessions_can_only_read(world: World, sql: str) -> None:
    """Whatever gets past the reader."""
    before = world.rows("SELECT COUNT(*), SUM(status) FROM toc_jobs")
    failure = failed(asking(world).run_query(one(sql)))
    assert "read" in failure.text.lower()
    assert world.rows("SELECT COUNT(*), SUM(status) FROM toc_jobs") == before


@pytest.mark.parametrize("world", ["mysql", "mariadb"], indirect=True)
def test_its_sessions_hold_nothing_up(world: World) -> None:
    sql = "SELECT @@transaction_isolation, @@time_zone, @@lock_wait_timeout, @@collation_connection"
    if "mariadb" in str(asking(world).run_query(one("SELECT VERSION()"))).lower():
        sql = sql.replace("transaction_isolation", "tx_isolation")
    reply = asking(world).run_query(one(sql))
    assert isinstance(reply, QueryRows)
    assert reply.rows == [("READ-COMMITTED", "+00:00", 20, "utf8mb4_bin")]


def test_now_is_one_moment_for_all(world: World) -> None:
    """By the clock of a server, which stands still for the statement."""
    rows = world.rows("SELECT shard, NOW(3), UTC_TIMESTAMP(3), CURDATE() FROM toc_jobs")
    assert len({row[0] for row in rows}) > 1
    assert len({row[1:] for row in rows}) == 1
    late = "SELECT COUNT(*) FROM toc_jobs WHERE gmt_modified <= NOW(3)"
    assert world.rows(late) == world.rows(late.replace("NOW(3)", "'2026-01-01 12:00:34.567'"))
    own = asking(world)
    assert own.set_common_now([0, 1]) is None
    sql = "SELECT UTC_TIMESTAMP(3)"
    first, second = own.run_query(one(sql)), own.run_query(one(sql, 1))
    assert isinstance(first, QueryRows)
    assert isinstance(second, QueryRows)
    assert first.rows == second.rows


BREAKS_OUT = {
    "gbk": "\u904b' UNION SELECT user FROM mysql.user -- ",
    "big5": "\u529f' UNION SELECT user FROM mysql.user -- ",
    "sjis": "\u8868' UNION SELECT user FROM mysql.user -- ",
}
"""By charset: a text whose first character ends, in it, with the byte of a backslash."""


@pytest.mark.parametrize("world", ["mysql", "mariadb"], indirect=True)
@pytest.mark.parametrize("charset", list(BREAKS_OUT))
def test_no_text_breaks_out_of_its_quotes(world: World, charset: str) -> None:
    """Driver and server agree on the charset, whatever the URL says: the settings refuse it, too."""
    urls = [f"{url}?charset={charset}" for url in world.settings.databases]
    own = QueryFanOut(
        urls, world.settings.routing, SystemClock(), LIMITS, mysql_functions_for_sqlite
    )
    sql = "SELECT attribute FROM toc_job_0000 WHERE attribute = :given"
    with closing(own):
        reply = own.run_query(replace(one(sql), values={"given": BREAKS_OUT[charset]}))
    assert isinstance(reply, QueryRows), reply
    assert reply.rows == []


# ---- limits


def test_a_statement_that_takes_too_long_is_ended_by_the_server(world: World) -> None:
    limits = replace(LIMITS, timeout_s=0.3)
    failure = failed(asking(world, limits).run_query(one(SLOW)))
    assert failure.what == "time"
    assert failure.description == "database 0, table toc_job_0000: took longer than 0.3 s"


def test_all_together_have_a_limit_too(world: World) -> None:
    limits = replace(LIMITS, whole_s=0.5)
    failure = failed(asking(world, limits).run_query(one(SLOW)))
    assert failure.what == "time"
    assert "took longer than 0." in failure.text
    clock = TestClock()
    late = asking(world, LIMITS, clock)
    clock.advance(timedelta(seconds=LIMITS.whole_s))
    replies = list(late.run_queries([one("SELECT 1"), one("SELECT 1", place=1)], lambda: None))
    assert {failed(reply).text for reply in replies} == {
        "was not run: all queries together took too long"
    }


@pytest.mark.parametrize("world", ["mysql", "mariadb"], indirect=True)
def test_a_statement_gets_no_more_than_is_left_for_all(world: World) -> None:
    limits = replace(LIMITS, timeout_s=20, whole_s=5)
    reply = asking(world, limits).run_query(one("SELECT VERSION()"))
    assert isinstance(reply, QueryRows)
    is_mariadb = "mariadb" in str(reply.rows).lower()
    limit = "@@max_statement_time" if is_mariadb else "@@max_execution_time / 1000"
    reply = asking(world, limits).run_query(one(f"SELECT {limit}"))
    assert isinstance(reply, QueryRows)
    assert 0 < reply.rows[0][0] <= 5


def test_rows_are_limited_and_it_says_so(world: World) -> None:
    result = world.ask("SELECT job_id FROM toc_jobs ORDER BY job_id", rows_max=7)
    assert (len(result.rows), result.more) == (7, True)
    result = world.ask("SELECT job_id FROM toc_jobs ORDER BY job_id LIMIT 7", rows_max=7)
    assert (len(result.rows), result.more) == (7, False)
    result = world.ask("SELECT attribute, COUNT(*) FROM toc_jobs GROUP BY 1 LIMIT 6, 9", rows_max=7)
    assert (len(result.rows), result.more) == (7, True)


def test_bytes_are_limited(world: World) -> None:
    """Of one table's answer, and of all that is kept; what is looked at and left costs nothing."""
    sql = "SELECT job_id, attribute, action_time FROM toc_jobs"
    few = replace(LIMITS, bytes_max=900)
    with pytest.raises(QueryFailed, match=r"toc_job_000\d: answers more than 0.0009 MB"):
        world.rows(f"{sql} WHERE shard = 0", limits=few)
    more = replace(LIMITS, bytes_max=5000)
    assert world.rows(f"{sql} WHERE shard = 0", limits=more)
    with pytest.raises(QueryFailed, match=r"answers more than 0.005 MB: name fewer columns"):
        world.rows(sql, limits=more)
    assert len(world.rows(f"{sql} ORDER BY job_id LIMIT 40", limits=more)) == 40
    own = asking(world, few)
    connection = own._databases[0].open_connection(one("SELECT 1"))
    assert not isinstance(connection, QueryFailure)
    with closing(connection):  # goes on after a failure
        first = own._databases[0].run_query_on_connection(
            connection, one("SELECT * FROM toc_job_0000"), 1e12
        )
        assert "more than" in failed(first).text
        again = own._databases[0].run_query_on_connection(connection, one("SELECT 'x'"), 1e12)
        assert isinstance(again, QueryRows)
        assert again.rows == [("x",)]


@pytest.mark.parametrize("world", ["mysql", "mariadb"], indirect=True)
def test_connections_per_database_are_limited(world: World) -> None:
    name = make_url(world.settings.databases[1]).database
    questions = [one("SELECT SLEEP(0.3)", 1, place=place) for place in range(7)]
    counts: list[int] = []
    with (
        watching(world) as count,
        closing(
            asking(world, replace(LIMITS, parallel=3)).run_queries(
                questions, lambda: counts.append(count(name))
            )
        ) as replies,
    ):
        assert len(list(replies)) == 7
        wait_until(lambda: count(name) == 0, "the connections are closed")
    assert max(counts) == 3


# ---- failures


def test_a_table_that_somebody_dropped(own_world: World) -> None:
    own_world.execute("ALTER TABLE toc_job_0006 RENAME TO away", 1)
    with pytest.raises(
        QueryFailed, match=r"^database 1, table toc_job_0006: .*toc_job_0006"
    ) as caught:
        own_world.rows("SELECT COUNT(*) FROM toc_jobs")
    assert caught.value.failures[0].what == "schema"
    result = own_world.ask("SELECT shard, COUNT(*) FROM toc_jobs GROUP BY shard", partial=True)
    assert {row[0] for row in result.rows} == {0, 1, 2, 3, 4, 7}
    assert [(f.query.database, f.query.table) for f in result.missing] == [(1, "toc_job_0006")]
    assert own_world.ask("SELECT COUNT(*) FROM toc_jobs", database=0).missing == []


def test_a_column_that_somebody_dropped(own_world: World) -> None:
    own_world.execute("ALTER TABLE toc_job_0003 RENAME COLUMN claim_time TO away", 0)
    with pytest.raises(
        QueryFailed, match=r"^database 0, table toc_job_0003: .*claim_time"
    ) as caught:
        own_world.rows("SELECT MAX(claim_time) FROM toc_jobs")
    assert caught.value.failures[0].what == "schema"


def test_a_database_that_is_away(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = f"sqlite:///{tmp_path}/gone.db" if world.sqlite else (
        make_url(world.settings.databases[1]).set(port=1).render_as_string(hide_password=False)
    )  # fmt: skip
    settings = world.settings.model_copy(update={"databases": (world.settings.databases[0], gone)})
    half = replace(world, settings=settings)
    with pytest.raises(QueryFailed, match=r"^database 1: does not answer: ") as caught:
        half.rows("SELECT COUNT(*) FROM toc_jobs")
    assert caught.value.failures[0].what == "down"
    tried = []
    connected = _ReadOnlyDatabase.open_connection
    monkeypatch.setattr(
        _ReadOnlyDatabase,
        "open_connection",
        lambda self, one: tried.append(self.index) or connected(self, one),
    )
    result = half.ask("SELECT shard, COUNT(*) FROM toc_jobs GROUP BY shard", partial=True)
    # Once for its type names, then by each connection, but not for each of its tables.
    assert tried.count(1) <= 1 + LIMITS.parallel
    assert {row[0] for row in result.rows} == {0, 1, 2, 3}
    assert [f.query.table for f in result.missing] == [f"toc_job_{n:04d}" for n in range(4, 8)]
    assert half.rows("SELECT COUNT(*) FROM toc_jobs", database=0)
    nowhere = settings.model_copy(update={"databases": (gone, gone + "x")})
    with pytest.raises(QueryFailed, match=r"^database \d: does not answer"):
        replace(world, settings=nowhere).rows("SELECT COUNT(*) FROM toc_jobs", partial=True)
    assert not list(tmp_path.iterdir())  # no empty database was made


@pytest.mark.parametrize("world", ["mysql", "mariadb"], indirect=True)
def test_a_connection_that_is_lost_half_way(world: World) -> None:
    questions = [
        one("SELECT 'first'", table="toc_job_0000"),
        one("SELECT SLEEP(20), 'lost half-way'", table="toc_job_0001", place=1),
        one("SELECT 'next'", table="toc_job_0002", place=2),
    ]
    own = asking(world, replace(LIMITS, parallel=1))
    with closing(own.run_queries(questions, lambda: None)) as replies:
        first = next(replies)
        killer = threading.Thread(target=kill, args=(world, "lost half-way"))
        killer.start()
        lost, after = failed(next(replies)), next(replies)
        killer.join()
    assert isinstance(first, QueryRows)
    assert lost.what == "down"
    assert lost.description.startswith(
        "database 0, table toc_job_0001: does not answer: Lost connection"
    )
    assert isinstance(after, QueryRows)  # over a new one


def kill(world: World, word: str) -> None:
    """Ends the connection that runs a statement with this word."""
    with create_engine(world.truth_url, poolclass=NullPool).connect() as connection:
        found: list[int] = []

        def runs() -> bool:
            sql = "SELECT ID FROM information_schema.processlist WHERE INFO LIKE %s AND ID <> CONNECTION_ID()"
            found[:] = [row[0] for row in connection.exec_driver_sql(sql, (f"%{word}%",))]
            return bool(found)

        wait_until(runs, "the statement runs")
        connection.exec_driver_sql(f"KILL CONNECTION {found[0]}")


class watching:  # noqa: N801 - reads as a verb
    """Counts the connections to a database."""

    def __init__(self, world: World) -> None:
        self._engine = create_engine(world.truth_url, poolclass=NullPool)

    def __enter__(self) -> Any:
        self._connection = self._engine.connect()
        return self._count

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _count(self, name: str) -> int:
        sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE DB = %s"
        return int(self._connection.exec_driver_sql(sql, (name,)).scalar_one())


def test_settings_that_see_other_shards_are_an_error(world: World) -> None:
    """They would answer for less than there is."""
    settings = world.settings
    for wrong in (
        {"shards": 4},
        {"databases": settings.databases[::-1]},
    ):
        other = replace(world, settings=settings.model_copy(update=wrong))
        with pytest.raises(
            QueryFailed, match=r"^database \d: was set up with \w+ = \d, the settings say"
        ):
            other.rows("SELECT COUNT(*) FROM toc_jobs")


def test_nobody_waits_for_answers_that_nobody_wants(world: World) -> None:
    """Who stops reading leaves no thread behind."""
    own = asking(world, replace(LIMITS, parallel=2))
    questions = [one("SELECT 1", place % 2, place=place) for place in range(200)]
    with closing(own.run_queries(questions, lambda: None)) as replies:
        next(replies)
    wait_until(
        lambda: not [t for t in threading.enumerate() if t.name == "toc-asking"], "the threads end"
    )


@pytest.mark.parametrize("own_world", ["mysql"], indirect=True)
def test_a_database_that_has_moved_away_is_not_read(own_world: World) -> None:
    """Its old server is fenced: what stands there is over."""
    name = make_url(own_world.settings.databases[1]).database
    own_world.execute(f"ALTER SCHEMA {name} READ ONLY = 1")
    try:
        with pytest.raises(QueryFailed, match=r"^database 1: .*has moved") as caught:
            own_world.rows("SELECT COUNT(*) FROM toc_jobs")
        assert caught.value.failures[0].what == "down"
    finally:
        own_world.execute(f"ALTER SCHEMA {name} READ ONLY = 0")
