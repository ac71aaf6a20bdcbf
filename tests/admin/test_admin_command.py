"""`toc admin …`, `--reason` and `toc explain` as a person at the keyboard meets them."""

from __future__ import annotations

import getpass
import json
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Toc, no_settings, redis, servers, start, toc
from tests.cli.processes import Process, clean_environment, wait_until
from toc.cli.clients import current_person

__all__ = ["no_settings", "redis", "servers", "start", "toc"]

pytestmark = pytest.mark.usefixtures("servers")

ME = f"{getpass.getuser()}@{socket.gethostname()}"


def schedule(toc: Toc, count: int, when: str = "5m", biz_type: str = "order.close") -> list[str]:
    return [
        str(toc("schedule", n, when, "--type", biz_type, "--json").json["job_id"])
        for n in range(count)
    ]


def rows(path: Path, sql: str) -> list[Any]:
    """Plain SQL in both databases; `#` is each of their job tables."""
    found: list[Any] = []
    for index, shards in ((0, (0, 1)), (1, (2, 3))):
        with sqlite3.connect(path / f"{index}.db") as connection:
            tables = [f"toc_job_{shard:04d}" for shard in shards] if "#" in sql else [""]
            for table in tables:
                found += connection.execute(sql.replace("#", table)).fetchall()
        connection.close()
    return found


def cancelled(path: Path) -> int:
    return sum(count for (count,) in rows(path, "SELECT COUNT(*) FROM # WHERE status = 3"))


def is_one_line(text: str) -> bool:
    return text.startswith("toc: ") and text.count("\n") == 1 and "Traceback" not in text


# ---- a dry run, then a real one


def test_a_dry_run_says_what_would_be(toc: Toc, tmp_path: Path) -> None:
    schedule(toc, 6)
    schedule(toc, 2, biz_type="report")
    where = "biz_type='order.close' and biz_id>0"
    result = toc("admin", "cancel", "--where", where)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("where biz_type = 'order.close' AND biz_id > 0\n")
    assert "5 match, 5 of them can be changed (pending)" in result.out
    assert "nothing is changed. To do it, add --reason '…' --yes" in result.out
    found = toc("admin", "cancel", "--where", where, "--json").json
    assert {key: found[key] for key in ("verb", "dry_run", "matched", "in_reach")} == {
        "verb": "cancel", "dry_run": True, "matched": 5, "in_reach": 5,
    }  # fmt: skip
    assert sum(part["matched"] for part in found["databases"]) == 5
    kind = {"biz_type": "order.close", "status": "pending", "matched": 5, "in_reach": 5}
    assert found["types"] == [kind]
    assert found["examples"][0]["biz_type"] == "order.close"
    assert cancelled(tmp_path) == 0
    assert rows(tmp_path, "SELECT * FROM toc_event") == []
    nothing = toc("admin", "redrive", "--where", "TRUE")
    assert nothing.code == 0
    assert "8 match, 0 of them can be changed (dead)" in nothing.out
    assert "--yes" not in nothing.out


def test_a_real_run_prints_its_counts_and_leaves_events(toc: Toc, tmp_path: Path) -> None:
    ids = schedule(toc, 6)
    assert toc("slots", "--json").json["armed"] == 6
    result = toc("admin", "cancel", "--where", "biz_id < 4", "--reason", "INC-1", "--yes", "--json")
    printed = result.json
    assert result.code == 0
    assert begins_with_its_name(result.err, printed["run"]) == ""
    assert (printed["changed"], printed["complete"], printed["error"]) == (4, True, None)
    assert sum(part["changed"] for part in printed["databases"]) == 4
    assert (printed["actor"], printed["reason"], printed["dry_run"]) == (ME, "INC-1", False)
    assert cancelled(tmp_path) == 4
    events = rows(tmp_path, "SELECT job_id, what, actor, reason, run_id FROM toc_event")
    run = printed["run"]
    assert sorted(events) == sorted((int(i), "cancel", ME, "INC-1", run) for i in ids[:4])
    assert toc("slots", "--json").json["armed"] == 2
    shown = toc("admin", "postpone", "--where", "TRUE", "--by", "1h", "--reason", "x", "--yes",
                "--actor", "ann")  # fmt: skip
    assert shown.code == 0
    assert re.search(r"run [0-9a-f]{8}: 2 changed\n$", shown.out)
    assert [
        row[0] for row in rows(tmp_path, "SELECT actor FROM toc_event WHERE what <> 'cancel'")
    ] == ["ann"] * 2
    none = toc("admin", "cancel", "--where", "FALSE", "--reason", "x", "--yes")
    assert (none.code, none.out) == (0, "no jobs are in reach\n")


def test_times(toc: Toc, tmp_path: Path) -> None:
    schedule(toc, 2, "5m")
    run = ("--reason", "x", "--yes", "--json")
    assert toc("admin", "postpone", "--where", "TRUE", "--by", "1h30m", *run).json["changed"] == 2
    to = "2031-02-03T04:05:06.789+08:00"
    assert toc("admin", "postpone", "--where", "TRUE", "--to", to, *run).json["changed"] == 2
    assert set(rows(tmp_path, "SELECT action_time, due_time FROM #")) == {
        ("2031-02-02 20:05:06.789", "2031-02-02 20:05:06.789")
    }
    assert toc("admin", "postpone", "--where", "TRUE", "--to", "2h", *run).json["changed"] == 0


def test_the_bar_on_a_terminal(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule(toc, 3)
    monkeypatch.setenv("FORCE_COLOR", "1")
    run = ("--where", "TRUE", "--reason", "x", "--yes", "--json")
    result = toc("admin", "cancel", *run)
    assert result.json["changed"] == 3  # standard output stays one document
    assert "reading shards" in result.err
    assert "cancel jobs" in result.err
    assert "3/3" in result.err


def begins_with_its_name(err: str, run: str) -> str:
    """What a real run says on standard error after the name that it can be continued by."""
    first, _, rest = err.partition("\n")
    assert first == f"run {run}: if it is interrupted, --run {run} continues it"
    return rest


# ---- wrong input

SIGNED = ("--reason", "x", "--yes")
WRONG: dict[tuple[str, ...], str] = {
    ("cancel",): "Missing option '--where'",
    ("cancel", "--where", "statsu = 0"): "did you mean status?",
    (
        "cancel",
        "--where",
        "biz_type = 'orderclose'",
    ): "no such biz_type; did you mean order.close?",
    ("cancel", "--where", "status = 0; DROP TABLE toc_meta"): "write one expression only",
    ("cancel", "--where", "UPDATE toc_job_0000 SET status = 3"): "cannot be read from line 1",
    ("cancel", "--where", "status = 0 -- all"): "comments are not accepted",
    ("cancel", "--where", "job_id IN (SELECT 1)"): "a subquery is not accepted here",
    ("cancel", "--where", ""): "say which jobs; TRUE means all",
    ("cancel", "--where", "TRUE", "--yes"): "--yes needs --reason",
    ("cancel", "--where", "TRUE", "--yes", "--reason", " "): "reason: must say why",
    ("cancel", "--where", "TRUE", *SIGNED, "--actor", ""): "actor: must be",
    ("cancel", "--where", "TRUE", *SIGNED, "--limit", "2"): "more than 2 jobs are in reach",
    ("cancel", "--where", "TRUE", *SIGNED, "--limit", "0"): "--limit",
    ("cancel", "--where", "TRUE", *SIGNED, "--limit", "1000001"): "--limit",
    ("cancel", "--where", "TRUE", *SIGNED, "--per-second", "0"): "--per-second",
    ("cancel", "--where", "TRUE", *SIGNED, "--database", "2"): "database: must be from 0 to 1",
    ("cancel", "--where", "TRUE", *SIGNED, "--run", "x"): "--run",
    ("cancel", "--where", "TRUE", *SIGNED, "--by", "1h"): "--by",
    ("postpone", "--where", "TRUE", *SIGNED): "give --by or --to",
    ("postpone", "--where", "TRUE", "--by", "1h", "--to", "2h"): "give --by or --to",
    ("postpone", "--where", "TRUE", "--by", "soon"): "WHEN",
    ("postpone", "--where", "TRUE", "--by", "2031-01-01T00:00Z"): "--by: must be a length of time",
    ("postpone", "--where", "TRUE", "--by", "0s"): "by: must be more than nothing",
    ("postpone", "--where", "TRUE", "--by", "4000d"): "at most ten years",
    ("postpone", "--where", "TRUE", "--to", "2020-01-01T00:00Z"): "--to: must lie ahead",
    ("postpone", "--where", "TRUE", "--to", "2031-01-01T00:00"): "must know its zone",
    ("nope",): "No such command",
}


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_wrong_input_is_one_line_and_changes_nothing(
    toc: Toc, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    schedule(toc, 3)
    result = toc("admin", *arguments)
    assert (result.code, result.out) == (2, "")
    assert is_one_line(result.err), result.err
    assert WRONG[arguments] in result.err
    assert cancelled(tmp_path) == 0
    assert rows(tmp_path, "SELECT * FROM toc_event") == []


def test_a_group_alone_shows_its_help(toc: Toc) -> None:
    result = toc("admin")
    assert result.code == 0
    assert all(word in result.out for word in ("cancel", "postpone", "redrive", "discard"))


# ---- servers and tables that are away


@pytest.mark.parametrize("arguments", [(), SIGNED], ids=["dry", "real"])
def test_servers_that_are_away(
    toc: Toc, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TOC_DATABASES", "mysql+pymysql://u:hidden@127.0.0.1:1/toc")
    result = toc("admin", "cancel", "--where", "TRUE", *arguments)
    assert (result.code, result.out) == (3, "")
    assert is_one_line(result.err), result.err
    assert "database 0 does not answer" in result.err
    assert "hidden" not in result.err


def drop(path: Path, index: int, table: str) -> None:
    with sqlite3.connect(path / f"{index}.db") as connection:
        connection.execute(f"DROP TABLE {table}")
    connection.close()


@pytest.mark.parametrize("arguments", [(), SIGNED], ids=["dry", "real"])
def test_a_table_that_somebody_dropped(
    toc: Toc, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    schedule(toc, 6)
    drop(tmp_path, 1, "toc_job_0003")
    result = toc("admin", "cancel", "--where", "TRUE", *arguments)
    assert (result.code, result.out) == (4, "")
    expected = "toc: database 1, table toc_job_0003: no such table: toc_job_0003\n"
    assert result.err == expected
    with sqlite3.connect(tmp_path / "0.db") as connection:
        assert connection.execute("SELECT COUNT(*) FROM toc_event").fetchone() == (0,)
    connection.close()
    one = toc("admin", "cancel", "--where", "TRUE", "--database", "0", *SIGNED, "--json")
    assert one.code == 0
    assert one.json["changed"] > 0


def test_what_fails_half_way_prints_its_counts(toc: Toc, tmp_path: Path) -> None:
    schedule(toc, 12)
    drop(tmp_path, 1, "toc_event")
    result = toc("admin", "cancel", "--where", "TRUE", *SIGNED, "--json")
    assert result.code == 4
    printed = result.json
    error = begins_with_its_name(result.err, printed["run"])
    assert is_one_line(error), error
    done = cancelled(tmp_path)
    assert 0 < done < 12
    assert (printed["changed"], printed["complete"]) == (done, False)
    assert [part["changed"] for part in printed["databases"]] == [done, 0]
    assert printed["databases"][1]["in_reach"] == 12 - done
    assert printed["error"] in error
    assert "database 1, table toc_job_000" in error
    assert f"{done} of 12 jobs were changed" in error
    assert f"--run {printed['run']}" in error
    table = toc("admin", "cancel", "--where", "TRUE", *SIGNED)
    assert table.code == 4
    assert "0 of " in table.err


# ---- Ctrl-C


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_exactly_what_it_did(
    toc: Toc,
    servers: dict[str, str],
    start: Callable[..., Process],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    schedule(toc, 40)
    where = ("--where", "biz_id < 40", "--reason", "x", "--yes", "--json")
    process = start(servers, "admin", "cancel", *where, "--per-second", "4")
    wait_until(lambda: cancelled(tmp_path) >= 4, "the first jobs to be cancelled")
    process.send(number)
    assert process.ended() == 130
    done = cancelled(tmp_path)
    assert 4 <= done < 40
    printed = json.loads(process.out)
    assert (printed["changed"], printed["complete"]) == (done, False)
    error = begins_with_its_name(process.err, printed["run"])
    assert is_one_line(error), error
    assert error.startswith("toc: interrupted at database ")
    assert f"{done} of 40 jobs were changed; to go on: the same command with --run" in error
    events = rows(tmp_path, "SELECT job_id FROM toc_event")
    assert len(events) == len(set(events)) == done
    again = toc("admin", "cancel", *where, "--run", printed["run"]).json
    assert again["changed"] == 40 - done
    assert cancelled(tmp_path) == 40
    assert len(set(rows(tmp_path, "SELECT job_id FROM toc_event"))) == 40


HANGING = """
import sys, time
from toc.store.bulk_update import BulkUpdate
def change(*args, **more):
    print("under way", flush=True, file=sys.stderr)
    time.sleep(600)
BulkUpdate.change_page = change
from toc.cli.main import run
run()
"""


@pytest.mark.parametrize("patience", [2, 1000])
def test_a_second_signal_ends_it_whatever_hangs(
    toc: Toc, servers: dict[str, str], patience: int
) -> None:
    """And later signals change nothing: the counts of the run are printed."""
    schedule(toc, 8)
    where = ("--where", "biz_id < 40", "--reason", "x", "--yes", "--json")
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, "admin", "cancel", *where],
        env=clean_environment() | servers,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stderr is not None
            name = process.stderr.readline()
            assert process.stderr.readline() == "under way\n"
            kinds = cycle([signal.SIGINT, signal.SIGTERM])  # two of a kind may be heard as one
            for kind in islice(kinds, patience):
                if process.poll() is not None:
                    break
                process.send_signal(kind)
                time.sleep(0.001)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    printed = json.loads(out)
    assert begins_with_its_name(name, printed["run"]) == ""
    # The interpreter hears signals again when it has nothing left to do.
    ends = {130} if patience == 2 else {130, -signal.SIGINT, -signal.SIGTERM}
    assert process.returncode in ends
    assert (printed["changed"], printed["complete"]) == (0, False)
    assert is_one_line(err), err
    assert "0 of 8 jobs were changed, " in err
    (unsure,) = printed["databases"][0]["unsure"]
    assert f"{unsure['jobs']} may have been" in err


# ---- who and why, of the other commands


def test_reasons_and_the_person(toc: Toc, tmp_path: Path) -> None:
    one, two, three = schedule(toc, 3)
    assert toc("cancel", one, "--reason", "he asked").code == 0
    assert toc("cancel", "--biz-id", 1, "--type", "order.close", "--reason", "by key").code == 0
    assert toc("reschedule", three, "1h", "--reason", "not yet").code == 0
    toc("schedule", 9, "1h", "--key", "k")
    toc("schedule", 9, "2h", "--key", "k", "--on-duplicate", "replace")
    events = rows(tmp_path, "SELECT job_id, what, actor, reason FROM toc_event")
    found = {job_id: (what, actor, reason) for job_id, what, actor, reason in events}
    assert found[int(one)] == ("cancel", ME, "he asked")
    assert found[int(two)] == ("cancel", ME, "by key")
    assert found[int(three)][:2] == ("reschedule", ME)
    assert found[int(three)][2].endswith("UTC: not yet")
    assert {actor for _, actor, _ in found.values()} == {ME}
    assert len(found) == 4
    for command in (("cancel", two), ("reschedule", three, "1h"), ("dead", "redrive", two)):
        long = toc(*command, "--reason", "x" * 1001)
        assert long.code == 2
        assert is_one_line(long.err)


def test_the_dead_are_redriven_for_a_reason(toc: Toc, tmp_path: Path) -> None:
    (job_id,) = schedule(toc, 1)
    rows(tmp_path, "UPDATE # SET status = 4, due_time = NULL")
    assert toc("dead", "redrive", job_id, "--reason", "fixed").code == 0
    sql = "SELECT what, actor, reason FROM toc_event"
    assert rows(tmp_path, sql) == [("redrive", ME, "fixed")]


def test_the_dead_are_discarded_by_a_filter(toc: Toc, tmp_path: Path) -> None:
    ids = schedule(toc, 4)
    rows(tmp_path, "UPDATE # SET status = 4, due_time = NULL WHERE biz_id < 3")
    letter = "job_id, biz_id, type_no, attempts"
    rows(
        tmp_path,
        f"INSERT INTO toc_dead_job ({letter}, error, dead_time) "
        f"SELECT {letter}, 'it failed', gmt_modified FROM # WHERE status = 4",
    )
    where = ("--where", "biz_id > 0")
    counted = toc("admin", "discard", *where)
    assert "3 match, 2 of them can be changed (dead)" in counted.out
    done = toc("admin", "discard", *where, "--reason", "INC-2", "--yes", "--json")
    assert (done.code, done.json["verb"], done.json["changed"]) == (0, "discard", 2)
    sql = "SELECT job_id, what, from_status, to_status, reason FROM toc_event"
    assert sorted(rows(tmp_path, sql)) == sorted(
        (int(job_id), "discard", 4, 3, "INC-2") for job_id in ids[1:3]
    )
    assert toc("dead", "list", "--json").json["dead"][0]["job_id"] == ids[0]
    assert toc("explain", ids[1]).code == 0


def test_a_person_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert current_person() == f"unknown@{socket.gethostname()}"
    monkeypatch.setattr(getpass, "getuser", lambda: "a\x1bb" * 90)
    assert len(current_person()) <= 96
    assert current_person().isprintable()


# ---- explain


def test_explain_for_people_and_programs(toc: Toc) -> None:
    (job_id,) = schedule(toc, 1)
    told = toc("explain", job_id)
    assert (told.code, told.err) == (0, "")
    first = told.out.splitlines()[0]
    assert re.fullmatch(
        rf"job {job_id} \(order.close\): due in 4m \d+s, and armed for that moment", first
    )
    for title in ("row", "redis", "nodes"):
        assert f"\n{title}\n" in told.out
    assert "agrees        yes" in told.out
    toc("cancel", job_id, "--reason", "[red]no[/red]")
    value = toc("explain", job_id, "--json").json
    assert value["row"]["status"] == "cancelled"
    assert value["redis_agrees"] is False
    assert value["redis"][0]["store"]["score"] > 0
    assert [(e["what"], e["actor"], e["reason"]) for e in value["events"]] == [
        ("cancel", ME, "[red]no[/red]")
    ]
    assert "[red]no[/red]" in toc("explain", job_id).out


def test_explain_of_what_is_not_there(toc: Toc) -> None:
    (job_id,) = schedule(toc, 1)
    gone = toc("explain", int(job_id) + 1)
    assert (gone.code, gone.err) == (1, "")
    assert "there is no such job: by its id it was made" in gone.out
    assert "table toc_job_000" in gone.out
    value = toc("explain", int(job_id) + 1, "--json").json
    assert (value["found"], value["row"]) == (False, None)
    for wrong in ("x", str(2**63), "-1"):
        result = toc("explain", wrong)
        assert (result.code, result.out) == (2, "")
        assert is_one_line(result.err), result.err


def test_explain_without_servers(toc: Toc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (job_id,) = schedule(toc, 1)
    monkeypatch.setenv("TOC_REDIS_URL", "redis://u:hidden@127.0.0.1:1/0")
    told = toc("explain", job_id)
    assert (told.code, told.err) == (0, "")
    assert "missing: Redis does not answer" in told.out
    assert told.out.startswith(f"job {job_id} (order.close): due in 4m")
    monkeypatch.setenv("TOC_DATABASES", "mysql+pymysql://u:hidden@127.0.0.1:1/toc")
    told = toc("explain", job_id)
    assert told.code == 3
    assert is_one_line(told.err)
    assert "its database does not answer" in told.out
    assert "hidden" not in told.out + told.err
    assert toc("explain", job_id, "--json").json["found"] is None
