"""Scripts for DBAs: run as they are, they make what a run makes; and they may be run again."""

from __future__ import annotations

import io
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from tests.migration.conftest import RAW, TABLES, VIEWS, dump, engine_of, run, settings_of, tables
from tests.servers.fixtures import _database as temporary_database
from toc.errors import InvalidInput
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.schema_status import read_schema_statuses


def script(url: str, **how: Any) -> str:
    out = io.StringIO()
    migrate.write_migration_scripts(settings_of(url), out, **how)
    return out.getvalue()


def statements(text: str) -> list[str]:
    """A script as its server's client cuts it."""
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";\n") if part.strip(" \n;")]


def execute(url: str, parts: list[str]) -> None:
    """One statement after the other on one connection, stopping at the first error."""
    with engine_of(url) as engine, engine.connect() as connection:
        for statement in parts:
            connection.exec_driver_sql(statement.rstrip(";"), execution_options=RAW)
        connection.commit()


@pytest.fixture
def unbroken(server: Any) -> Callable[[str], dict[str, str]]:
    """What a run makes, up to a revision."""

    def made(revision: str) -> dict[str, str]:
        with temporary_database(server) as url, engine_of(url) as engine:
            migrate.upgrade(settings_of(url), to=revision)
            return dump(engine)

    return made


def test_as_sql_it_names_every_table_and_runs_nothing(
    settings: Settings, engine: Any, url: str
) -> None:
    sql = script(url)
    for table in TABLES:
        assert f"CREATE TABLE IF NOT EXISTS {table} " in sql
    for view in VIEWS:
        assert f"VIEW {view} AS SELECT" in sql
    assert f"INSERT INTO {migrate.VERSION_TABLE}" in sql
    assert tables(engine) == set()


@pytest.mark.usefixtures("second_revision")
def test_run_as_it_is_and_run_again(
    server_url: str, unbroken: Callable[[str], dict[str, str]]
) -> None:
    whole = statements(script(server_url))
    with engine_of(server_url) as engine:
        execute(server_url, whole)
        assert dump(engine) == unbroken(migrate.newest_revision())
        execute(server_url, whole)
        assert dump(engine) == unbroken(migrate.newest_revision())


@pytest.mark.usefixtures("second_revision")
def test_broken_off_anywhere_and_run_again(
    server: Any, unbroken: Callable[[str], dict[str, str]]
) -> None:
    expected = unbroken(migrate.newest_revision())
    with temporary_database(server) as url:
        length = len(statements(script(url)))
    assert length > 40
    for cut in range(5, length, 6):
        with temporary_database(server) as url, engine_of(url) as engine:
            whole = statements(script(url))
            execute(url, whole[:cut])
            execute(url, whole)
            assert dump(engine) == expected, f"broken off after {whole[cut - 1][:80]}"


def test_it_makes_again_what_somebody_dropped(server_url: str) -> None:
    settings = settings_of(server_url)
    migrate.upgrade(settings)
    run(
        server_url,
        "DROP TABLE toc_job_0000",
        "DROP VIEW toc_events",
    )
    (found,) = read_schema_statuses(settings)
    assert {fault.table for fault in found.faults} >= {"toc_job_0000", "toc_events"}
    execute(server_url, statements(script(server_url)))
    (found,) = read_schema_statuses(settings)
    assert found.has_no_problem, found.faults


@pytest.mark.usefixtures("second_revision")
def test_from_a_revision_and_back(
    server_url: str, unbroken: Callable[[str], dict[str, str]]
) -> None:
    migrate.upgrade(settings_of(server_url), to="0001")
    up = statements(script(server_url, start="0001"))
    down = statements(script(server_url, start=migrate.newest_revision(), end="0001"))
    assert not any("CREATE TABLE IF NOT EXISTS toc_job" in statement for statement in up)
    with engine_of(server_url) as engine:
        for parts, revision in ((up, migrate.newest_revision()), (down, "0001"), (down, "0001")):
            execute(server_url, parts)
            assert dump(engine) == unbroken(revision)
        execute(server_url, up[: len(up) // 2])  # in the middle of it they turn back
        execute(server_url, down)
        assert dump(engine) == unbroken("0001")


@pytest.mark.usefixtures("second_revision")
def test_a_database_at_another_revision_is_left_alone(server_url: str) -> None:
    whole = statements(script(server_url))
    settings = settings_of(server_url)
    with engine_of(server_url) as engine:
        execute(server_url, whole)
        run(server_url, f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
        before = dump(engine)
        with pytest.raises(DBAPIError, match="this database is not at a revision that this script"):
            execute(server_url, whole)
        assert dump(engine) == before
        run(
            server_url,
            f"UPDATE {migrate.VERSION_TABLE} SET version_num = '{migrate.newest_revision()}'",
        )
        migrate.downgrade(settings, "base")
        with pytest.raises(DBAPIError, match="this database is not at a revision that this script"):
            execute(server_url, statements(script(server_url, start="0002")))
        assert tables(engine) == set()


def test_beside_another_runner_it_stops(server_url: str) -> None:
    whole = statements(script(server_url, lock_wait_s=1))
    with engine_of(server_url) as engine, engine.connect() as connection:
        lock = "SELECT GET_LOCK(CONCAT('toc_migrate.', DATABASE()), 0)"
        assert connection.exec_driver_sql(lock).scalar() == 1
        with pytest.raises(DBAPIError, match="another migration is running on this database"):
            execute(server_url, whole)
        assert tables(engine) == set()


@pytest.mark.usefixtures("second_revision")
def test_it_waits_for_locks_as_short_as_a_run(server_url: str) -> None:
    for name in ("lock_wait_timeout = 7", "innodb_lock_wait_timeout = 7"):
        assert name in script(server_url, lock_wait_s=7)
    for line in script(server_url).splitlines():
        if "ALTER TABLE" in line:
            assert "ALGORITHM = INSTANT'" in line


def test_the_server_s_own_client_runs_it(server_url: str, tmp_path: Path) -> None:
    client = shutil.which("mariadb") or shutil.which("mysql")
    if client is None:
        pytest.skip("no client on this machine")
    (path,) = migrate.write_migration_scripts(settings_of(server_url), directory=tmp_path)
    url = make_url(server_url)
    command = [client, "--no-defaults", f"--host={url.host}", f"--port={url.port}"]
    command += [f"--user={url.username}", "--skip-ssl"]
    for _ in range(2):
        with path.open("rb") as file:
            ended = subprocess.run(
                command, stdin=file, capture_output=True, check=False, timeout=60
            )
        assert (ended.returncode, ended.stderr) == (0, b"")
    with engine_of(server_url) as engine:
        found = dump(engine)
    migrate.downgrade(settings_of(server_url), "base")
    migrate.upgrade(settings_of(server_url))
    with engine_of(server_url) as engine:
        assert dump(engine) == found


@pytest.mark.usefixtures("second_revision")
def test_sqlite_s_script_is_one_transaction(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("run", "script")]
    migrate.upgrade(settings_of(urls[0]))
    with sqlite3.connect(tmp_path / "script.db") as connection:
        connection.executescript(script(urls[1]))
        with pytest.raises(sqlite3.OperationalError, match="duplicate column"):
            connection.executescript(script(urls[1]))
        connection.rollback()
    connection.close()
    with engine_of(urls[0]) as first, engine_of(urls[1]) as second:
        assert dump(second) == dump(first)


def test_a_file_for_each_database_without_its_password(tmp_path: Path) -> None:
    urls = [
        "mysql+pymysql://dba:hidden-word@h0/orders",
        "mysql+pymysql://dba:hidden-word@h1/orders?charset=utf8mb4",
    ]
    settings = settings_of(*urls, shards=8)
    paths = migrate.write_migration_scripts(settings, directory=tmp_path / "sql")
    assert [path.name for path in paths] == ["toc_0_orders.sql", "toc_1_orders.sql"]
    for index, path in enumerate(paths):
        text = path.read_text()
        own = {f"toc_job_{shard:04d}" for shard in range(index * 4, index * 4 + 4)}
        assert set(re.findall(r"toc_job_\d+", text)) == own
        assert "USE `orders`;" in text
        assert "hidden-word" not in text
        assert "dba" not in text
    with pytest.raises(InvalidInput, match="--directory DIR writes a script for each"):
        migrate.write_migration_scripts(settings, io.StringIO())


def test_a_name_that_is_no_file_s_name(tmp_path: Path) -> None:
    settings = settings_of("mysql+pymysql://h/..%2Fa`b%20c")
    (path,) = migrate.write_migration_scripts(settings, directory=tmp_path)
    assert path.parent == tmp_path
    assert path.name == "toc_0_.._a_b_c.sql"
    assert "USE `../a``b c`;" in path.read_text()


def test_the_way_to_an_empty_database_is_not_written(server_url: str) -> None:
    with pytest.raises(migrate.MigrationFailed, match="a script cannot see whether the job tables"):
        script(server_url, start="0001", end="base")


def test_an_unknown_revision(server_url: str) -> None:
    with pytest.raises(InvalidInput, match="must be one of 0001"):
        script(server_url, end="9999")
