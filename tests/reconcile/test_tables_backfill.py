"""`toc tables backfill`: days from the archive and the database, against counting in Python; refused days."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import Toc, no_settings, redis, servers, toc
from tests.contract.counted_jobs import Job, draw_jobs
from tests.contract.engines import library_on
from tests.contract.library import SHARDS, Library
from tests.deep import deep
from tests.reconcile.analysis_place import (
    CLOSE,
    DAY_S,
    NAMELESS,
    OVER_S,
    REPORT,
    Place,
    id_of,
    sorted_rows,
    wanted_cohorts,
    wanted_lateness,
    wanted_volume,
)
from toc.domain.times import datetime_of
from toc.errors import InvalidInput
from toc.reconcile.archive import archive_due_rows
from toc.reconcile.archive_maintenance import compact_days
from toc.reconcile.tables import backfill as backfill_module
from toc.reconcile.tables.backfill import backfill_tables, find_sources
from toc.reconcile.tables.nightly_tables import TablesResult
from toc.runtime.clock import SystemClock
from toc.runtime.setting_groups import RetentionSettings
from toc.store.archive_status import ARCHIVED
from toc.store.column_types import sql_time_of_ms
from toc.store.ended_jobs import DAY_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["no_settings", "redis", "servers", "toc"]

pytestmark = pytest.mark.slow

FIRST, LAST = date(2026, 1, 1), date(2026, 1, 3)
RETENTION = RetentionSettings(days=10)
COUNTED = ("lateness", "volume", "cohorts")


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("backfill")) as library:
        yield library


def emptied(library: Library, monkeypatch: pytest.MonkeyPatch) -> Library:
    library.reset()
    for database in library.databases:
        with database.engine.begin() as connection:
            connection.exec_driver_sql(f"DELETE FROM toc_meta WHERE name = '{ARCHIVED}'")
    # The archive's table is dated by the machine, and the library has a clock of its own.
    now_ms = library.now_ms
    monkeypatch.setattr(backfill_module, "_read_creation_ms", lambda *_: now_ms)
    return library


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    library = Library([f"sqlite:///{tmp_path}/toc.db"])
    yield Place(emptied(library, monkeypatch), None, tmp_path / "archive", RETENTION)
    library.close()


def backfill(place: Place, first: date = FIRST, last: date = LAST) -> TablesResult:
    return backfill_tables(
        place.spark, place.settings(), place.library.clock, first, last, place.heard.append
    )


def archive(place: Place) -> None:
    done = archive_due_rows(place.spark, place.settings(), place.library.clock, [].append)
    assert done.is_good


def change(place: Place, job_id: int, n: int, status: int, changed_ms: int) -> None:
    """As a redrive and what follows would, or a discard."""
    place.library.sql(
        job_id,
        f"UPDATE toc_job_{n % SHARDS:04d} SET status = {status}, "
        f"gmt_modified = '{sql_time_of_ms(changed_ms)}' WHERE job_id = {job_id}",
    )


def purge(place: Place) -> None:
    """Deletes all jobs that are archived."""
    until = sql_time_of_ms(archived_ms(place))
    for database in place.library.databases:
        for shard in database.shards:
            with database.engine.begin() as connection:
                connection.exec_driver_sql(
                    f"DELETE FROM {database.job_table_name(shard)} "
                    f"WHERE status IN (2, 3, 4) AND gmt_modified < '{until}'"
                )


def archived_ms(place: Place) -> int:
    until = find_sources(place.settings(), place.library.databases[0]).archived_until
    return (until - date(1970, 1, 1)).days * DAY_MS


@pytest.mark.timeout(600)  # Spark starts here: half a minute on a busy machine
@pytest.mark.parametrize(
    ("engines", "with_spark"),
    [
        ("mysql", True),
        ("sqlite", False),
        pytest.param("mysql", False, marks=deep),
        pytest.param("sqlite", True, marks=deep),
    ],
    indirect=["engines"],
)
def test_purged_days_come_back_as_the_nights_wrote_them(
    engines: Library,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_spark: bool,
) -> None:
    library = emptied(engines, monkeypatch)
    place = Place(library, spark if with_spark else None, tmp_path / "archive", RETENTION)
    base_ms = library.now_ms
    jobs = draw_jobs(base_ms, 800, [CLOSE, CLOSE, REPORT, NAMELESS])
    place.store(jobs)
    library.clock.advance(3 * DAY_S + OVER_S)
    assert place.run().is_good
    nights = {name: sorted_rows(place.rows(name)) for name in ("lateness", "volume")}
    # What died is redriven: one job is live again, one is done before the next archiving, one after it.
    # The last one is discarded.
    library.clock.advance(8 * DAY_S)
    archive(place)
    dead = [n for n, job in enumerate(jobs) if job.status == 4][:4]
    later = [(0, library.now_ms), (2, base_ms + 5 * DAY_MS), (2, base_ms + 10 * DAY_MS)]
    later.append((3, base_ms + 6 * DAY_MS))
    cohort_jobs = list(jobs)
    for n, (status, changed_ms) in zip(dead, later, strict=True):
        change(place, id_of(jobs[n], n), n, status, changed_ms)
        cohort_jobs[n] = replace(jobs[n], status=status, changed_ms=changed_ms)
    library.clock.advance(2 * DAY_S)
    archive(place)
    purge(place)
    compact_days(str(place.directory), "jobs")
    for name in (*COUNTED, "checks", "forecast"):
        shutil.rmtree(place.directory / name)
    days = [FIRST] if with_spark else [FIRST, date(2026, 1, 2), LAST]  # jobs of Spark take seconds
    result = backfill(place, days[0], days[-1])
    assert result.is_good, place.heard
    assert result.databases[0].days == days
    window = base_ms, base_ms + len(days) * DAY_MS
    assert sorted_rows(place.rows("lateness")) == sorted_rows(wanted_lateness(jobs, *window))
    assert sorted_rows(place.rows("volume")) == sorted_rows(wanted_volume(jobs, *window))
    wanted = wanted_cohorts(cohort_jobs, *window, library.now_ms)
    assert sorted_rows(place.rows("cohorts")) == sorted_rows(wanted)
    if not with_spark:
        assert nights == {name: sorted_rows(place.rows(name)) for name in nights}
        assert backfill(place).is_good
        assert sorted_rows(place.rows("cohorts")) == sorted_rows(wanted)


def test_days_that_are_not_archived_yet_are_read_from_the_database(small: Place) -> None:
    jobs = [job_of_day(small.library.now_ms + n * DAY_MS) for n in range(3)]
    small.store(jobs)
    small.library.clock.advance(3 * DAY_S + OVER_S)
    assert backfill(small).is_good
    assert small.days() == {"2026-01-01": 1, "2026-01-02": 1, "2026-01-03": 1}
    assert not (small.directory / "jobs").exists()


def job_of_day(made_ms: int) -> Job:
    return Job(CLOSE, 2, made_ms, made_ms, made_ms + 1000, 1, made_ms + 5, "host:1:a:1")


def test_days_are_refused_before_anything_is_written(small: Place) -> None:
    library = small.library
    small.store([job_of_day(library.now_ms)])
    library.clock.advance(12 * DAY_S + OVER_S)
    today = date(2026, 1, 13)
    kept = date(2026, 1, 4)  # ten days ago, in part
    for first, last, said in (
        (kept, today, "to: must be a day that is over"),
        (kept - timedelta(days=1), kept, "of database 0 the jobs of 2026-01-03 are in neither"),
        (FIRST, kept, "of database 0 the jobs of 2026-01-01 to 2026-01-03 are in neither"),
        (LAST, FIRST, "to: must be `from`, or up to 365 days later"),
        (FIRST, FIRST + timedelta(days=366), "to: must be `from`, or up to 365 days later"),
    ):
        with pytest.raises(InvalidInput) as refused:
            backfill(small, first, last)
        assert said in str(refused.value)
    assert not small.directory.exists()
    archive(small)
    assert backfill(small, FIRST, today - timedelta(days=1)).is_good
    with pytest.raises(InvalidInput, match="the jobs of 2025-12-24 are in neither"):
        backfill(small, date(2025, 12, 24), FIRST)


def test_a_row_that_is_missing_in_the_archive_is_a_finding(
    small: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = small.library
    small.store([job_of_day(library.now_ms + n) for n in range(5)])
    library.clock.advance(11 * DAY_S)
    archive(small)
    purge(small)
    real = backfill_module.count_work_of_archive

    def lose_files(window: Any, files: Any, without: Any) -> Any:
        return real(window, files[:-1], without)

    monkeypatch.setattr(backfill_module, "count_work_of_archive", lose_files)
    result = backfill(small, FIRST, FIRST)
    assert "lateness, 2026-01-01: count: 0 jobs, but 5 are expected" in result.databases[0].findings


@pytest.mark.usefixtures("servers")
def test_the_command(toc: Toc, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there are no tables yet" in toc("tables", "show").out
    yesterday = toc("nightly", "--master", "none", "--json").json["parts"][0]["lines"][0]
    assert yesterday.startswith("tables, database 0: ")
    shown = toc("tables", "show", "--json").json["tables"]
    assert {table["table"] for table in shown} >= {"runs", "checks"}
    text = f"{datetime_of(SystemClock().wall_ms()).date() - timedelta(days=2)}"
    answer = toc("tables", "backfill", "--from", text, "--to", text)
    assert (answer.code, answer.err) == (0, "")
    assert f"tables, database 1: {text} is filled" in answer.out
    refused = toc("tables", "backfill", "--from", "yesterday", "--to", "2026-01-01")
    assert (refused.code, refused.err) == (
        2,
        "toc: from: must be a day as 2026-01-05; got 'yesterday'\n",
    )
