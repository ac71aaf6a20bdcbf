"""The schema: what the revisions make is what the code declares, however often they were broken off."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, MetaData, create_engine, inspect
from sqlalchemy.pool import NullPool

from tests.migration.conftest import (
    SHARDS,
    SHARED,
    TABLES,
    VIEWS,
    databases_of,
    dump,
    settings_of,
    tables,
    views,
)
from toc.errors import InvalidInput, SchemaMismatch
from toc.runtime.settings import Settings
from toc.store import migrate, schema
from toc.store.databases import Databases
from toc.store.schema_executor import CompletedStep

FILLED = {"gmt_create", "gmt_modified", "event_time", "account", "live_key"}  # by the database


def alembic_config(settings: Settings) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrate._migrations_directory()))
    config.attributes["settings"] = settings
    return config


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
            if "computed" in column and column["name"] not in FILLED
        },
        "default": {
            column["name"]: str(column["default"]).strip("'()")
            for column in found.get_columns(table)
            if column["name"] not in FILLED
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
        "toc_dead_job": schema.dead_letter_table,
        "toc_event": schema.event_table,
        "toc_purge": schema.purge_table,
        "toc_declared_type": schema.declared_type_table,
        "toc_token": schema.token_table,
        "toc_audit": schema.audit_table,
        "toc_pause": schema.pause_table,
        "toc_webhook": schema.webhook_table,
        "toc_arrival": schema.arrival_table,
        "toc_recurring": schema.recurring_table,
        "toc_occurrence": schema.occurrence_table,
        "toc_mass_change": schema.mass_change_table,
    }
    migrated = {name: shape(engine, name) for name in TABLES}
    with engine.begin() as connection:
        for name in VIEWS:  # SQLite looks at them before it drops what they stand on
            connection.exec_driver_sql(f"DROP VIEW {name}")
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
            if column.name in FILLED:
                column.server_default = None
    metadata.create_all(engine)
    assert {name: shape(engine, name) for name in TABLES} == migrated


def test_the_tables_of_the_seed(settings: Settings, engine: Engine) -> None:
    migrate.upgrade(settings)
    assert tables(engine) == TABLES
    assert views(engine) == VIEWS
    columns = [column["name"] for column in inspect(engine).get_columns("toc_job_0000")]
    assert columns[:8] == [
        "job_id", "gmt_create", "gmt_modified", "biz_id", "type_no", "status", "action_time",
        "attribute",
    ]  # fmt: skip


def test_each_database_gets_its_own_shards(tmp_path: Path) -> None:
    urls = tuple(f"sqlite:///{tmp_path}/{index}.db" for index in range(2))
    steps: list[CompletedStep] = []
    migrate.upgrade(settings_of(*urls, shards=4), steps.append)
    for index, shards in enumerate([(0, 1), (2, 3)]):
        expected = SHARED | {f"toc_job_{shard:04d}" for shard in shards}
        assert tables(create_engine(urls[index], poolclass=NullPool)) == expected
        own = [step for step in steps if step.database == index]
        assert {step.table for step in own if not step.is_view} == expected
        assert {step.table for step in own if step.is_view} == VIEWS


@pytest.mark.usefixtures("second_revision")
def test_progress_counts_the_steps_of_every_revision(settings: Settings) -> None:
    steps: list[CompletedStep] = []
    migrate.upgrade(settings, steps.append, to="0001")
    first = len(TABLES | VIEWS)
    assert [(step.done, step.total) for step in steps] == [(n, first) for n in range(1, first + 1)]
    steps.clear()
    migrate.upgrade(settings, steps.append)
    assert [(step.revision, step.done, step.total) for step in steps] == [
        ("0002", number, SHARDS) for number in range(1, SHARDS + 1)
    ]
    steps.clear()
    migrate.downgrade(settings, "0001", steps.append)
    assert [(step.done, step.total) for step in steps] == [(1, SHARDS), (2, SHARDS)]
    steps.clear()
    migrate.downgrade(settings, "base", steps.append)
    migrate.upgrade(settings, steps.append)
    assert steps[-1].total == first + SHARDS


def test_twice_is_once(settings: Settings, engine: Engine) -> None:
    steps: list[CompletedStep] = []
    migrate.upgrade(settings, steps.append)
    assert {step.table for step in steps} == TABLES | VIEWS
    with engine.begin() as connection:
        connection.exec_driver_sql("INSERT INTO toc_meta (name, value) VALUES ('kept', '1')")
    before = dump(engine)
    steps.clear()
    migrate.upgrade(settings, steps.append)
    assert steps == []
    assert dump(engine) == before
    assert "'kept'" in before["rows of toc_meta"]


@pytest.mark.usefixtures("second_revision")
@pytest.mark.parametrize(
    ("revision", "after"),
    [
        ("0001", "toc_meta"),
        ("0001", "toc_dead_job"),
        ("0001", "toc_job_0000"),
        ("0001", "toc_job_0001"),
        ("0001", "toc_jobs"),
        ("0001", "toc_events"),
        ("0001", "toc_event"),
        ("0001", "toc_purge"),
        ("0002", "toc_job_0000"),
        ("0002", "toc_job_0001"),
    ],
)
def test_broken_off_and_run_again(
    settings: Settings, engine: Engine, databases: Databases, revision: str, after: str
) -> None:
    def killed(step: CompletedStep) -> None:
        if (step.revision, step.table) == (revision, after):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate.upgrade(settings, killed)
    with pytest.raises(SchemaMismatch, match="toc migrate"):
        migrate.refuse_incompatible(databases)
    migrate.upgrade(settings)
    migrate.refuse_incompatible(databases)
    assert (tables(engine), views(engine)) == (TABLES, VIEWS)
    assert len(inspect(engine).get_indexes("toc_job_0000")) == 2
    unbroken = dump(engine)

    with pytest.raises(KeyboardInterrupt):
        migrate.downgrade(settings, "base", killed)
    migrate.downgrade(settings, "base")
    assert (tables(engine), views(engine)) == (set(), set())
    migrate.upgrade(settings)
    assert dump(engine) == unbroken


@pytest.mark.usefixtures("second_revision")
def test_down_and_up_again(settings: Settings, engine: Engine, databases: Databases) -> None:
    dumps = {}
    for revision in migrate.revisions_of_release():
        migrate.upgrade(settings, to=revision.name)
        dumps[revision.name] = dump(engine)
    migrate.refuse_incompatible(databases)
    for revision in reversed(migrate.revisions_of_release()[:-1]):
        (reached,) = migrate.downgrade(settings, revision.name)
        assert reached.revision == revision.name
        assert dump(engine) == dumps[revision.name], f"down to {revision.name}"
        with pytest.raises(SchemaMismatch):
            migrate.refuse_incompatible(databases)
    migrate.downgrade(settings, "base")
    assert (tables(engine), views(engine)) == (set(), set())
    with pytest.raises(SchemaMismatch):
        migrate.refuse_incompatible(databases)
    migrate.upgrade(settings)
    assert dump(engine) == dumps[migrate.newest_revision()]
    migrate.refuse_incompatible(databases)


@pytest.mark.usefixtures("second_revision")
@pytest.mark.invariant("I1")
@pytest.mark.parametrize("way", ["toc", "alembic"])
def test_tables_that_hold_jobs_are_never_dropped(
    settings: Settings, engine: Engine, way: str
) -> None:
    """Not one, while any holds some: it is the last that would go that does."""
    migrate.upgrade(settings)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO toc_job_0000 (job_id, biz_id, type_no, action_time) "
            "VALUES (1, 1, 1, '2030-01-01')"
        )
    if way == "alembic":  # without the look that comes before everything
        migrate.downgrade(settings, "0001")
    before = dump(engine)
    ways: dict[str, Callable[[], object]] = {
        "toc": lambda: migrate.downgrade(settings, "base"),
        "alembic": lambda: command.downgrade(alembic_config(settings), "base"),
    }
    with pytest.raises(
        migrate.MigrationFailed, match="database 0, table toc_job_0000: the table holds"
    ):
        ways[way]()
    assert dump(engine) == before
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM toc_job_0000")
    migrate.downgrade(settings, "base")
    assert tables(engine) == set()


@pytest.mark.invariant("I1")
def test_a_job_that_comes_between_the_look_and_the_drop_is_kept(server_url: str) -> None:
    """The first look finds all tables empty; the second, under the table's lock, does not."""
    settings = settings_of(server_url)
    migrate.upgrade(settings, to="0001")
    engine = create_engine(server_url, poolclass=NullPool)

    def schedule(step: CompletedStep) -> None:
        if step.table == "toc_job_0001":  # the first that goes
            with engine.begin() as connection:
                connection.exec_driver_sql(
                    "INSERT INTO toc_job_0000 (job_id, biz_id, type_no, action_time) "
                    "VALUES (1, 1, 1, '2030-01-01')"
                )

    with pytest.raises(migrate.MigrationFailed, match="toc_job_0000: the table holds jobs"):
        migrate.downgrade(settings, "base", schedule)
    assert tables(engine) == TABLES - {"toc_job_0001"}
    assert views(engine) == set()


@pytest.mark.usefixtures("second_revision")
def test_a_database_that_lost_a_table_says_so(settings: Settings, engine: Engine) -> None:
    migrate.upgrade(settings, to="0001")
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE toc_job_0001")
    with pytest.raises(migrate.MigrationFailed, match="database 0, table toc_job_0001: ") as met:
        migrate.upgrade(settings)
    assert "\n" not in str(met.value)


@pytest.mark.usefixtures("second_revision")
def test_urls_in_another_order_are_refused(tmp_path: Path) -> None:
    """Else each database would get the tables of the other's shards."""
    urls = [f"sqlite:///{tmp_path}/{index}.db" for index in range(2)]
    settings = settings_of(*urls, shards=4)
    migrate.upgrade(settings, to="0001")
    for index, url in enumerate(urls):
        engine = create_engine(url, poolclass=NullPool)
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"INSERT INTO toc_meta (name, value) VALUES ('database', '{index}'), ('shards', '4')"
            )
    swapped = settings_of(*reversed(urls), shards=4)
    with pytest.raises(
        SchemaMismatch, match=r"database 0: toc_meta says database = 1, the settings say 0"
    ):
        migrate.upgrade(swapped)
    with pytest.raises(
        SchemaMismatch, match=r"database 0: .*toc_meta says shards = 4, the settings say"
    ):
        migrate.upgrade(settings_of(*urls, shards=8))
    assert tables(create_engine(urls[0], poolclass=NullPool)) == TABLES
    migrate.upgrade(settings)


@pytest.mark.usefixtures("second_revision")
def test_a_revision_that_nobody_knows(settings: Settings, engine: Engine) -> None:
    with pytest.raises(InvalidInput, match="must be one of 0001, 0002"):
        migrate.upgrade(settings, to="9999")
    with pytest.raises(InvalidInput, match="must be one of 0001, 0002"):
        migrate.downgrade(settings, "9999")
    migrate.upgrade(settings)
    with pytest.raises(migrate.MigrationFailed, match="--down-to 0001"):
        migrate.upgrade(settings, to="0001")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
    for change in (lambda: migrate.upgrade(settings), lambda: migrate.downgrade(settings, "0001")):
        with pytest.raises(
            SchemaMismatch, match="database 0 is at revision 9999, which this release"
        ):
            change()


def test_one_old_database_among_others_is_refused(tmp_path: Path) -> None:
    urls = tuple(f"sqlite:///{tmp_path}/{index}.db" for index in range(2))
    settings = settings_of(*urls, shards=4)

    def killed(step: CompletedStep) -> None:
        if step.database == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate.upgrade(settings, killed)
    with databases_of(settings) as databases, pytest.raises(SchemaMismatch, match="database 1"):
        migrate.refuse_incompatible(databases)


def test_more_shards_than_one_union_takes(tmp_path: Path) -> None:
    """SQLite refuses 500 SELECTs in one UNION: the view is made of several."""
    url = f"sqlite:///{tmp_path}/toc.db"
    migrate.upgrade(settings_of(url, shards=512))
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO toc_job_0511 (job_id, biz_id, type_no, action_time) "
            "VALUES (5, 7, 1, '2030-01-01')"
        )
        found = connection.exec_driver_sql("SELECT shard, job_id FROM toc_jobs WHERE biz_id = 7")
        assert [tuple(row) for row in found] == [(511, 5)]
