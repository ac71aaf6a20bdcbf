"""Beside live traffic: a run waits for a table for a short while only, alone, and changes nothing slowly."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from tests.cli.processes import Process, wait_until
from tests.migration.conftest import (
    dump,
    engine_of,
    rows_held,
    run,
    scalar,
    settings_of,
    waits_for_a_table,
)
from toc.store import migrate
from toc.store.schema_steps import MakeView, SchemaTarget

INSERT = "INSERT INTO {} (job_id, biz_id, type_no, action_time) VALUES (1, 1, 1, '2030-01-01')"

VIRTUAL = (
    "DROP INDEX uq_live, DROP COLUMN live_key, ADD COLUMN live_key "
    "VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin "
    "AS (CASE WHEN status IN (0, 1) THEN dedup_key END) VIRTUAL, "
    "ADD UNIQUE KEY uq_live (biz_id, type_no, live_key)"
)


def environment(url: str) -> dict[str, str]:
    return {"TOC_DATABASES": url, "TOC_SHARDS": "2", "TOC_REDIS_URL": "none"}


@pytest.mark.usefixtures("second_revision")
def test_a_long_transaction_is_not_waited_for(server_url: str, tmp_path: Path) -> None:
    """It gives up, and what came to wait behind it goes on while the transaction is still open."""
    migrate.upgrade(settings_of(server_url), to="0001")
    with rows_held(server_url, "toc_job_0001") as transaction:
        run_ = Process(tmp_path, environment(server_url), "migrate", "--lock-wait", "3")
        wait_until(lambda: run_.code is not None or waits_for_a_table(server_url), "it waits")
        assert run_.code is None, run_.err
        behind = threading.Thread(target=run, args=(server_url, INSERT.format("toc_job_0001")))
        behind.start()
        assert run_.ended() == 1
        behind.join(20)
        assert not behind.is_alive()
        assert not transaction.invalidated
        said = [line for line in run_.err.splitlines() if line.startswith("toc: ")]
        assert len(said) == 1
        assert re.match(
            r"toc: database 0, table toc_job_0001: a transaction holds the table, gave up after 3 s",
            said[0],
        )
        found = scalar(server_url, f"SELECT version_num FROM {migrate.VERSION_TABLE}")
        assert found == "0001"
    again = Process(tmp_path, environment(server_url), "migrate")
    assert again.ended() == 0, again.err
    assert scalar(server_url, "SELECT COUNT(*) FROM toc_jobs") == 1


@pytest.mark.usefixtures("second_revision")
def test_the_second_runner_is_refused(server_url: str, tmp_path: Path) -> None:
    migrate.upgrade(settings_of(server_url), to="0001")
    with rows_held(server_url, "toc_job_0001"):
        first = Process(tmp_path, environment(server_url), "migrate", "--lock-wait", "60")
        wait_until(lambda: first.code is not None or waits_for_a_table(server_url), "it waits")
        second = Process(tmp_path, environment(server_url), "migrate", "--lock-wait", "1")
        assert second.ended() == 1
        assert re.fullmatch(
            r"toc: database 0: another migration is running there \(the server's connection \d+\)\n",
            second.err,
        )
    assert first.ended() == 0, first.err


@pytest.mark.usefixtures("second_revision")
def test_databases_of_one_server_do_not_keep_each_other_waiting(server_url: str) -> None:
    with engine_of(server_url) as engine, engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT GET_LOCK('toc_migrate.another', 0)").scalar() == 1
        migrate.upgrade(settings_of(server_url), lock_wait_s=1)
        assert migrate.downgrade(settings_of(server_url), "0001", lock_wait_s=1)


@pytest.mark.usefixtures("second_revision")
def test_sqlite_has_one_writer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/toc.db"
    migrate.upgrade(settings_of(url), to="0001")
    other = create_engine(url, poolclass=NullPool)
    with other.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(migrate.MigrationFailed, match="database 0: another migration, or a"):
            migrate.upgrade(settings_of(url), lock_wait_s=1)
    migrate.upgrade(settings_of(url), lock_wait_s=1)


@pytest.mark.usefixtures("second_revision")
def test_every_change_of_a_table_names_its_algorithm() -> None:
    """So that a server refuses what it would have to copy for, or block writes."""
    target = SchemaTarget(0, range(2), sqlite=False)
    acts = [
        act.sql
        for revision in migrate.revisions_of_release()
        for step in revision.steps(target)
        for act in (*step.up_statements(sqlite=False), *step.down_statements(sqlite=False))
    ]
    alters = [sql for sql in acts if sql.startswith("ALTER")]
    assert len(alters) == 4
    allowed = r"ALTER TABLE \w+ .*, ALGORITHM = (INSTANT|INPLACE, LOCK = NONE)"
    assert [sql for sql in alters if not re.fullmatch(allowed, sql)] == []
    begin = (
        "ALTER TABLE",
        "CREATE TABLE IF NOT",
        "DROP TABLE IF",
        "CREATE OR REPLACE SQL",
        "DROP VIEW IF",
    )
    assert [sql for sql in acts if not sql.startswith(begin)] == []
    made = [
        s
        for r in migrate.revisions_of_release()
        for s in r.steps(target)
        if isinstance(s, MakeView)
    ]
    assert all(
        "SQL SECURITY INVOKER" in act.sql
        for view in made
        for act in view.up_statements(sqlite=False)
    )


@pytest.mark.usefixtures("second_revision")
@pytest.mark.parametrize("why", ["compressed", "virtual"])
def test_a_change_that_would_rebuild_a_table_is_asked_for(server_url: str, why: str) -> None:
    """Refused with one line that names the table; with `may_rebuild` it is made, whatever it takes."""
    mariadb = "mariadb" in str(scalar(server_url, "SELECT VERSION()")).lower()
    if why == "virtual" and not mariadb:
        pytest.skip("MySQL adds a column at once beside an index on a virtual one")
    settings = settings_of(server_url)
    migrate.upgrade(settings, to="0001")
    # MariaDB's live_key was virtual once; both servers refuse compressed tables.
    change = "ROW_FORMAT = COMPRESSED" if why == "compressed" else VIRTUAL
    run(server_url, f"ALTER TABLE toc_job_0001 {change}", INSERT.format("toc_job_0001"))
    with engine_of(server_url) as engine:
        before = dump(engine)["toc_job_0001"]
        match = (
            r"table toc_job_0001: the server would have to rebuild the table.*--rebuild.*ALGORITHM"
        )
        with pytest.raises(migrate.MigrationFailed, match=match) as met:
            migrate.upgrade(settings)
        assert "\n" not in str(met.value)
        assert dump(engine)["toc_job_0001"] == before
    migrate.upgrade(settings, may_rebuild=True)
    assert scalar(server_url, "SELECT COUNT(*) FROM toc_jobs") == 1


@pytest.mark.usefixtures("second_revision")
def test_what_the_server_refuses_for_another_reason_is_not_tried_as_a_rebuild(
    server_url: str,
) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings, to="0001")
    run(server_url, "DROP TABLE toc_job_0001")
    with pytest.raises(migrate.MigrationFailed, match=r"table toc_job_0001: .*exist") as met:
        migrate.upgrade(settings, may_rebuild=True)
    assert isinstance(met.value.__cause__, DBAPIError)
    assert met.value.number == 1146
