"""Shards full of awkward rows, and the truth: the same rows in ONE table of the same kind of server."""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from tests.servers.endpoint import Endpoint
from toc.admin.query_plan import plan_query
from toc.admin.query_reader import read_query
from toc.admin.query_run import QueryResult, QueryRun
from toc.admin.sql_writer import make_sql
from toc.admin.sqlite_functions import mysql_functions_for_sqlite
from toc.domain.ids import JobIdFactory
from toc.domain.routing import routing_hash_of
from toc.domain.times import datetime_of
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.column_types import sql_time_of_ms
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.query_fan_out import QueryFanOut, QueryLimits
from toc.store.views import (
    DEAD_JOBS,
    DEAD_JOBS_SELECT,
    EVENTS,
    EVENTS_SELECT,
    JOBS,
    PURGES,
    PURGES_SELECT,
    jobs_of_shard_sql,
)
from toc.testing import TestClock

SHARDS = 8
ROWS = 400
NOW_MS = 1_767_225_600_000 + 12 * 3_600_000 + 34_567  # 2026-01-01 12:00:34.567
DAY_MS = 86_400_000
LIMITS = QueryLimits(timeout_s=20, whole_s=60, parallel=2, connect_timeout_s=5)
TYPES = {1: "order.close", 2: "order.confirm", 3: "Report"}  # 4 has no name

# Without spaces at an end: MySQL and MariaDB pass over them when they compare, see test_sql_merge.
TEXTS = (None, "", "a", "a-b", "a\tb", "A", "b", "ä", "z", "中", "😀", '{"n":5}', "it's", 'say"x"',
         "back\\slash", "50%", "under_score", "two\nlines", "a\x01")  # fmt: skip
KEYS = (None, None, None, "", "a", "A", "b", "k-1", "k-2")
ERRORS = ("ValueError: no\n  File x, line 1", "ValueError: no\nelsewhere", "Timeout", "é\n")


@dataclass
class World:
    """Databases with rows, as `toc sql` reaches them."""

    settings: Settings
    truth_url: str
    clock: TestClock
    _truth: Connection | None = None

    @property
    def sqlite(self) -> bool:
        return self.settings.databases[0].startswith("sqlite")

    def ask(
        self,
        sql: str,
        values: Mapping[str, str] | None = None,
        *,
        rows_max: int = 100_000,
        **more: Any,
    ) -> QueryResult:
        fan_out = QueryFanOut(
            self.settings.databases,
            self.settings.routing,
            self.clock,
            more.pop("limits", LIMITS),
            mysql_functions_for_sqlite,
        )
        plan = plan_query(sql, values)
        return QueryRun(plan, self.settings.routing, fan_out, rows_max, **more).run_query()

    def rows(self, sql: str, **more: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.ask(sql, **more).rows]

    def engine(self, database: int = 0) -> Engine:
        return create_engine(self.settings.databases[database], poolclass=NullPool)

    def execute(self, sql: str, database: int = 0) -> None:
        with self.engine(database).begin() as connection:
            connection.exec_driver_sql(sql)

    def schema(self, database: int) -> str:
        return make_url(self.settings.databases[database]).database or ""

    def truth(self, sql: str) -> list[tuple[Any, ...]]:
        """What one table answers: to the same text (MySQL, MariaDB), or to its translation."""
        if self.sqlite:
            return _truth_of_sqlite(make_url(self.truth_url).database or "", sql)
        if self._truth is None:
            engine = create_engine(self.truth_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
            self._truth = engine.connect()
            prepare(self._truth)
        return [tuple(row) for row in self._truth.exec_driver_sql(sql.replace("%", "%%"))]

    def close(self) -> None:
        if self._truth is not None:
            self._truth.close()


def _truth_of_sqlite(path: str, sql: str) -> list[tuple[Any, ...]]:
    text_, values = one_table_statement(sql)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA case_sensitive_like = ON")
        for name, call in mysql_functions_for_sqlite(NOW_MS).items():
            if isinstance(call, type):
                connection.create_aggregate(name, -1, call)
            else:
                connection.create_function(name, -1, call, deterministic=True)
        return connection.execute(text_, values).fetchall()


def one_table_statement(sql: str) -> tuple[str, dict[str, object]]:
    """The statement as a whole in SQLite's dialect, with nothing split."""
    return make_sql(read_query(sql)[0], sqlite=True)


def prepare(connection: Connection) -> None:
    """A session as `toc sql` has it."""
    connection.exec_driver_sql("SET NAMES utf8mb4 COLLATE utf8mb4_bin")
    connection.exec_driver_sql(
        "SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES', group_concat_max_len = 1000000"
    )
    connection.exec_driver_sql(f"SET SESSION timestamp = {NOW_MS / 1000:.3f}")


def fill(world: World, seed: int = 1) -> None:
    """Random rows, the same ones in every kind of database."""
    rng = random.Random(seed)  # noqa: S311 - the same rows each time
    ids = JobIdFactory(lambda: NOW_MS - DAY_MS, 0)
    jobs: dict[int, list[dict[str, Any]]] = {shard: [] for shard in range(SHARDS)}
    live = set()
    for number in range(ROWS):
        biz_id = rng.choice((number, rng.randrange(40), 2**53 + number, 2**62 + rng.randrange(9)))
        job_id = ids.make_ids([routing_hash_of(biz_id)])[0]
        row = _job(rng, job_id, biz_id)
        key = (biz_id, row["type_no"], row["dedup_key"])
        if row["status"] < 2 and row["dedup_key"] is not None:
            if key in live:
                continue
            live.add(key)
        jobs[world.settings.routing.shard_of_hash(routing_hash_of(biz_id))].append(row)
    for index in range(len(world.settings.databases)):
        with world.engine(index).begin() as connection:
            for shard in world.settings.routing.shards_of_database(index):
                if shard != 5:  # one stays empty
                    _insert(connection, f"toc_job_{shard:04d}", jobs[shard])
            types = [{"type_no": no, "name": name} for no, name in TYPES.items()]
            _insert(connection, "toc_biz_type", types)
            _insert(connection, "toc_dead_job", [_dead(rng, index * 100 + n) for n in range(25)])
            _insert(connection, "toc_event", [_event(rng, index * 100 + n) for n in range(25)])
            _insert(connection, "toc_purge", [_purge(rng, n) for n in range(12)])
    _fill_related(world, jobs, random.Random(seed))  # noqa: S311


def _fill_related(
    world: World, jobs: Mapping[int, list[dict[str, Any]]], rng: random.Random
) -> None:
    """Dead letters and events of jobs that are there."""
    for index in range(len(world.settings.databases)):
        own = [
            row["job_id"]
            for shard in world.settings.routing.shards_of_database(index)
            for row in jobs[shard]
            if shard != 5
        ]
        dead = [_dead(rng, number) | {"job_id": own[number * 3]} for number in range(25)]
        events = [
            _event(rng, 1000 + index * 100 + number) | {"job_id": own[number // 2 * 5]}
            for number in range(40)
        ]
        with world.engine(index).begin() as connection:
            _insert(connection, "toc_dead_job", dead)
            _insert(connection, "toc_event", events)


def _job(rng: random.Random, job_id: int, biz_id: int) -> dict[str, Any]:
    status = rng.choice((0, 0, 0, 1, 2, 2, 3, 4))
    action_ms = NOW_MS + rng.randrange(-3 * DAY_MS, 3 * DAY_MS) // 250 * 250
    claimed = rng.random() < 0.5
    return {
        "job_id": job_id,
        "biz_id": biz_id,
        "type_no": rng.choice((1, 1, 2, 3, 4)),
        "status": status,
        "action_time": sql_time_of_ms(action_ms),
        "due_time": sql_time_of_ms(action_ms + rng.randrange(3) * 60_000) if status < 2 else None,
        "claim_time": sql_time_of_ms(action_ms + rng.randrange(-50, 5000)) if claimed else None,
        "lease_end_time": sql_time_of_ms(action_ms + 30_000) if claimed else None,
        "attempts": rng.randrange(6),
        "claim_token": rng.choice((None, "node-a:1:1", "node-b:1:2")),
        "dedup_key": rng.choice(KEYS),
        "attribute": rng.choice(TEXTS),
        "gmt_create": sql_time_of_ms(NOW_MS - DAY_MS),
        "gmt_modified": sql_time_of_ms(NOW_MS - rng.randrange(DAY_MS)),
    }


def _dead(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "job_id": 10_000 + number,
        "biz_id": number,
        "type_no": rng.choice((1, 2, 4)),
        "attempts": rng.randrange(1, 17),
        "error": rng.choice(ERRORS),
        "dead_time": sql_time_of_ms(NOW_MS - rng.randrange(3 * DAY_MS)),
    }


def _event(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "event_id": number + 1,
        "event_time": sql_time_of_ms(NOW_MS - rng.randrange(DAY_MS)),
        "job_id": 10_000 + number % 7,
        "what": rng.choice(("cancel", "retry", "bury")),
        "from_status": rng.randrange(2),
        "to_status": rng.randrange(5),
        "attempts": rng.randrange(5),
        "actor": rng.choice(("alice", "node-a:1", "Bob")),
        "reason": rng.choice((None, "because", "a")),
    }


def _purge(rng: random.Random, number: int) -> dict[str, Any]:
    return {
        "day": sql_time_of_ms(NOW_MS - number // 4 * DAY_MS)[:10],
        "type_no": 1 + number % 4,
        "status": 2 + number % 3,
        "jobs": rng.randrange(1, 1000),
        "first_id": 2**60 + rng.randrange(99),
        "last_id": 2**61 + rng.randrange(99),
    }


def _insert(connection: Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        names = list(rows[0])
        marks = ", ".join(f":{name}" for name in names)
        connection.execute(text(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})"), rows)


def make_truth(world: World) -> None:
    """All rows of all shards in one table each, in a database of its own."""
    sqlite = world.sqlite
    selects = {
        JOBS: [jobs_of_shard_sql(shard, sqlite=sqlite) for shard in range(SHARDS)],
        DEAD_JOBS: [DEAD_JOBS_SELECT] * 2,
        EVENTS: [EVENTS_SELECT] * 2,
        PURGES: [PURGES_SELECT] * 2,
        "toc_biz_type": ["SELECT type_no, name FROM toc_biz_type"],
    }
    with create_engine(world.truth_url, poolclass=NullPool).connect() as truth:
        if not sqlite:
            prepare(truth)
        for table, parts in selects.items():
            each = len(parts) // 2 if len(parts) > 1 else 1
            for number, part in enumerate(parts):
                _copy(world, truth, table, part, number // each)


def _copy(world: World, truth: Connection, table: str, select: str, database: int) -> None:
    if world.sqlite:
        path = make_url(world.settings.databases[database]).database
        truth.exec_driver_sql(f"ATTACH '{path}' AS source")
        exists = truth.exec_driver_sql(
            f"SELECT 1 FROM main.sqlite_master WHERE name = '{table}'"
        ).all()
        inner = _in_source(select, "source")
    else:
        name = make_url(world.settings.databases[database]).database or ""
        exists = truth.exec_driver_sql(f"SHOW TABLES LIKE '{table}'").all()
        inner = _in_source(select, name)
    start = f"INSERT INTO main.{table}" if world.sqlite else f"INSERT INTO {table}"
    if not exists:
        start = f"CREATE TABLE {'main.' if world.sqlite else ''}{table} AS"
    truth.exec_driver_sql(f"{start} {inner}")
    truth.commit()
    if world.sqlite:
        truth.exec_driver_sql("DETACH source")


def _in_source(select: str, schema: str) -> str:
    for word in ("FROM ", "JOIN "):
        select = select.replace(f"{word}toc_", f"{word}{schema}.toc_")
    return select


def sqlite_world(directory: Path) -> World:
    directory.mkdir(parents=True, exist_ok=True)
    urls = tuple(f"sqlite:///{directory}/{index}.db" for index in range(2))
    return _world(urls, f"sqlite:///{directory}/truth.db")


def server_world(server: Endpoint, names: Callable[[str], str]) -> World:
    base = make_url(server.url)
    urls = [
        base.set(database=names(part)).render_as_string(hide_password=False)
        for part in ("zero", "one", "truth")
    ]
    return _world((urls[0], urls[1]), urls[2])


def _world(urls: tuple[str, ...], truth_url: str) -> World:
    settings = Settings(databases=urls, shards=SHARDS, redis_url="none")
    migrate.upgrade(settings)
    with closing(Databases(urls, settings.routing, TestClock())) as databases:
        DatabaseMetadata(databases).verify_and_record_meta(settings.facts)
    world = World(settings, truth_url, TestClock(datetime_of(NOW_MS)))
    fill(world)
    make_truth(world)
    return world


# ---- comparing answers


def same(ours: Any, truth: Any, *, nearly: bool = False) -> bool:
    """Whether two values are one. `nearly`: numbers to four digits, as far as MySQL computes an AVG."""
    if type(ours) is type(truth) and ours == truth:
        return True
    ours, truth = _plain(ours), _plain(truth)
    if isinstance(ours, (int, float, Decimal)) and isinstance(truth, (int, float, Decimal)):
        if nearly:
            return math.isclose(ours, truth, rel_tol=1e-4, abs_tol=1e-4)
        if isinstance(ours, float) or isinstance(truth, float):
            return math.isclose(ours, truth, rel_tol=1e-12)
    return bool(ours == truth)


def same_rows(
    ours: Sequence[Sequence[Any]], truth: Sequence[Sequence[Any]], *, nearly: bool = False
) -> bool:
    return len(ours) == len(truth) and all(
        len(a) == len(b) and all(same(x, y, nearly=nearly) for x, y in zip(a, b, strict=True))
        for a, b in zip(ours, truth, strict=True)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    return str(value) if isinstance(value, date) else value


def sorted_rows(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows in an order of their own, where a statement asks for none."""
    return sorted((tuple(map(_plain, row)) for row in rows), key=repr)
