"""The schema: what the revisions make is what the code declares, however often they were broken off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Engine, MetaData, create_engine, inspect
from sqlalchemy.pool import NullPool

from tests.servers.fixtures import _database as temporary_database
from toc.errors import SchemaMismatch
from toc.runtime.settings import Settings
from toc.store import migrate, schema
from toc.store.databases import Databases
from toc.testing import TestClock

SHARDS = 2
SHARED = {"toc_meta", "toc_biz_type", "toc_dead_job"}
TABLES = SHARED | {"toc_job_0000", "toc_job_0001"}


@pytest.fixture(params=["sqlite", "mariadb", "mysql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database on each engine."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/toc.db"
        return
    with temporary_database(request.getfixturevalue(f"{request.param}_server")) as url:
        yield url


@pytest.fixture
def settings(url: str) -> Settings:
    return Settings(databases=(url,), shards=SHARDS, redis_url="none")


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = create_engine(url, poolclass=NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def databases(settings: Settings) -> Iterator[Databases]:
    databases = Databases(settings.databases, settings.routing, TestClock())
    yield databases
    databases.close()


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names()) - {migrate.VERSION_TABLE}


def shape(engine: Engine, table: str) -> dict[str, Any]:
    """What the database itself says of a table."""
    found = inspect(engine)
    return {
        "columns": {
            column["name"]: (
                re.sub(r"\s*COLLATE.*| CHARACTER SET.*", "", str(column["type"])).upper(),
                column["nullable"],
            )
            for column in found.get_columns(table)
        },
        "key": found.get_pk_constraint(table)["constrained_columns"],
        "indexes": {
            (tuple(index["column_names"]), bool(index["unique"]))
            for index in found.get_indexes(table)
        },
        "generated": {
            column["name"]: re.sub(r"[`()\s]", "", column["computed"]["sqltext"]).lower()
            for column in found.get_columns(table)
            if "computed" in column
        },
        "default": {
            column["name"]: str(column["default"]).strip("'()")
            for column in found.get_columns(table)
            if not column["name"].startswith("gmt_")
        },
        "collation": {
            column["name"]: getattr(column["type"], "collation", None)
            for column in found.get_columns(table)
        },
    }


def test_what_the_revisions_make_is_what_is_declared(settings: Settings, engine: Engine) -> None:
    migrate.upgrade(settings)
    metadata = MetaData()
    makers = {
        "toc_meta": schema.meta_table,
        "toc_biz_type": schema.biz_type_table,
        "toc_dead_job": schema.dead_table,
    }
    migrated = {name: shape(engine, name) for name in TABLES}
    with engine.begin() as connection:
        for name in TABLES:
            connection.exec_driver_sql(f"DROP TABLE {name}")
    for make in makers.values():
        make(metadata)
    for shard in range(SHARDS):
        table = schema.job_table(metadata, schema.job_table_name(shard))
        for index in table.indexes:  # SQLite's index names are of the database, not of the table
            if engine.dialect.name == "sqlite":
                index.name = f"{index.name}_{shard}"  # type: ignore[assignment]
    for table in metadata.tables.values():
        for column in table.columns:  # filled by the database, as the migration says it
            if column.name.startswith("gmt_"):
                column.server_default = None
    metadata.create_all(engine)
    assert {name: shape(engine, name) for name in TABLES} == migrated


def test_the_tables_of_the_seed(settings: Settings, engine: Engine) -> None:
    migrate.upgrade(settings)
    assert tables(engine) == TABLES
    columns = [column["name"] for column in inspect(engine).get_columns("toc_job_0000")]
    assert columns[:8] == [
        "job_id", "gmt_create", "gmt_modified", "biz_id", "biz_type", "status", "action_time",
        "attribute",
    ]  # fmt: skip


def test_each_database_gets_its_own_shards(tmp_path: Path) -> None:
    urls = tuple(f"sqlite:///{tmp_path}/{index}.db" for index in range(2))
    steps: list[tuple[int, str]] = []
    migrate.upgrade(
        Settings(databases=urls, shards=4, redis_url="none"),
        lambda database, table: steps.append((database, table)),
    )
    for index, shards in enumerate([(0, 1), (2, 3)]):
        expected = SHARED | {f"toc_job_{shard:04d}" for shard in shards}
        assert tables(create_engine(urls[index], poolclass=NullPool)) == expected
        assert {table for database, table in steps if database == index} == expected


def test_twice_is_once(settings: Settings, engine: Engine) -> None:
    steps: list[str] = []
    migrate.upgrade(settings, lambda _, table: steps.append(table))
    assert set(steps) == TABLES
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO toc_meta (name, value) VALUES ('kept', '1')")
    migrate.upgrade(settings, lambda _, table: steps.append(table))
    assert len(steps) == len(TABLES)
    with engine.begin() as connection:
        sql = "SELECT COUNT(*) FROM toc_meta WHERE name = 'kept'"
        assert connection.exec_driver_sql(sql).scalar() == 1


@pytest.mark.parametrize("after", ["toc_meta", "toc_dead_job", "toc_job_0000", "toc_job_0001"])
def test_broken_off_and_run_again(
    settings: Settings, engine: Engine, databases: Databases, after: str
) -> None:
    def killed(_: int, table: str) -> None:
        if table == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate.upgrade(settings, killed)
    with pytest.raises(SchemaMismatch, match="toc migrate"):
        migrate.check(databases)
    migrate.upgrade(settings)
    migrate.check(databases)
    assert tables(engine) == TABLES
    assert len(inspect(engine).get_indexes("toc_job_0000")) == 2


def test_down_and_up_again(settings: Settings, engine: Engine, databases: Databases) -> None:
    migrate.upgrade(settings)
    command.downgrade(migrate._config(settings), "base")
    assert tables(engine) == set()
    with pytest.raises(SchemaMismatch):
        migrate.check(databases)
    migrate.upgrade(settings)
    assert tables(engine) == TABLES
    migrate.check(databases)


def test_an_empty_database_is_refused(databases: Databases) -> None:
    with pytest.raises(
        SchemaMismatch, match=rf"revision none, this release needs {migrate.head()}"
    ):
        migrate.check(databases)


def test_an_old_or_unknown_schema_is_refused(
    settings: Settings, engine: Engine, databases: Databases
) -> None:
    migrate.upgrade(settings)
    with engine.begin() as connection:
        table = migrate.VERSION_TABLE
        connection.exec_driver_sql(f"UPDATE {table} SET version_num = '0000'")
    with pytest.raises(SchemaMismatch, match=f"revision 0000, this release needs {migrate.head()}"):
        migrate.check(databases)


def test_one_old_database_among_others_is_refused(tmp_path: Path) -> None:
    urls = tuple(f"sqlite:///{tmp_path}/{index}.db" for index in range(2))
    settings = Settings(databases=urls, shards=4, redis_url="none")
    databases = Databases(urls, settings.routing, TestClock())

    def killed(database: int, _: str) -> None:
        if database == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate.upgrade(settings, killed)
    with pytest.raises(SchemaMismatch, match="database 1"):
        migrate.check(databases)
    databases.close()


def test_as_sql_it_names_every_table_and_runs_nothing(
    settings: Settings, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    migrate.upgrade(settings, sql=True)
    sql = capsys.readouterr().out
    for table in TABLES:
        assert f"CREATE TABLE IF NOT EXISTS {table} " in sql
    assert f"INSERT INTO {migrate.VERSION_TABLE}" in sql
    assert tables(engine) == set()


def test_a_second_runner_waits_for_the_first(settings: Settings, engine: Engine) -> None:
    if engine.dialect.name == "sqlite":
        pytest.skip("SQLite locks the file by itself")
    with engine.connect() as first:
        seen: list[object] = []

        def look(_: int, table: str) -> None:
            sql = "SELECT GET_LOCK('toc_migrate', 0)"
            seen.append(first.exec_driver_sql(sql).scalar())

        migrate.upgrade(settings, look)
        assert set(seen) == {0}
        assert first.exec_driver_sql("SELECT GET_LOCK('toc_migrate', 0)").scalar() == 1
