"""`toc migrate`: what it says, what it refuses, and its exit codes."""

import json
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from tests.cli.conftest import Toc
from toc.store import migrate
from toc.store.schema_drift import format_table_ranges

HEAD = migrate.newest_revision()
INSERT = (
    "INSERT INTO toc_job_0001 (job_id, biz_id, type_no, action_time) VALUES (1, 1, 1, '2030-01-01')"
)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs of two databases where nothing is yet, with two shards each."""
    urls = [f"sqlite:///{tmp_path}/{index}.db" for index in range(2)]
    monkeypatch.setenv("TOC_DATABASES", ",".join(urls))
    monkeypatch.setenv("TOC_SHARDS", "4")
    return urls


def execute(url: str, statement: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def is_one_line(text: str) -> bool:
    return text.startswith("toc: ") and text.count("\n") == 1


@pytest.mark.usefixtures("two")
def test_it_says_what_it_did(toc: Toc) -> None:
    result = toc("migrate")
    assert result.code == 0
    assert (
        result.out == f"2 databases at revision {HEAD}: 32 tables and 8 views brought up to date\n"
    )
    again = toc("migrate")
    assert (again.code, again.err) == (0, "")
    assert again.out == f"2 databases at revision {HEAD}: nothing was to be done\n"
    down = toc("migrate", "--down-to", "base", "--yes")
    assert down.out == "2 databases at revision none: 32 tables and 8 views taken back\n"
    assert toc("migrate", "--json").json == {
        "databases": 2, "revision": HEAD, "tables": 32, "views": 8, "steps": 40, "pending": [],
    }  # fmt: skip


@pytest.mark.usefixtures("two", "second_revision")
def test_its_bars_count_the_steps_of_every_revision(toc: Toc) -> None:
    result = toc("migrate")
    for database in (0, 1):
        assert f"database {database} " in result.err
    # 16 tables, 4 views and 2 columns
    assert result.err.count(" 22/22 ") == 2
    toc("migrate", "--down-to", "0001", "--yes")
    assert toc("migrate").err.count(" 2/2 ") == 2


@pytest.mark.usefixtures("two", "second_revision")
def test_not_beyond_a_revision(toc: Toc) -> None:
    assert toc("migrate", "--to", "0001").code == 0
    assert toc("migrate", "--status", "--json").json["databases"][1]["revision"] == "0001"
    assert toc("migrate").code == 0
    result = toc("migrate", "--to", "0001")
    assert result.code == 1
    assert is_one_line(result.err)
    assert "the way back is --down-to 0001" in result.err


@pytest.mark.usefixtures("second_revision")
def test_the_way_back_is_asked_for(toc: Toc, two: list[str]) -> None:
    toc("migrate")
    asked = toc("migrate", "--down-to", "base")
    assert (asked.code, asked.out) == (2, "")
    assert is_one_line(asked.err)
    for word in (
        "view toc_jobs",
        "column note of 2 tables",
        "table toc_event",
        "2 job tables",
    ):
        assert word in asked.err
    assert toc("migrate", "--status").code == 0
    execute(two[1], INSERT.replace("0001", "0002"))
    refused = toc("migrate", "--down-to", "base", "--yes")
    assert refused.code == 1
    assert is_one_line(refused.err)
    assert "database 1, table toc_job_0002: the table holds jobs" in refused.err
    assert toc("migrate", "--status").code == 0  # nothing was changed, not on database 0 either
    execute(two[1], "DELETE FROM toc_job_0002")
    assert toc("migrate", "--down-to", "base", "--yes", "--json").json["revision"] is None


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    "arguments",
    [
        ("--status", "--sql"),
        ("--status", "--down-to", "0001"),
        ("--to", "0001", "--down-to", "0001"),
        ("--sql", "--down-to", "0001"),
        ("--directory", "x"),
        ("--from", "0001"),
        ("--to", "9999"),
        ("--down-to", "9999"),
        ("--down-to", "9999", "--yes"),
        ("--sql", "--directory", "x", "--to", "9999"),
        ("--sql", "--directory", "x", "--from", "9999"),
        ("--phase", "now"),
        ("--lock-wait", "0"),
        ("--lock-wait", "3601"),
    ],
    ids=" ".join,
)
def test_bad_input_changes_nothing(toc: Toc, arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = toc("migrate", *arguments)
    assert (result.code, result.out) == (2, "")
    assert is_one_line(result.err)
    assert not list(tmp_path.glob("*.db"))


# ---- scripts


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two databases that nobody can reach: scripts need none."""
    urls = "mysql+pymysql://u:hush-hush@g/toc,mysql+pymysql://u:hush-hush@h/toc"
    monkeypatch.setenv("TOC_DATABASES", urls)
    monkeypatch.setenv("TOC_SHARDS", "4")


@pytest.mark.usefixtures("away", "second_revision")
def test_a_script_for_each_database(toc: Toc, tmp_path: Path) -> None:
    refused = toc("migrate", "--sql")
    assert (refused.code, refused.out) == (2, "")
    assert is_one_line(refused.err)
    assert "--directory" in refused.err
    result = toc("migrate", "--sql", "--directory", tmp_path / "sql")
    assert result.code == 0
    paths = [tmp_path / "sql" / f"toc_{index}_toc.sql" for index in range(2)]
    assert result.out.splitlines() == [str(path) for path in paths]
    assert "CREATE TABLE IF NOT EXISTS toc_job_0000" in paths[0].read_text()
    assert "CREATE TABLE IF NOT EXISTS toc_job_0003" in paths[1].read_text()
    back = toc(
        "migrate",
        "--sql",
        "--directory",
        tmp_path / "sql",
        "--from",
        "0002",
        "--to",
        "0001",
        "--json",
    )
    assert back.json == {"scripts": [str(path) for path in paths]}
    texts = [path.read_text() for path in paths]
    assert all("DROP COLUMN note" in text for text in texts)
    assert "hush-hush" not in "".join([result.out, result.err, *texts])


def test_one_database_s_script_is_printed(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOC_DATABASES", "mysql+pymysql://u:hush-hush@h/toc")
    result = toc("migrate", "--sql")
    assert result.code == 0
    assert "CREATE TABLE IF NOT EXISTS toc_job_0063" in result.out
    assert "hush-hush" not in result.out + result.err
    assert toc("migrate", "--sql", "--json").code == 2


# ---- status


@pytest.mark.usefixtures("two")
def test_status_of_nothing_and_of_everything(toc: Toc) -> None:
    result = toc("migrate", "--status")
    assert result.code == 1
    lines = result.out.splitlines()
    assert lines[0] == "database 0: revision none"
    assert lines[1].startswith("  pending 0001 (pre), All tables and views")
    assert lines[1].endswith(": not begun")
    assert lines[-1] == f"this release brings {HEAD}; 0 of 2 databases as declared"
    toc("migrate")
    result = toc("migrate", "--status")
    assert result.code == 0
    assert result.out.splitlines() == [
        f"database 0: revision {HEAD}, as declared",
        f"database 1: revision {HEAD}, as declared",
        f"this release brings {HEAD}; 2 of 2 databases as declared",
    ]


def test_status_names_what_differs_and_where(toc: Toc, two: list[str]) -> None:
    toc("migrate")
    execute(two[0], "DROP INDEX ix_due_toc_job_0000")
    execute(two[1], "DROP TABLE toc_job_0003")
    execute(two[1], "CREATE TABLE toc_job_0009 (x INT)")
    result = toc("migrate", "--status")
    assert result.code == 1
    assert result.out.splitlines() == [
        f"database 0: revision {HEAD}",
        "  fault: toc_job_0000: index ix_due_toc_job_0000 is missing",
        f"database 1: revision {HEAD}",
        "  fault: toc_job_0003: the table is missing",
        "  fault: toc_jobs: it cannot be read: a table, view or column that it reads is missing",
        "  note: toc_job_0009: the table is not one of toc's here",
        f"this release brings {HEAD}; 0 of 2 databases as declared",
    ]
    found = toc("migrate", "--status", "--json").json
    assert found["head"] == HEAD
    assert [database["ok"] for database in found["databases"]] == [False, False]
    assert found["databases"][0]["faults"] == [
        {"table": "toc_job_0000", "text": "index ix_due_toc_job_0000 is missing"}
    ]


def test_status_while_a_database_is_down(
    toc: Toc, monkeypatch: pytest.MonkeyPatch, two: list[str]
) -> None:
    toc("migrate")
    monkeypatch.setenv("TOC_DATABASES", f"{two[0]},sqlite:////nowhere/toc.db")
    result = toc("migrate", "--status")
    assert (result.code, result.err) == (1, "")
    lines = result.out.splitlines()
    assert lines[0] == f"database 0: revision {HEAD}, as declared"
    assert lines[1].startswith("database 1 does not answer: ")
    assert lines[2] == f"this release brings {HEAD}; 1 of 2 databases as declared"
    assert json.loads(toc("migrate", "--status", "--json").out)["databases"][1]["error"]


def test_status_of_a_newer_schema(toc: Toc, two: list[str]) -> None:
    toc("migrate")
    for url in two:
        execute(url, f"UPDATE {migrate.VERSION_TABLE} SET version_num = '9999'")
    assert toc("migrate", "--status").code == 0  # it says that it fits
    execute(two[0], "DELETE FROM toc_meta WHERE name = 'schema_fits_since'")
    result = toc("migrate", "--status")
    assert result.code == 1
    assert "  it is at revision 9999, which this release does not know" in result.out
    refused = toc("migrate")
    assert refused.code == 4
    assert is_one_line(refused.err)
    assert "database 0 is at revision 9999, which this release does not know" in refused.err
    started = toc("cancel", "1")
    assert started.code == 4
    assert "database 0 is at revision 9999" in started.err


def test_runs_of_shards_are_their_first_and_last() -> None:
    jobs = [f"toc_job_{shard:04d}" for shard in (3, 4, 5, 9)]
    assert format_table_ranges(jobs) == "toc_job_0003 … toc_job_0005, toc_job_0009 (4 tables)"
    assert format_table_ranges(["toc_event", "toc_job_0001"]) == "toc_event, toc_job_0001"
    assert format_table_ranges(["toc_jobs"]) == "toc_jobs"


def test_a_table_that_somebody_dropped_is_an_error(toc: Toc, two: list[str]) -> None:
    assert toc("migrate").code == 0
    execute(two[1], "DROP TABLE toc_job_0003")
    result = toc("migrate")
    assert result.code == 1
    assert is_one_line(result.err.splitlines(keepends=True)[-1])
    assert "database 1: toc_job_0003" in result.err
    assert "`toc migrate --status` shows all" in result.err
