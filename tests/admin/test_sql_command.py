"""`toc sql` at the keyboard and in scripts."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.admin.world import World, sqlite_world
from tests.cli.conftest import Toc, no_settings, toc
from toc.runtime.clock import SystemClock

__all__ = ["no_settings", "toc"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Sql = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def sql(sqlite_rows: World, toc: Toc, monkeypatch: pytest.MonkeyPatch) -> Sql:
    """Runs `toc sql …` on the rows; gives the exit code and both streams."""
    monkeypatch.setenv("TOC_DATABASES", ",".join(sqlite_rows.settings.databases))
    monkeypatch.setenv("TOC_SHARDS", "8")
    monkeypatch.setenv("TOC_REDIS_URL", "none")

    def call(*arguments: object) -> tuple[int, str, str]:
        result = toc("sql", *arguments)
        return result.code, result.out, result.err

    return call


def test_a_table_for_people(sql: Sql) -> None:
    code, out, err = sql(
        "SELECT status_name, COUNT(*) AS n FROM toc_jobs GROUP BY 1 ORDER BY 1 LIMIT 2"
    )
    assert (code, err) == (0, "")
    head, _, first, second = (line.split() for line in out.splitlines())
    assert head == ["status_name", "n"]
    assert [first[0], second[0]] == ["cancelled", "dead"]
    assert first[1].isdigit()
    assert sql("SELECT job_id FROM toc_jobs WHERE status > 99")[:2] == (0, "no rows\n")
    assert "NULL" in sql("SELECT due_time FROM toc_jobs WHERE status = 2 LIMIT 1")[1]
    _, out, _ = sql("SELECT action_time FROM toc_jobs LIMIT 1")
    assert re.search(r"^202\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z\s*$", out, re.MULTILINE)


def test_json(sql: Sql) -> None:
    code, out, err = sql(
        "--json",
        "SELECT job_id, biz_id, status, due_time, DATE(action_time) AS day, AVG(attempts) AS tries, "
        "MAX(biz_id) AS top, MAX(attempts) + 9007199254740993 AS big FROM toc_jobs GROUP BY 1, 2, 3, 4, 5 "
        "ORDER BY due_time IS NULL, due_time, 1 LIMIT 2",
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["columns"] == [
        "job_id",
        "biz_id",
        "status",
        "due_time",
        "day",
        "tries",
        "top",
        "big",
    ]
    assert (found["more"], found["missing"], found["tables_asked"]) == (False, [], 8)
    row = found["rows"][0]
    assert list(row) == found["columns"]
    assert isinstance(row["job_id"], str)  # ids are texts, as in all of toc's JSON
    assert isinstance(row["biz_id"], str)
    assert isinstance(row["top"], str)
    assert isinstance(row["big"], str)  # a double would change it
    assert isinstance(row["status"], int)
    assert isinstance(row["tries"], float)
    assert re.fullmatch(r"202\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["due_time"])
    assert re.fullmatch(r"202\d-\d\d-\d\d", row["day"])


def test_csv(sql: Sql) -> None:
    code, out, err = sql(
        "--csv", "SELECT attribute, due_time, attempts FROM toc_jobs ORDER BY job_id LIMIT 300"
    )
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out, newline="")))
    assert len(rows) == 300
    assert {"two\nlines", 'say"x"', "it's", ""} <= {row["attribute"] for row in rows}
    assert any(re.fullmatch(r"202.*T.*Z", row["due_time"]) for row in rows)


def test_csv_on_a_terminal_does_not_command_it(sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "SELECT 'a\x1b[2J\x9b\nb' AS a, 'c' AS `x\x1bc`, COUNT(*) AS n FROM toc_jobs"
    exact = sql("--csv", text)[1]
    assert exact.startswith('a,x\x1bc,n\n"a\x1b[2J\x9b\nb","c",')  # files and pipes
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    sql("--csv", text)
    assert terminal.getvalue().startswith('a,x\\x1bc,n\n"a\\x1b[2J\\x9b\nb","c",')


def test_csv_tells_null_from_the_empty_text(sql: Sql) -> None:
    text = "SELECT NULL AS a, '' AS b, 'say \"x\"' AS c, 7 AS d, COUNT(*) AS n FROM toc_jobs"
    code, out, err = sql("--csv", text)
    assert (code, err) == (0, "")
    assert re.fullmatch(r'a,b,c,d,n\n,"","say ""x""",7,\d+\n', out)


def test_csv_has_no_formulas(sql: Sql) -> None:
    """A spreadsheet would run them: OWASP, CSV injection. Numbers are no texts."""
    texts = ("=1+1", "+1", "-1", "@SUM(A1)", "\uff1d1", "a=1", "'=1", " =1")
    selected = ", ".join(
        f"'{text.replace(chr(39), chr(39) * 2)}' AS c{n}" for n, text in enumerate(texts)
    )
    code, out, err = sql("--csv", f"SELECT {selected}, -7 AS n, COUNT(*) AS m FROM toc_jobs")
    assert (code, err) == (0, "")
    _, row = csv.reader(io.StringIO(out, newline=""))
    assert row[:8] == ["'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\uff1d1", "a=1", "'=1", " =1"]
    assert row[8] == "-7"
    code, out, err = sql("--csv", "SELECT COUNT(*) AS `=1+1` FROM toc_jobs")
    assert (code, out.split("\n")[0]) == (0, "'=1+1"), err


def test_where_the_statement_comes_from(
    sql: Sql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "SELECT COUNT(*) AS n -- how many\nFROM toc_jobs;\n"
    (tmp_path / "q.sql").write_text(f"-- a head\n{text}")
    answers = [sql(text), sql("--file", tmp_path / "q.sql"), sql(f"@{tmp_path}/q.sql")]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    answers.append(sql("-"))
    assert len(set(answers)) == 1
    assert answers[0][0] == 0
    assert sql() == (2, "", "toc: give a SELECT, or --file FILE, or - for standard input\n")
    assert sql("SELECT 1", "--file", "x")[0] == 2
    assert sql("--file", "nowhere.sql") == (2, "", "toc: nowhere.sql: No such file or directory\n")
    (tmp_path / "latin.sql").write_bytes(b"SELECT '\xe4'")
    assert sql("--file", "latin.sql") == (2, "", "toc: latin.sql: is not UTF-8 text\n")


def test_values_are_set_by_name(sql: Sql) -> None:
    text = "SELECT COUNT(*) AS n FROM toc_jobs WHERE status = @status AND dedup_key = @key"
    code, out, _ = sql(text, "--set", "status=0", "--set", "key=a", "--csv")
    assert code == 0
    assert out == sql(text.replace("@status", "0").replace("@key", "'a'"), "--csv")[1]
    assert int(out.split()[1]) > 0
    assert "--set key=VALUE" in sql(text, "--set", "status=0")[2]
    assert sql(text, "--set", "status")[0] == 2
    assert "@stauts" in sql(text, "--set", "status=0", "--set", "key=a", "--set", "stauts=1")[2]
    injected = sql(text, "--set", "status=0 OR 1=1", "--set", "key=a")
    assert injected[0] == 2
    assert "status is a number" in injected[2]


def test_explain_asks_nobody(sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "TOC_DATABASES",
        "mysql+pymysql://nobody@127.0.0.1:1/a mariadb+pymysql://nobody@127.0.0.1:1/b",
    )
    text = "SELECT biz_type, COUNT(*) FROM toc_jobs WHERE attribute = 'it''s' GROUP BY 1"
    code, out, err = sql(text, "--explain")
    assert (code, err) == (0, "")
    assert out.count("-- database ") == 8
    assert (
        "-- database 1, table toc_job_0007\nSELECT biz_type AS c0, COUNT(*) AS c1 FROM (SELECT 7"
        in out
    )
    assert out.count("WHERE attribute = 'it''s' GROUP BY 1 LIMIT 100001;") == 8
    found = json.loads(sql(text, "--explain", "--json", "--database", 1)[1])["statements"]
    assert [(one["database"], one["table"]) for one in found] == [
        (1, f"toc_job_{n:04d}") for n in range(4, 8)
    ]
    assert sql("UPDATE toc_jobs SET status = 3", "--explain")[0] == 2


def test_rows_are_limited(sql: Sql) -> None:
    code, out, err = sql("SELECT job_id FROM toc_jobs", "--csv", "--limit-rows", 5)
    assert (code, len(out.splitlines())) == (0, 6)
    assert err == (
        "toc: only the first 5 rows are shown: --limit-rows, or LIMIT in the statement\n"
    )
    assert json.loads(sql("SELECT job_id FROM toc_jobs", "--json", "--limit-rows", 5)[1])["more"]
    assert sql("SELECT job_id FROM toc_jobs LIMIT 5", "--csv", "--limit-rows", 5)[2] == ""
    assert sql("SELECT job_id FROM toc_jobs", "--limit-rows", 0)[0] == 2


def test_one_database(sql: Sql) -> None:
    _, out, _ = sql("SELECT DISTINCT shard FROM toc_jobs ORDER BY 1", "--csv", "--database", 1)
    assert out == "shard\n4\n6\n7\n"
    code, _, err = sql("SELECT 1 AS x FROM toc_jobs", "--database", 2)
    assert (code, err) == (2, "toc: --database: there are 0 to 1\n")


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("UPDATE toc_jobs SET status = 3", 2, "only a SELECT is accepted"),
        ("SELECT due_tme FROM toc_jobs", 2, "did you mean due_time?; got 'due_tme'"),
        ("SELECT job_id FROM toc_jobs WHERE SLEEP(9)", 2, "got 'SLEEP'"),
        ("SELECT job_id FROM toc_jobs NATURAL JOIN toc_events", 2, "NATURAL is not accepted here"),
    ],
)
def test_a_mistake_is_one_line(sql: Sql, text: str, code: int, says: str) -> None:
    found, out, err = sql(text)
    assert (found, out) == (code, "")
    assert err.startswith("toc: sql: ")
    assert err.count("\n") == 1
    assert says in err


def test_what_fails_is_named_and_nothing_else_is_said(
    sql: Sql, sqlite_rows: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = sqlite_rows.settings.databases[0]
    monkeypatch.setenv("TOC_DATABASES", f"{here},sqlite:///{tmp_path}/gone.db")
    text = "SELECT shard, COUNT(*) AS n FROM toc_jobs GROUP BY shard ORDER BY shard"
    code, out, err = sql(text, "--csv")
    assert (code, out) == (3, "")
    assert err.startswith("toc: database 1: does not answer: ")
    assert err.count("\n") == 1
    code, out, err = sql(text, "--csv", "--partial")
    assert code == 1
    assert out.split() == ["shard,n", *out.split()[1:]]
    assert [line[0] for line in out.split()[1:]] == ["0", "1", "2", "3"]
    assert err.count("toc: missing: database 1: ") == 4
    missing = json.loads(sql(text, "--json", "--partial")[1])["missing"]
    assert [(one["database"], one["table"]) for one in missing] == [
        (1, f"toc_job_{n:04d}") for n in range(4, 8)
    ]


def test_a_dropped_table_is_named(
    toc: Toc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = sqlite_world(tmp_path / "own")
    own.execute("ALTER TABLE toc_job_0006 RENAME TO away", 1)
    monkeypatch.setenv("TOC_DATABASES", ",".join(own.settings.databases))
    monkeypatch.setenv("TOC_SHARDS", "8")
    result = toc("sql", "SELECT COUNT(*) FROM toc_jobs")
    assert (result.code, result.out) == (4, "")
    assert result.err == "toc: database 1, table toc_job_0006: no such table: toc_job_0006\n"
    assert toc("sql", "SELECT COUNT(*) FROM toc_jobs", "--database", 0).code == 0
    result = toc("sql", "SELECT SUM(9223372036854775807) FROM toc_jobs", "--database", 0)
    assert (result.code, result.out) == (2, "")  # the server finds it wrong
    assert re.fullmatch(r"toc: database 0, table toc_job_000\d: integer overflow\n", result.err)


class Hurrying(SystemClock):
    """A minute passes between two looks at it."""

    def __init__(self) -> None:
        self._looks = itertools.count()

    def monotonic_s(self) -> float:
        return 60.0 * next(self._looks)


def test_time_is_limited(sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toc.admin.query_run.SystemClock", Hurrying)
    code, out, err = sql("SELECT COUNT(*) FROM toc_jobs", "--whole-timeout", 50)
    assert (code, out) == (1, "")
    assert re.fullmatch(
        r"toc: database \d, table toc_(job_\d{4}|biz_type): was not run: all queries together took too long; "
        r"--whole-timeout allows more\n",
        err,
    )
    monkeypatch.setattr("toc.store.query_fan_out._SQLITE_STEPS", 10)
    code, out, err = sql("SELECT COUNT(*) FROM toc_jobs", "--whole-timeout", 9999)
    assert (code, out) == (1, "")
    assert err.endswith(": took longer than 10 s; --timeout allows more\n")


def test_progress_is_for_terminals(sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toc.cli.sql._PROGRESS_AFTER_S", 0.0)
    assert sql("SELECT COUNT(*) FROM toc_jobs")[2] == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    code, out, err = sql("SELECT COUNT(*) AS n FROM toc_jobs", "--csv")
    assert code == 0
    assert out.startswith("n\n")
    assert "asking tables" in err


@pytest.mark.parametrize("world", ["mysql", "mariadb"], indirect=True)
def test_on_servers(world: World, toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOC_DATABASES", ",".join(world.settings.databases))
    monkeypatch.setenv("TOC_SHARDS", "8")
    monkeypatch.setenv("TOC_REDIS_URL", "none")
    text = (
        "SELECT biz_type, COUNT(*) AS n, SUM(attempts) AS s, AVG(late_ms) AS a, MAX(biz_id) AS b "
        "FROM toc_jobs GROUP BY biz_type ORDER BY biz_type"
    )
    result = toc("sql", text, "--json")
    assert (result.code, result.err) == (0, "")
    truth = world.truth(text)
    for row, (name, count, total, average, most) in zip(result.json["rows"], truth, strict=True):
        assert row == {
            "biz_type": name,
            "n": count,
            "s": int(total),
            "a": float(average),
            "b": str(most),
        }
    wrong = make_url(world.settings.databases[0]).set(username="nobody", password="hidden")
    monkeypatch.setenv(
        "TOC_DATABASES",
        f"{wrong.render_as_string(hide_password=False)},{world.settings.databases[1]}",
    )
    result = toc("sql", "SELECT COUNT(*) FROM toc_jobs")
    assert result.code == 4
    assert result.err.startswith("toc: database 0: Access denied for user 'nobody'")
    assert "hidden" not in result.err


def test_help_does_not_load_it(toc: Toc) -> None:
    result = toc("sql", "--help")
    assert result.code == 0
    assert "toc_dead_jobs" in result.out
    assert " sql " in toc("--help").out
