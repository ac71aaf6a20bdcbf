"""The analysts' tables of a night: their numbers against counting in Python, their checks, and their days."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.counted_jobs import Job, draw_jobs
from tests.contract.ended_rows import write
from tests.contract.engines import library_on
from tests.contract.library import Library
from tests.deep import deep
from tests.forked_functions import run_forked
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
from toc.reconcile import delta_tables
from toc.reconcile.delta_tables import replace_days
from toc.reconcile.tables import day_filler
from toc.reconcile.tables.counts import SCHEMA, TooManyGroups, merge_pages
from toc.reconcile.tables.database_counts import page_of_counts
from toc.reconcile.tables.nightly_tables import days_in_database
from toc.runtime.setting_groups import RetentionSettings
from toc.store.ended_jobs import DAY_MS, HOUR_MS
from toc.store.job_counts import JobCount

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

COUNTED = ("lateness", "volume", "cohorts")


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("tables")) as library:
        yield library


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    library = Library([f"sqlite:///{tmp_path_factory.mktemp('tables')}/toc.db"])
    yield library
    library.close()


@pytest.fixture
def small(lite: Library, tmp_path: Path) -> Place:
    """On SQLite and without Spark, for what is about neither."""
    lite.reset()
    return Place(lite, None, tmp_path / "archive")


def job(made_ms: int, **changes: Any) -> Job:
    """Done a second after it was made."""
    one = Job(CLOSE, 2, made_ms, made_ms, made_ms + 1000, 1, made_ms + 5, "host:1:a:1")
    return replace(one, **changes)


# ---- the numbers


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
def test_the_numbers_are_what_counting_gives(
    engines: Library, spark: SparkSession, tmp_path: Path, with_spark: bool
) -> None:
    engines.reset()
    place = Place(engines, spark if with_spark else None, tmp_path / "archive")
    base_ms = engines.now_ms
    assert base_ms % DAY_MS == 0
    jobs = draw_jobs(base_ms, 800, [CLOSE, CLOSE, REPORT, NAMELESS])
    place.store(jobs)
    engines.clock.advance(3 * DAY_S + OVER_S)
    result = place.run(page=150)
    assert result.is_good, place.heard
    window = base_ms, base_ms + 3 * DAY_MS
    for name, wanted in (
        ("lateness", wanted_lateness(jobs, *window)),
        ("volume", wanted_volume(jobs, *window)),
        ("cohorts", wanted_cohorts(jobs, *window, engines.now_ms)),
    ):
        assert sorted_rows(place.rows(name)) == sorted_rows(wanted), name
    assert max(row["measured"] for row in place.rows("lateness")) > 1
    assert result.databases[0].jobs == sum(one.has_ended for one in jobs)
    assert all(row["is_good"] for row in place.rows("checks"))


def test_percentiles_are_upper_bounds_and_never_above_the_greatest(small: Place) -> None:
    base_ms = small.library.now_ms
    late = [1] * 99 + [7]
    write(
        small.library,
        1,
        [
            {"job_id": id_of(one, n), "biz_id": n, **one.row}
            for n, ms in enumerate(late)
            for one in [job(base_ms, claimed_ms=base_ms + ms)]
        ],
    )
    small.library.clock.advance(DAY_S + OVER_S)
    small.run()
    (row,) = small.rows("lateness")
    assert (row["jobs"], row["measured"], row["late_ms_sum"], row["late_ms_max"]) == (
        100, 100, 106, 7,
    )  # fmt: skip
    percentiles = [row[name] for name in ("p50_ms", "p90_ms", "p99_ms", "p999_ms")]
    assert percentiles == [1, 1, 1, 7]  # of 7 ms the bucket ends at 10
    assert (row["ms_1"], row["ms_10"]) == (99, 1)


def test_beyond_the_last_bound_the_greatest_counts(small: Place) -> None:
    base_ms = small.library.now_ms
    small.store([job(base_ms, claimed_ms=base_ms + 2 * HOUR_MS)])
    small.library.clock.advance(DAY_S + OVER_S)
    small.run()
    (row,) = small.rows("lateness")
    assert (row["ms_more"], row["p50_ms"], row["p999_ms"]) == (1, 2 * HOUR_MS, 2 * HOUR_MS)


def test_pages_are_merged_however_they_are_cut() -> None:
    count = JobCount(1, 20_000, 5, 7, 2, None, None, 1, 1, 2, 30, 30)
    other = count._replace(node="a:1", bucket=3, ms_max=31)
    pages = [page_of_counts([count, other], 1), page_of_counts([count._replace(ms_max=40)], 1)]
    merged = merge_pages([*pages, page_of_counts([count], 2)], 10)
    assert merged.schema == SCHEMA
    rows = sorted(
        (row["shard"], row["jobs"], row["ms"], row["ms_max"]) for row in merged.to_pylist()
    )
    assert rows == [(1, 1, 30, 31), (1, 2, 60, 40), (2, 1, 30, 30)]
    with pytest.raises(TooManyGroups, match=r"more than 2 groups.*reconcile\.table_rows_max"):
        merge_pages([*pages, page_of_counts([count], 2)], 2)


@pytest.mark.parametrize("with_spark", [pytest.param(True, marks=deep), False])
def test_too_many_groups_fail_before_they_fill_the_memory(
    lite: Library, spark: SparkSession, tmp_path: Path, with_spark: bool
) -> None:
    lite.reset()
    place = Place(lite, spark if with_spark else None, tmp_path)
    base_ms = lite.now_ms
    place.store([job(base_ms, token=f"host:{n}:a:1") for n in range(1100)])
    lite.clock.advance(DAY_S + OVER_S)
    assert "reconcile.table_rows_max" in place.run(table_rows_max=1000).databases[0].error
    assert place.rows("lateness") == place.rows("checks") == []


# ---- the forecast


def test_the_forecast_counts_live_jobs_beside_the_busiest_hour(small: Place) -> None:
    library, base_ms = small.library, small.library.now_ms
    small.store([job(base_ms + n) for n in range(6)] + [job(base_ms + HOUR_MS)])
    library.clock.advance(DAY_S + OVER_S)
    now_ms = library.now_ms
    for n, in_ms in enumerate([-5000, -70_000, 0, 5 * 60_000, 26 * HOUR_MS, 40 * DAY_MS]):
        library.pending(1000 + n, in_ms=in_ms)
    assert small.run().databases[0].live == 5
    rows = small.rows("forecast")
    found = Counter[str]()
    for row in rows:
        found[row["span"]] += row["jobs"]
        assert row["due_from"].second == 0
    # Two jobs are overdue or due in the first minute, depending on where that minute began.
    assert found["overdue"] + found["minute"] == 4
    assert found["overdue"] + found["hour"] == 5
    assert {row["done_max"] for row in rows if row["span"] == "hour"} == {6.0}
    assert {row["done_max"] for row in rows if row["span"] == "minute"} == {0.1}
    library.clock.advance(60)
    assert small.run().databases[0].live == 5
    assert len({row["counted_at"] for row in small.rows("forecast")}) == 1
    assert now_ms < library.now_ms


# ---- day after day


def test_each_day_is_filled_once_and_cohorts_again(small: Place) -> None:
    library, small.retention = small.library, RetentionSettings(days=1)
    base_ms = library.now_ms
    small.store([job(base_ms), job(base_ms, status=0)])
    library.clock.advance(DAY_S + OVER_S - 2)  # a second before the day is over for certain
    assert [str(day) for day in small.run().databases[0].days] == ["2025-12-31"]
    library.clock.advance(1)
    assert [str(day) for day in small.run().databases[0].days] == ["2026-01-01"]
    assert (small.days(), small.days("cohorts")) == (
        Counter({"2026-01-01": 1}),
        Counter({"2026-01-01": 2}),
    )
    assert small.run().databases[0].days == []
    assert "all days that are over are filled" in small.heard[-1]
    small.retention = RetentionSettings()
    live = id_of(job(base_ms), 1)
    library.sql(
        live, "UPDATE toc_job_0001 SET status = 3, gmt_modified = '2026-01-02 00:00:00.500'"
    )
    small.run()
    assert {row["outcome"] for row in small.rows("cohorts")} == {"done", "cancelled"}
    checks = Counter((row["table"], row["check"], row["day"]) for row in small.rows("checks"))
    assert set(checks.values()) == {1}
    assert [row["done"] for row in small.rows("volume") if row["done"]] == [1]


def test_nights_that_were_missed_are_made_up_for(small: Place) -> None:
    library, base_ms = small.library, small.library.now_ms
    small.store([job(base_ms + n * DAY_MS) for n in range(3)])
    library.clock.advance(3 * DAY_S + OVER_S)
    assert len(small.run().databases[0].days) == 3
    assert set(small.days()) == {"2026-01-01", "2026-01-02", "2026-01-03"}
    library.clock.advance(30 * DAY_S)
    assert len(small.run().databases[0].days) == 3


def test_days_of_which_jobs_are_purged_already_are_left_out() -> None:
    now_ms = 20_000 * DAY_MS + HOUR_MS
    for days_min, number in [(0.1, 1), (1.5, 1), (3, 2), (3.1, 3), (30, 7), ("none", 7)]:
        assert len(days_in_database(now_ms, days_min, 7)) == number


def test_a_missing_day_is_a_finding_and_names_the_command(small: Place) -> None:
    small.retention = RetentionSettings(days=2)
    small.library.clock.advance(DAY_S + OVER_S)
    assert small.run().is_good
    small.library.clock.advance(3 * DAY_S)
    result = small.run()
    command = "`toc tables backfill --from 2026-01-02 --to 2026-01-03`"
    assert result.databases[0].findings == [
        f"the tables lack 2 days between 2026-01-02 and 2026-01-03: {command}"
    ]
    assert [r["found"] for r in small.rows("checks") if r["check"] == "gaps" and not r["is_good"]] == [
        2, 2, 2,
    ]  # fmt: skip


# ---- checks


@pytest.mark.parametrize(
    ("damage", "check"),
    [("lose", "count"), ("double", "doubles"), ("unschedule", "scheduled")],
)
def test_a_wrong_table_is_a_finding_and_filled_again_the_next_night(
    small: Place, monkeypatch: pytest.MonkeyPatch, damage: str, check: str
) -> None:
    base_ms = small.library.now_ms
    small.store([job(base_ms + n * HOUR_MS) for n in range(4)])
    small.library.clock.advance(DAY_S + OVER_S)

    def damage_rows(root: str, spec: Any, days: Any, database: int, rows: Any) -> None:
        import pyarrow as pa  # noqa: PLC0415 - an extra

        if spec.name == "volume" and damage == "unschedule":
            place = rows.column_names.index("scheduled")
            zeros = pa.array([0] * rows.num_rows, pa.int64())
            rows = rows.set_column(place, spec.columns.field("scheduled"), zeros)
        if spec.name == "lateness" and rows.num_rows:
            if damage == "lose":
                rows = rows.slice(1)
            if damage == "double":
                rows = pa.concat_tables([rows, rows.slice(0, 1)])
        replace_days(root, spec, days, database, rows)

    with monkeypatch.context() as patch:
        patch.setattr(day_filler, "replace_days", damage_rows)
        result = small.run()
    assert not result.is_good
    assert any(check in text or "rows, but" in text for text in result.databases[0].findings)
    assert check in {row["check"] for row in small.rows("checks") if not row["is_good"]}
    again = small.run()
    assert (again.is_good, len(again.databases[0].days)) == (True, 1)
    assert all(row["is_good"] for row in small.rows("checks"))


def test_a_job_that_changes_while_days_are_filled_is_counted_again(
    small: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    base_ms, library = small.library.now_ms, small.library
    small.store([job(base_ms), job(base_ms)])
    library.clock.advance(DAY_S + OVER_S)
    real, calls = day_filler.check_tables, list[int]()

    def redrive_first(*given: Any) -> Any:
        if not calls:
            library.sql(id_of(job(base_ms), 0), "UPDATE toc_job_0000 SET status = 0")
            calls.append(1)
            given = (*given[:-1], given[-1]._replace(ended=Counter({base_ms // DAY_MS: 1})))
        return real(*given)

    monkeypatch.setattr(day_filler, "check_tables", redrive_first)
    assert small.run().is_good
    assert sum(row["jobs"] for row in small.rows("lateness")) == 1


# ---- faults


def test_a_database_that_fails_leaves_the_others(tmp_path: Path) -> None:
    library = Library([f"sqlite:///{tmp_path}/{n}.db" for n in range(2)])
    place = Place(library, None, tmp_path / "archive")
    try:
        library.clock.advance(DAY_S + OVER_S)
        job_id = next(j for j in (library.pending(n) for n in range(100)) if library.shard(j) == 0)
        library.sql(job_id, "ALTER TABLE toc_job_0000 RENAME TO toc_job_away")
        result = place.run()
        assert [bool(one.error) for one in result.databases] == [True, False]
        assert "toc_job_0000" in place.heard[0]
        assert {row["database"] for row in place.rows("checks")} == {1}
        library.sql(job_id, "ALTER TABLE toc_job_away RENAME TO toc_job_0000")
        assert place.run().is_good
        assert {row["database"] for row in place.rows("checks")} == {0, 1}
    finally:
        library.close()


def test_a_password_is_not_told(small: Place) -> None:
    settings = small.library.settings
    small.library.settings = settings.model_copy(
        update={"databases": ("mysql+pymysql://root:hunter2@127.0.0.1:9/toc",)}
    )
    try:
        result = small.run()
    finally:
        small.library.settings = settings
    assert "database 0 does not answer" in result.databases[0].error
    assert "hunter2" not in repr(result) + "".join(small.heard)


def test_two_nights_at_once_leave_each_day_once(small: Place) -> None:
    base_ms = small.library.now_ms
    small.store([job(base_ms + n * HOUR_MS) for n in range(20)])
    small.library.clock.advance(DAY_S + OVER_S)
    barrier, results = threading.Barrier(2), list[bool]()

    def run_night() -> None:
        barrier.wait()
        results.append(small.run().is_good)

    threads = [threading.Thread(target=run_night) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True, True]
    assert sum(row["jobs"] for row in small.rows("lateness")) == 20
    assert sum(row["scheduled"] for row in small.rows("volume")) == 20


def fill_and_die(url: str, directory: Path, now_ms: int, calls: int, when: str) -> None:
    """Dies before, or after, one of the commits: three tables, the checks twice, the forecast."""
    library = Library([url])
    library.clock.advance((now_ms - library.now_ms) / 1000)
    real, left = delta_tables._replace_rows, [calls]

    def replace_rows(*given: Any) -> None:
        left[0] -= 1
        if not left[0] and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(*given)
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    delta_tables._replace_rows = replace_rows
    sys.exit(not Place(library, None, directory).run().is_good)


@pytest.mark.parametrize(
    ("call", "when"),
    [
        (1, "before"),
        (2, "after"),
        (4, "before"),
        *(
            pytest.param(call, when, marks=deep)
            for call, when in [(1, "after"), (2, "before"), (3, "before"), (3, "after"),
                               (4, "after"), (6, "before"), (6, "after")]
        ),
    ],
)  # fmt: skip
def test_killed_at_any_commit_the_next_night_is_whole(tmp_path: Path, when: str, call: int) -> None:
    url = f"sqlite:///{tmp_path}/toc.db"
    library = Library([url])
    place = Place(library, None, tmp_path / "archive")
    base_ms = library.now_ms
    jobs = draw_jobs(base_ms, 200, [CLOSE, REPORT])
    place.store(jobs)
    library.clock.advance(3 * DAY_S + OVER_S)
    killed = run_forked(fill_and_die, url, place.directory, library.now_ms, call, when)
    assert killed == -signal.SIGKILL
    assert place.run().is_good
    window = base_ms, base_ms + 3 * DAY_MS
    assert sorted_rows(place.rows("lateness")) == sorted_rows(wanted_lateness(jobs, *window))
    assert sorted_rows(place.rows("volume")) == sorted_rows(wanted_volume(jobs, *window))
    assert sum(row["jobs"] for row in place.rows("cohorts")) == len(jobs)
    assert Counter(row["is_good"] for row in place.rows("checks")).keys() == {True}
    library.close()
