"""`toc nightly`: its parts, its words and its exit codes, with a real Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import Toc, no_settings, redis, servers, toc
from tests.servers.spark import QUICK_JAVA
from toc.cli import nightly as module
from toc.cli.nightly import _exit_code_severity
from toc.errors import SettingsError
from toc.reconcile.delta_tables import find_table
from toc.reconcile.nightly import NightlyScheduler
from toc.reconcile.tables import day_filler, nightly_tables, table_checks
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings
from toc.store.databases import Databases
from toc.store.reconcile_status import LastReconcileResult, read_last_reconcile_result

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["no_settings", "redis", "servers", "toc"]


def result() -> LastReconcileResult | None:
    databases = Databases.from_settings(load_settings(), SystemClock())
    try:
        return read_last_reconcile_result(databases)
    finally:
        databases.close()


def rows_of(name: str, root: str = "archive") -> list[dict[str, Any]]:
    table = find_table(root, name)
    assert table is not None
    return list(table.to_pyarrow_table().to_pylist())


def parts(answer: Any) -> dict[str, int]:
    return {part["part"]: part["code"] for part in answer["parts"]}


@pytest.mark.usefixtures("servers")
def test_a_node_s_nightly_run_does_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The very command that a node starts, as a process, with Java and all."""
    pytest.importorskip("pyspark")
    monkeypatch.setenv("TOC_RECONCILE__NIGHTLY", "02:30")
    monkeypatch.setenv("TOC_RECONCILE__ARCHIVE", "archive")
    properties = {
        "spark.master": "local[2]",
        "spark.driver.extraJavaOptions": " ".join(QUICK_JAVA),
        "spark.sql.shuffle.partitions": "1",  # of 8, almost all would be empty
    }
    monkeypatch.setenv("TOC_RECONCILE__SPARK", json.dumps(properties))
    nightly = NightlyScheduler(load_settings(), lambda: True, SystemClock())
    nightly.run_if_leader()
    said = nightly.log_file.read_text()
    assert nightly.last is not None, said
    assert nightly.last.words == "the databases and Redis agree", said
    for part in ("report: reports/", "tables, database 1: ", "archive, events of database 1: "):
        assert part in said
    kept = result()
    assert kept is not None
    assert (kept.verdict, kept.whole_ms) == ("agreed", kept.ended_ms)
    assert list(Path("reports").glob("*/index.html"))


@pytest.mark.usefixtures("servers")
def test_its_parts_as_json(toc: Toc, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = toc("nightly", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.json["code"] == 0
    assert parts(answer.json) == {"tables": 0, "reconcile": 0}
    assert all(part["lines"] for part in answer.json["parts"])
    assert Path("reports/checks/_delta_log").is_dir()
    monkeypatch.setenv("TOC_RECONCILE__ARCHIVE", "archive")
    assert parts(toc("nightly", "--json").json) == {"tables": 0, "reconcile": 0, "archive": 0}
    assert Path("archive/checks/_delta_log").is_dir()


@pytest.mark.usefixtures("servers")
def test_a_part_that_fails_keeps_no_other_from_being_done(
    toc: Toc, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_REDIS_URL", "redis://127.0.0.1:1/0")
    away = toc("nightly", "--json")
    assert away.code == 3
    assert parts(away.json) == {"tables": 0, "reconcile": 3}
    kept = result()
    assert kept is not None
    assert (kept.verdict, kept.whole_ms) == ("unable", None)


@pytest.mark.usefixtures("servers")
def test_its_status_is_shown_without_a_run(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    never = toc("nightly", "--status")
    assert (never.code, never.out.count("\n")) == (0, 1)
    assert toc("reconcile", "--master", "none").code == 0
    monkeypatch.setenv("TOC_RECONCILE__NIGHTLY", "02:30")
    monkeypatch.setenv("TOC_RECONCILE__ARCHIVE", "archive")
    shown = toc("nightly", "--status")
    assert shown.code == 0
    assert "reconciled: 0 min ago: agreed" in shown.out
    assert "live jobs that no worker will claim: 0" in shown.out
    assert "database 1: archived: jobs until -, events until -" in shown.out
    answer = toc("nightly", "--status", "--json").json
    assert (answer["state"], answer["last"]["verdict"]) == ("up", "agreed")
    monkeypatch.setenv("TOC_REDIS_URL", "redis://127.0.0.1:1/0")
    assert toc("nightly", "--master", "none").code != 0
    assert toc("nightly", "--status").out.startswith("reconciled: 0 min ago: not everything")


@pytest.mark.usefixtures("servers")
def test_without_spark_all_of_it_is_done(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOC_RECONCILE__ARCHIVE", "archive")
    answer = toc("nightly", "--master", "none", "--json")
    assert (answer.code, parts(answer.json)) == (0, {"tables": 0, "reconcile": 0, "archive": 0})
    lines = [line for part in answer.json["parts"] for line in part["lines"]]
    assert [line[:18] for line in lines if line.startswith("tables, database")] == [
        "tables, database 0",
        "tables, database 1",
    ]
    phases = {(row["part"], row["phase"]) for row in rows_of("runs")}
    assert phases >= {
        ("night", "whole"),
        ("tables", "count"),
        ("tables", "forecast"),
        ("reconcile", "compare"),
        ("archive", "rows"),
    }


@pytest.mark.usefixtures("servers")
def test_a_spark_that_does_not_start_fails_and_all_is_done_without_it(
    toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_RECONCILE__ARCHIVE", "archive")

    def refuse(*_: object) -> None:
        raise SettingsError("Spark does not start: is Java 17 or later installed?")

    # Other tests of this process may have a session, which every later one would be.
    monkeypatch.setattr(module, "open_session_unless_none", refuse)
    answer = toc("nightly", "--json")
    assert answer.code == 4
    assert parts(answer.json) == {"spark": 4, "tables": 0, "reconcile": 0, "archive": 0}
    assert answer.json["parts"][0]["lines"][0].startswith("spark: Spark does not start")
    kept = result()
    assert kept is not None
    assert kept.verdict == "agreed"


@pytest.mark.usefixtures("servers")
def test_without_redis_there_is_nothing_to_compare(
    toc: Toc, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_REDIS_URL", "none")
    answer = toc("nightly")
    assert (answer.code, answer.err) == (0, "")
    *tables, last = answer.out.splitlines()
    assert last == "reconcile: redis_url is 'none': there is nothing to compare with"
    assert [line[:18] for line in tables] == ["tables, database 0", "tables, database 1"]
    assert result() is None


@pytest.mark.usefixtures("servers")
def test_a_fault_in_a_part_is_that_part_s(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(nightly_tables, "write_analysis_tables", broken)
    answer = toc("nightly", "--master", "none", "--json")
    assert answer.code == 70
    assert parts(answer.json) == {"tables": 70, "reconcile": 0}
    note = [row["note"] for row in rows_of("runs", "reports") if row["code"] == 70]
    assert note[0] == "tables: internal error: ZeroDivisionError: oh (-v shows where)"
    shown = toc("nightly", "--status")
    assert shown.code == 1
    assert "failed: tables; `toc nightly` runs it again" in shown.out


@pytest.mark.usefixtures("servers")
def test_a_failed_check_is_in_the_status_until_a_good_night(
    toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert toc("nightly", "--master", "none").code == 0
    real = table_checks.check_tables

    def differ(*given: Any) -> Any:
        return [one._replace(expected=one.found + 1) for one in real(*given)]

    with monkeypatch.context() as patch:
        patch.setattr(day_filler, "check_tables", differ)
        answer = toc("nightly", "--master", "none")
    assert answer.code == 1
    assert "cohorts, 2" in answer.out
    for command in (("nightly", "--status"), ("status",)):
        shown = toc(*command)
        assert shown.code == 1
        assert "checks of tables failed" in shown.out
    assert toc("nightly", "--master", "none").code == 0
    assert toc("nightly", "--status").code == 0


def test_the_worst_counts() -> None:
    codes = [70, 3, 0, 4, 5, 1]
    assert sorted(codes, key=_exit_code_severity)[:4] == [0, 5, 1, 3]
    assert max([5, 1, 0], key=_exit_code_severity) == 1
    assert max([3, 4, 1], key=_exit_code_severity) == 4
