"""An empty database on each engine, what a server says of one, and locks that hold a run up."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from tests.migration.second_revision import second_revision
from tests.servers.fixtures import _database as temporary_database
from tests.worker.waiting import wait_until
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.databases import Databases
from toc.testing import TestClock

__all__ = ["second_revision"]

SHARDS = 2
SHARED = {
    "toc_meta", "toc_biz_type", "toc_dead_job", "toc_event", "toc_purge", "toc_declared_type",
    "toc_pause", "toc_token", "toc_audit", "toc_webhook", "toc_arrival", "toc_recurring",
    "toc_occurrence", "toc_mass_change",
}  # fmt: skip
JOB_TABLES = {"toc_job_0000", "toc_job_0001"}
TABLES = SHARED | JOB_TABLES
RAW = {"no_parameters": True}  # a % in a statement is one
VIEWS = {"toc_jobs", "toc_dead_jobs", "toc_events", "toc_purges"}


@pytest.fixture(params=["sqlite", "mariadb", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database on each engine."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/toc.db"
        return
    with temporary_database(request.getfixturevalue(f"{request.param}_server")) as url:
        yield url


@pytest.fixture(params=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Any:
    """A server, where SQLite has none of what is tested."""
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture
def server_url(server: Any) -> Iterator[str]:
    """An empty database on a server."""
    with temporary_database(server) as url:
        yield url


@pytest.fixture
def settings(url: str) -> Settings:
    return settings_of(url)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    with engine_of(url) as engine:
        yield engine


@pytest.fixture
def databases(settings: Settings) -> Iterator[Databases]:
    with databases_of(settings) as databases:
        yield databases


def settings_of(*urls: str, shards: int = SHARDS) -> Settings:
    return Settings(databases=urls, shards=shards, redis_url="none")


@contextmanager
def engine_of(url: str) -> Iterator[Engine]:
    engine = create_engine(url, poolclass=NullPool)
    yield engine
    engine.dispose()


@contextmanager
def databases_of(settings: Settings) -> Iterator[Databases]:
    databases = Databases(settings.databases, settings.routing, TestClock())
    yield databases
    databases.close()


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names()) - {migrate.VERSION_TABLE}


def views(engine: Engine) -> set[str]:
    return set(inspect(engine).get_view_names())


def dump(engine: Engine) -> dict[str, str]:
    """What the database itself says of all tables and views, and the rows that say where it stands."""
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master").all()
            found = {str(name): re.sub(r"\s+", "", str(sql)) for name, sql in rows}
        else:
            names = connection.exec_driver_sql("SHOW TABLES").scalars().all()
            found = {str(name): _show_create(connection, name) for name in names}
        for table in (migrate.VERSION_TABLE, "toc_meta"):
            if table in found:
                rows = connection.exec_driver_sql(f"SELECT * FROM {table}").all()
                found[f"rows of {table}"] = repr(sorted(map(tuple, rows)))
    return found


def _show_create(connection: Connection, name: str) -> str:
    shown = str(connection.exec_driver_sql(f"SHOW CREATE TABLE {name}").one()[1])
    own = str(make_url(str(connection.engine.url)).database)
    return re.sub(r" AUTO_INCREMENT=\d+", "", shown.replace(f"`{own}`.", "")).replace(own, "")


def run(url: str, *statements: str) -> None:
    with engine_of(url) as engine, engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement, execution_options=RAW)


def scalar(url: str, statement: str) -> Any:
    with engine_of(url) as engine, engine.connect() as connection:
        return connection.exec_driver_sql(statement, execution_options=RAW).scalar()


# ---- what holds a run up


@contextmanager
def rows_held(url: str, table: str) -> Iterator[Connection]:
    """A transaction that has read a table, and stays open: no DDL on it meanwhile."""
    with engine_of(url) as engine, engine.connect() as connection:
        connection.exec_driver_sql(f"SELECT COUNT(*) FROM {table}")
        yield connection


@contextmanager
def name_held(url: str, table: str) -> Iterator[None]:
    """A table that is being made, and never will be: nobody else can make one of this name meanwhile."""
    sql = f"CREATE TABLE {table} AS SELECT SLEEP(600) AS x"

    def make() -> None:
        with engine_of(url) as engine, engine.connect() as connection:
            with suppress(DBAPIError):  # it is killed
                connection.exec_driver_sql(sql)
            connection.invalidate()

    thread = threading.Thread(target=make)
    thread.start()
    look = f"SELECT MAX(ID) FROM information_schema.PROCESSLIST WHERE INFO = '{sql}'"
    number = wait_until(lambda: scalar(url, look), "the table is being made")
    try:
        yield
    finally:
        run(url, f"KILL {number}")
        thread.join()
        run(url, f"DROP TABLE IF EXISTS {table}")  # MySQL may have come to its end


def waits_for_a_table(url: str) -> bool:
    """Whether somebody waits for a metadata lock in this database."""
    look = (
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST "
        "WHERE DB = DATABASE() AND STATE LIKE 'Waiting for table metadata lock%'"
    )
    with engine_of(url) as engine, engine.connect() as connection:
        return bool(connection.execute(text(look)).scalar())
