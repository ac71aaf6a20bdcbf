"""The result of the last run: kept in toc_meta, shown by `toc status` and `toc doctor`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Toc, no_settings, redis, servers, toc
from tests.contract.engines import library_on
from tests.contract.library import Library
from toc.domain.disagreements import Disagreement
from toc.reconcile.findings import Finding, ReconcileResult, RepairResult, ShardFailure
from toc.reconcile.last_result import store_result
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings
from toc.store import nightly_status
from toc.store.database_mover import MOVED_ROWS
from toc.store.databases import Databases
from toc.store.reconcile_status import (
    RECONCILED,
    LastReconcileResult,
    read_last_reconcile_result,
    record_reconcile_result,
)
from toc.store.recorded_meta import read_recorded_meta
from toc.testing import TestClock

__all__ = ["no_settings", "redis", "servers", "toc"]

HOUR_MS = 3_600_000


@pytest.fixture(scope="module", params=["sqlite", "mysql", "mariadb"])
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("reconciled")) as library:
        yield library


def keep(library: Library, value: str) -> None:
    with library.databases[0].engine.begin() as connection:
        connection.exec_driver_sql(f"DELETE FROM toc_meta WHERE name = '{RECONCILED}'")
        if value:
            connection.exec_driver_sql(f"INSERT INTO toc_meta VALUES ('{RECONCILED}', '{value}')")


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    if "library" in request.fixturenames:
        keep(request.getfixturevalue("library"), "")


def test_the_last_one_counts(library: Library) -> None:
    assert read_last_reconcile_result(library.databases) is None
    first = record_reconcile_result(library.databases, "agreed", 0, 0, 12.345, is_whole=True)
    assert first == LastReconcileResult(library.now_ms, "agreed", 0, 0, 12.3, library.now_ms)
    assert read_last_reconcile_result(library.databases) == first
    library.clock.advance(60)
    second = record_reconcile_result(library.databases, "left", 7, 5, 1, is_whole=True)
    assert read_last_reconcile_result(library.databases) == second
    assert (second.verdict, second.whole_ms) == ("left", library.now_ms)


def test_when_everything_was_compared_is_not_forgotten(library: Library) -> None:
    record_reconcile_result(library.databases, "unable", 0, 0, 1, is_whole=False)
    found = read_last_reconcile_result(library.databases)
    assert found is not None
    assert found.whole_ms is None
    whole = record_reconcile_result(library.databases, "agreed", 0, 0, 1, is_whole=True)
    library.clock.advance(60)
    record_reconcile_result(library.databases, "unable", 3, 0, 1, is_whole=False)
    found = read_last_reconcile_result(library.databases)
    assert found is not None
    assert (found.ended_ms, found.whole_ms) == (library.now_ms, whole.ended_ms)


def test_it_fits(library: Library) -> None:
    largest = 2**63
    made = record_reconcile_result(
        library.databases, "x" * 32, largest, largest, float(largest), is_whole=True
    )
    assert read_last_reconcile_result(library.databases) == made
    for verdict in ("x" * 33, "größer"):
        with pytest.raises(ValueError, match="not a verdict"):
            record_reconcile_result(library.databases, verdict, 0, 0, 0, is_whole=True)
    assert read_last_reconcile_result(library.databases) == made


@pytest.mark.parametrize("value", ["by hand", "[]", "7", '{"ended_ms": 1}', '{"whole_ms": {}}'])
def test_what_others_have_written_is_none(library: Library, value: str) -> None:
    keep(library, value)
    assert read_last_reconcile_result(library.databases) is None
    assert (
        record_reconcile_result(library.databases, "agreed", 0, 0, 1, is_whole=False).whole_ms
        is None
    )


def test_the_catalogue_takes_it_for_no_fact(library: Library) -> None:
    facts = library.settings.facts
    library.database_metadata.verify_and_record_meta(facts)
    before = read_recorded_meta(library.databases[0])
    record_reconcile_result(library.databases, "agreed", 0, 0, 1, is_whole=True)
    assert read_recorded_meta(library.databases[0]) == before
    library.database_metadata.verify_and_record_meta(facts)
    # It is written on the new server only, once that is home.
    assert {RECONCILED, nightly_status.NIGHTLY} <= MOVED_ROWS


# ---- of a run


def outcome(**changes: Any) -> ReconcileResult:
    made = ReconcileResult(
        began_ms=1000, namespace="toc", databases=2, shards=4, engine="", repairing=True,
        ended_ms=3500, compared=4,
    )  # fmt: skip
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.mark.usefixtures("servers")
def test_a_run_is_remembered() -> None:
    settings, clock = load_settings(), SystemClock()
    finding = Finding(Disagreement.MISSING, 1, "default", 1, 5)
    repairs = [RepairResult(finding, True, "armed"), RepairResult(finding, False, "cannot")]
    run = outcome(repairs=repairs)
    run.found[Disagreement.MISSING] = 3
    kept = store_result(run, settings, clock)
    assert kept is not None
    assert (kept.verdict, kept.disagreements, kept.repaired, kept.seconds) == ("left", 3, 1, 2.5)
    assert kept.whole_ms == kept.ended_ms
    part = store_result(outcome(compared=3, failures=[ShardFailure(3, "away")]), settings, clock)
    assert part is not None
    assert (part.verdict, part.whole_ms) == ("unable", kept.ended_ms)
    broken = store_result(outcome(broken_off="Redis is away"), settings, clock)
    assert broken is not None
    assert (broken.verdict, broken.whole_ms) == ("unable", broken.ended_ms)


def test_a_database_that_is_away_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_DATABASES", f"sqlite:///{tmp_path}/nowhere/0.db")
    assert store_result(outcome(), load_settings(), SystemClock()) is None
    (record_reconcile_result,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "the result of this run is not stored" in record_reconcile_result.getMessage()


# ---- shown

NIGHTLY = "TOC_RECONCILE__NIGHTLY"


def reconciled(ago_ms: int, verdict: str, *numbers: int, is_whole: bool = True) -> None:
    """A run that ended so long ago."""
    clock = TestClock(TestClock().now)
    clock._ms = SystemClock().wall_ms() - ago_ms
    settings = load_settings()
    databases = Databases.from_settings(settings, clock)
    try:
        disagreements, repaired = numbers or (0, 0)
        record_reconcile_result(databases, verdict, disagreements, repaired, 1, is_whole=is_whole)
    finally:
        databases.close()


def status(toc: Toc) -> tuple[str, str, str] | None:
    """The part "reconciled" of `toc status`: state, how, what it means."""
    parts = toc("status", "--json").json["parts"]
    found = [(p["state"], p["how"], p["means"]) for p in parts if p["part"] == "reconciled"]
    return found[0] if found else None


def doctor(toc: Toc) -> tuple[str, str] | None:
    """Its check by `toc doctor`: level, what was found."""
    checks = toc("doctor", "--json").json["checks"]
    found = [(c["level"], c["found"]) for c in checks if c["subject"] == "reconciled"]
    return found[0] if found else None


@pytest.mark.usefixtures("servers")
def test_where_nobody_reconciles_nothing_is_said(toc: Toc) -> None:
    assert (status(toc), doctor(toc)) == (None, None)
    assert toc("doctor").code == 0


@pytest.mark.usefixtures("servers")
def test_jobs_that_nobody_will_look_at_degrade_it_also_without_nights(toc: Toc) -> None:
    run = outcome(
        repairs=[RepairResult(Finding(Disagreement.NEVER_DUE, 1, "default", 1, 5), True, "armed")]
    )
    run.found.update(
        {Disagreement.NEVER_DUE: 3, Disagreement.UNKNOWN_TYPE: 1, Disagreement.MISSING: 9}
    )
    made = store_result(run, load_settings(), SystemClock())
    assert made is not None
    assert made.unclaimable == 3
    found = status(toc)
    assert found is not None
    assert found[:2] == ("degraded", "0 min ago: 3 live jobs that no worker will claim")
    assert toc("status").code != 0
    # A run that could not look everywhere does not say that they are gone.
    part = store_result(
        outcome(compared=3, failures=[ShardFailure(3, "away")]), load_settings(), SystemClock()
    )
    assert part is not None
    assert part.unclaimable == 3
    store_result(outcome(), load_settings(), SystemClock())
    found = status(toc)
    assert found is not None
    assert found[0] == "up"


@pytest.mark.usefixtures("servers")
def test_never_is_said_where_there_are_nights(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NIGHTLY, "02:30")
    means = "the first run is at 02:30 UTC; `toc nightly` does it now"
    assert status(toc) == ("up", "never", means)
    assert doctor(toc) == ("warn", "never")
    assert toc("status").code == 0


@pytest.mark.usefixtures("servers")
def test_without_redis_nothing_is_missed(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NIGHTLY, "02:30")
    monkeypatch.setenv("TOC_REDIS_URL", "none")
    assert (status(toc), doctor(toc)) == (None, None)


NIGHTS: list[Any] = [
    # verdict, numbers, hours ago: of status, of doctor, how
    ("agreed", (0, 0), 5, "up", "ok", "5 h ago: agreed"),
    ("repaired", (7, 7), 5, "up", "ok", "5 h ago: disagreements: 7, all repaired"),
    ("left", (7, 4), 5, "degraded", "fail", "5 h ago: disagreements: 7, 4 repaired"),
    ("agreed", (0, 0), 26, "up", "ok", "26 h ago: agreed"),
    ("agreed", (0, 0), 27, "degraded", "fail", "27 h ago: agreed"),
]


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(("verdict", "numbers", "ago_h", "state", "level", "how"), NIGHTS)
def test_the_last_night_is_shown(
    toc: Toc,
    monkeypatch: pytest.MonkeyPatch,
    verdict: str,
    numbers: tuple[int, int],
    ago_h: int,
    state: str,
    level: str,
    how: str,
) -> None:
    # A minute less where it must not be older than that.
    reconciled(ago_h * HOUR_MS - (60_000 if ago_h == 26 else 0), verdict, *numbers)
    if ago_h == 26:
        how = how.replace("26 h", "25 h")
    monkeypatch.setenv(NIGHTLY, "02:30")
    found = status(toc)
    assert found is not None
    assert found[:2] == (state, how)
    assert bool(found[2]) == (state != "up")
    assert doctor(toc) == (level, how)
    assert toc("status").code == (0 if state == "up" else 1)
    monkeypatch.setenv(NIGHTLY, "none")  # what a person has run is told, and is no state
    found = status(toc)
    assert found is not None
    assert found[:2] == ("up", how)


@pytest.mark.usefixtures("servers")
def test_a_run_that_was_not_whole_does_not_hide_that_nights_pass(
    toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NIGHTLY, "02:30")
    reconciled(HOUR_MS, "unable", is_whole=False)
    found = status(toc)
    assert found is not None
    assert found[0] == "degraded"
    assert found[2].startswith("no run has compared everything: see nightly.log")
    reconciled(25 * HOUR_MS, "agreed")
    reconciled(HOUR_MS, "unable", is_whole=False)
    assert doctor(toc) == ("ok", "60 min ago: not everything could be compared")
    reconciled(50 * HOUR_MS, "agreed")
    reconciled(HOUR_MS, "unable", is_whole=False)
    found = status(toc)
    assert found is not None
    assert found[0] == "degraded"
    assert found[2].startswith("no run has compared everything for 50 h: see nightly.log")
    assert doctor(toc) == ("fail", "60 min ago: not everything could be compared")


@pytest.mark.usefixtures("servers")
def test_doctor_says_what_the_nights_lack_here(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NIGHTLY, "02:30")
    monkeypatch.setattr("toc.reconcile.nightly.MODULES", ("json", "no_such_spark"))
    checks = toc("doctor", "--json").json["checks"]
    (check,) = [check for check in checks if check["subject"] == "nightly"]
    assert check["level"] == "fail"
    assert check["found"].startswith("no_such_spark is not installed: pip install 'toc[reconcile]'")


def test_a_database_that_is_away_says_nothing_here(
    toc: Toc, servers: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(NIGHTLY, "02:30")
    monkeypatch.setenv(
        "TOC_DATABASES", f"sqlite:///{tmp_path}/nowhere/0.db,sqlite:///{tmp_path}/1.db"
    )
    assert (status(toc), doctor(toc)) == (None, None)
