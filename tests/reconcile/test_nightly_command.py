"""`toc nightly`: its parts, its words and its exit codes, with a real Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import Toc, no_settings, redis, servers, toc
from toc.cli import nightly as module
from toc.cli.nightly import _exit_code_severity
from toc.errors import SettingsError
from toc.reconcile.nightly import NightlyScheduler
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


def parts(answer: Any) -> dict[str, int]:
    return {part["part"]: part["code"] for part in answer["parts"]}


@pytest.mark.usefixtures("servers")
def test_a_node_s_nightly_run_does_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The very command that a node starts, as a process, with Java and all."""
    pytest.importorskip("pyspark")
    monkeypatch.setenv("TOC_RECONCILE__NIGHTLY", "02:30")
    monkeypatch.setenv("TOC_RECONCILE__ARCHIVE", "archive")
    monkeypatch.setenv("TOC_RECONCILE__SPARK", json.dumps({"spark.master": "local[2]"}))
    nightly = NightlyScheduler(load_settings(), lambda: True, SystemClock())
    nightly.run_if_leader()
    said = nightly.log_file.read_text()
    assert nightly.last is not None, said
    assert nightly.last.words == "the databases and Redis agree", said
    for part in ("report: reports/", "lateness: ", "archive, events of database 1: "):
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
    assert parts(answer.json) == {"reconcile": 0, "lateness": 0}
    assert all(part["lines"] for part in answer.json["parts"])
    monkeypatch.setenv("TOC_RECONCILE__ARCHIVE", "archive")
    assert parts(toc("nightly", "--json").json) == {"reconcile": 0, "lateness": 0, "archive": 0}


@pytest.mark.usefixtures("servers")
def test_a_part_that_fails_keeps_no_other_from_being_done(
    toc: Toc, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_REDIS_URL", "redis://127.0.0.1:1/0")
    away = toc("nightly", "--json")
    assert away.code == 3
    assert parts(away.json) == {"reconcile": 3, "lateness": 0}
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
def test_without_spark_it_compares_and_archives(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOC_RECONCILE__ARCHIVE", "archive")
    answer = toc("nightly", "--master", "none", "--json")
    assert (answer.code, parts(answer.json)) == (0, {"reconcile": 0, "lateness": 0, "archive": 0})
    (lateness,) = [part for part in answer.json["parts"] if part["part"] == "lateness"]
    assert lateness["lines"] == ["lateness: left out: it needs Spark, and --master is 'none'"]


@pytest.mark.usefixtures("servers")
def test_a_spark_that_does_not_start_fails_only_lateness(
    toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_RECONCILE__ARCHIVE", "archive")

    def refuse(*_: object) -> None:
        raise SettingsError("Spark does not start: is Java 17 or later installed?")

    # Other tests of this process may have a session, which every later one would be.
    monkeypatch.setattr(module, "open_session_unless_none", refuse)
    answer = toc("nightly", "--json")
    assert answer.code == 4
    assert parts(answer.json) == {"reconcile": 0, "lateness": 4, "archive": 0}


@pytest.mark.usefixtures("servers")
def test_without_redis_there_is_nothing_to_compare(
    toc: Toc, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_REDIS_URL", "none")
    answer = toc("nightly")
    assert (answer.code, answer.err) == (0, "")
    first, second = answer.out.splitlines()
    assert first == "reconcile: redis_url is 'none': there is nothing to compare with"
    assert second.startswith("lateness: ")
    assert result() is None


@pytest.mark.usefixtures("servers")
def test_a_fault_in_a_part_is_that_part_s(
    toc: Toc, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(module, "write_lateness_tables", broken)
    answer = toc("nightly", "--json")
    assert answer.code == 70
    assert parts(answer.json) == {"reconcile": 0, "lateness": 70}


@pytest.mark.usefixtures("servers")
def test_without_spark_it_still_compares(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "open_session_unless_none", _no_java)
    answer = toc("nightly", "--json")
    assert answer.code == 4
    assert parts(answer.json) == {"reconcile": 0, "lateness": 4}
    assert answer.json["parts"][1]["lines"] == ["lateness: Spark does not start: no Java"]
    kept = result()
    assert kept is not None
    assert kept.verdict == "agreed"


def _no_java(*_: object) -> Callable[..., Any]:
    raise module.SettingsError("Spark does not start: no Java")


def test_the_worst_counts() -> None:
    codes = [70, 3, 0, 4, 5, 1]
    assert sorted(codes, key=_exit_code_severity)[:4] == [0, 5, 1, 3]
    assert max([5, 1, 0], key=_exit_code_severity) == 1
    assert max([3, 4, 1], key=_exit_code_severity) == 4
