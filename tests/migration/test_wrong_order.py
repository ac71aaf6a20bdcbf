"""Scripts and runs for another database than the one that they meet: refused before anything changes."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError

from tests.migration.conftest import dump, engine_of, run, scalar, settings_of
from tests.migration.test_scripts import execute, statements
from tests.servers.fixtures import _database as temporary_database
from toc.errors import SchemaMismatch
from toc.runtime.settings import Settings
from toc.store import migrate

ROWS = 20
INSERT = (
    "INSERT INTO {} (job_id, biz_id, type_no, action_time) "
    "VALUES ({}, 1, 1, '2030-01-01 00:00:00.000')"
)


@pytest.fixture
def pair(server: Any) -> Iterator[tuple[str, str]]:
    """Two databases with all their tables, and jobs in the first one."""
    with temporary_database(server) as first, temporary_database(server) as second:
        migrate.upgrade(settings_of(first, second, shards=4))
        run(first, *(INSERT.format(f"toc_job_000{n % 2}", n) for n in range(ROWS)))
        yield first, second


def record(settings: Settings) -> None:
    """Writes the facts that the first start of a process keeps in `toc_meta`."""
    for index, url in enumerate(settings.databases):
        facts = {**settings.routing.meta_values(), "database": str(index)}
        run(url, *(f"INSERT INTO toc_meta VALUES ('{k}', '{v}')" for k, v in facts.items()))


def scripts(settings: Settings, directory: Path, **how: Any) -> list[list[str]]:
    paths = migrate.write_migration_scripts(settings, directory=directory, **how)
    return [statements(path.read_text()) for path in paths]


@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not yet recorded"])
def test_scripts_for_urls_in_the_wrong_order_change_nothing(
    pair: tuple[str, str], tmp_path: Path, recorded: bool
) -> None:
    first, second = pair
    if recorded:
        record(settings_of(first, second, shards=4))
    wrong = scripts(settings_of(second, first, shards=4), tmp_path)
    for url, whole in zip((second, first), wrong, strict=True):
        with engine_of(url) as engine:
            before = dump(engine)
            with pytest.raises(DBAPIError, match=r"the script|tables of other shards"):
                execute(url, whole)
            assert dump(engine) == before
    assert scalar(first, "SELECT COUNT(*) FROM toc_jobs") == ROWS


@pytest.mark.usefixtures("second_revision")
@pytest.mark.parametrize(
    ("fact", "value", "said"),
    [
        ("shards", "8", "toc_meta says shards = 8, the script says 4"),
        ("databases", "4", "toc_meta says databases = 4, the script says 2"),
        ("database", "1", "toc_meta says database = 1, the script says 0"),
    ],
)
def test_a_script_names_the_fact_that_differs(
    pair: tuple[str, str], tmp_path: Path, fact: str, value: str, said: str
) -> None:
    settings = settings_of(*pair, shards=4)
    record(settings)
    ups = scripts(settings, tmp_path / "up", start="0001")
    downs = scripts(settings, tmp_path / "down", start=migrate.newest_revision(), end="0001")
    for whole in (ups[0], downs[0]):
        execute(pair[0], whole)  # it is for this database
    run(pair[0], f"UPDATE toc_meta SET value = '{value}' WHERE name = '{fact}'")
    for whole in (ups[0], downs[0]):
        with pytest.raises(DBAPIError, match=re.escape(said)):
            execute(pair[0], whole)


def test_the_server_s_own_client_stops_at_the_guard(pair: tuple[str, str], tmp_path: Path) -> None:
    client = shutil.which("mariadb") or shutil.which("mysql")
    if client is None:
        pytest.skip("no client on this machine")
    first, second = pair
    record(settings_of(first, second, shards=4))
    paths = migrate.write_migration_scripts(
        settings_of(second, first, shards=4), directory=tmp_path
    )
    url = make_url(first)
    command = [client, "--no-defaults", f"--host={url.host}", f"--port={url.port}"]
    command += [f"--user={url.username}", "--skip-ssl"]
    with engine_of(first) as engine:
        before = dump(engine)
        with paths[1].open("rb") as file:  # it goes to `first` by its USE
            ended = subprocess.run(
                command, stdin=file, capture_output=True, check=False, timeout=60
            )
        assert ended.returncode != 0
        assert b"toc_meta says database = 0, the script says 1" in ended.stderr
        assert dump(engine) == before


@pytest.mark.usefixtures("second_revision")
@pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not yet recorded"])
def test_a_run_for_urls_in_the_wrong_order_changes_nothing(
    pair: tuple[str, str], recorded: bool
) -> None:
    first, second = pair
    if recorded:
        record(settings_of(first, second, shards=4))
    run(second, "DROP VIEW toc_jobs", f"UPDATE {migrate.VERSION_TABLE} SET version_num = '0001'")
    with engine_of(second) as engine:
        before = dump(engine)
        with pytest.raises(SchemaMismatch, match=r"database 0\b.*nothing was changed"):
            migrate.upgrade(settings_of(second, first, shards=4))
        assert dump(engine) == before


@pytest.mark.usefixtures("second_revision")
def test_on_sqlite_a_script_for_another_database_changes_nothing(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("one", "two")]
    migrate.upgrade(settings_of(*urls, shards=4), to="0001")
    record(settings_of(*urls, shards=4))
    for at in (0, 1):
        wrong = scripts(settings_of(*urls[::-1], shards=4), tmp_path / "sql", start="0001")[at]
        with engine_of(urls[::-1][at]) as engine:
            before = dump(engine)
            connection = sqlite3.connect(make_url(urls[::-1][at]).database or "")
            with pytest.raises(sqlite3.DatabaseError):
                connection.executescript(";\n".join(wrong) + ";")
            connection.rollback()
            connection.close()
            assert dump(engine) == before
        right = scripts(settings_of(*urls, shards=4), tmp_path / "sql", start="0001")[at]
        connection = sqlite3.connect(make_url(urls[at]).database or "")
        connection.executescript(";\n".join(right) + ";")
        connection.close()
