"""Lateness and volume: what Spark merges of the shards' sums, against counting in Python."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.ended_rows import made_at, write
from tests.contract.engines import library_on
from tests.contract.library import SHARDS, Library
from toc.domain.biz_types import type_no_of
from toc.domain.ids import lowest_id_at
from toc.domain.times import datetime_of
from toc.reconcile import lateness as lateness_module
from toc.reconcile.lateness import (
    BUCKETS,
    DAYS_MAX,
    PER_MILLE,
    LatenessResult,
    days_to_write,
    write_lateness_tables,
)
from toc.runtime.setting_groups import ReconcileSettings, RetentionSettings
from toc.store.claims import OutcomeKind
from toc.store.column_types import sql_time_of_ms
from toc.store.ended_jobs import BOUNDS_MS, DAY_MS, HOUR_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

DAY_S = 86_400
OVER_S = 61  # after midnight
YESTERDAY = RetentionSettings(days=1)  # then no more is made up for
OUTCOMES = {2: "done", 3: "cancelled", 4: "dead"}
CLOSE, REPORT, NAMELESS = type_no_of("order.close"), type_no_of("report"), 9
NAMES = {CLOSE: "order.close", REPORT: "report", NAMELESS: None}


class KilledError(BaseException):
    """As if the process were gone."""


@dataclass
class Office:
    """A library, and a directory for what is written about it."""

    library: Library
    spark: SparkSession
    directory: Path
    retention: RetentionSettings = YESTERDAY
    heard: list[str] = field(default_factory=list)

    def run(self, **changes: Any) -> LatenessResult:
        settings = self.library.settings.model_copy(
            update={
                "reconcile": ReconcileSettings(directory=str(self.directory), page=50),
                "retention": self.retention,
                **changes,
            }
        )
        return write_lateness_tables(self.spark, settings, self.library.clock, self.heard.append)

    def rows(self, table: str) -> list[dict[str, Any]]:
        from pyarrow import parquet  # noqa: PLC0415 - an extra

        found = []
        for file in (self.directory / table).rglob("*.parquet"):
            (day,) = (part for part in file.parts if part.startswith("day="))
            rows = parquet.ParquetFile(file).read().to_pylist()
            found += [{"day": day.removeprefix("day="), **row} for row in rows]
        return found

    def days(self, table: str = "lateness") -> list[str]:
        return sorted(mark.parent.name[4:] for mark in (self.directory / table).rglob("_SUCCESS"))


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
def engines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("lateness")) as library:
        yield library


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    library = Library([f"sqlite:///{tmp_path_factory.mktemp('lateness')}/toc.db"])
    yield library
    library.close()


@pytest.fixture
def office(engines: Library, spark: SparkSession, tmp_path: Path) -> Office:
    """On SQLite and on MySQL."""
    engines.reset()
    return Office(engines, spark, tmp_path / "reports", RetentionSettings())


@pytest.fixture
def small(lite: Library, spark: SparkSession, tmp_path: Path) -> Office:
    """On SQLite, for what is not about the database."""
    lite.reset()
    return Office(lite, spark, tmp_path / "reports")


# ---- the numbers


@dataclass(frozen=True)
class Job:
    """Times in ms since 1970."""

    type_no: int
    status: int
    action_ms: int
    made_ms: int
    ended_ms: int
    attempts: int
    claimed_ms: int | None

    @property
    def late_ms(self) -> int | None:
        """None: it says nothing."""
        if self.status != 2 or self.attempts != 1 or self.claimed_ms is None:
            return None
        return max(0, self.claimed_ms - self.action_ms)

    @property
    def row(self) -> dict[str, Any]:
        return {
            "type_no": self.type_no,
            "status": self.status,
            "action_time": sql_time_of_ms(self.action_ms),
            "gmt_create": sql_time_of_ms(self.made_ms),
            "gmt_modified": sql_time_of_ms(self.ended_ms),
            "attempts": self.attempts,
            "claim_time": None if self.claimed_ms is None else sql_time_of_ms(self.claimed_ms),
        }


def jobs_of(base_ms: int, number: int) -> list[Job]:
    """Of two types and of one without a name, over three days from `base_ms` on."""
    rng = random.Random(11)  # noqa: S311 - a test
    found = []
    for _ in range(number):
        made_ms = base_ms + rng.randrange(3 * DAY_MS)
        action_ms = made_ms + rng.choice([0, 1, HOUR_MS, 40 * DAY_MS])
        late_ms = round(10 ** rng.uniform(-1, 7.2)) - 1
        status = rng.choice([0, 1, 2, 2, 2, 2, 2, 2, 3, 4])
        ended_ms = min(made_ms + rng.randrange(DAY_MS), base_ms + 3 * DAY_MS - 1)
        claimed_ms = rng.choice([None, *[action_ms + late_ms] * 9])
        attempts = rng.choice([0, 1, 1, 1, 1, 1, 2, 16])
        type_no = rng.choice([CLOSE, CLOSE, CLOSE, REPORT, NAMELESS])
        found.append(Job(type_no, status, action_ms, made_ms, ended_ms, attempts, claimed_ms))
    return found


def store(library: Library, jobs: Sequence[Job]) -> None:
    for shard in range(SHARDS):
        rows = [
            {"job_id": lowest_id_at(job.made_ms) + n, "biz_id": n, **job.row}
            for n, job in enumerate(jobs)
            if n % SHARDS == shard
        ]
        write(library, shard, rows)


def group_of(key: tuple[Any, ...], jobs: Sequence[Job]) -> dict[str, Any]:
    """A row of `lateness`, by counting."""
    day, hour, type_no, status = key
    late = sorted(job.late_ms for job in jobs if job.late_ms is not None)

    def percentile(per_mille: int) -> int | None:
        if not late:
            return None
        rank = -(-len(late) * per_mille // 1000)
        value = late[rank - 1]
        return min([bound for bound in BOUNDS_MS if bound >= value] + [late[-1]])

    edges = [-1, *BOUNDS_MS, 10**15]
    counts = [sum(low < ms <= high for ms in late) for low, high in zip(edges, edges[1:])]  # noqa: B905, RUF007
    return {
        "day": sql_time_of_ms(day * DAY_MS)[:10],
        "hour": datetime_of(hour * HOUR_MS),
        "type_no": type_no,
        "biz_type": NAMES[type_no],
        "outcome": OUTCOMES[status],
        "jobs": len(jobs),
        "retried": sum(job.attempts > 1 for job in jobs),
        "measured": len(late),
        "late_ms_sum": sum(late),
        "late_ms_max": late[-1] if late else None,
        **{name: percentile(per_mille) for name, per_mille in PER_MILLE.items()},
        **dict(zip(BUCKETS, counts, strict=True)),
    }


def test_the_numbers_are_what_counting_gives(office: Office) -> None:
    library, base_ms = office.library, office.library.now_ms
    assert base_ms % DAY_MS == 0
    jobs = jobs_of(base_ms, 3000)
    store(library, jobs)
    library.clock.advance(3 * DAY_S + OVER_S)
    result = office.run()
    assert result.is_good, result.error

    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        if job.status >= 2:
            key = (job.ended_ms // DAY_MS, job.action_ms // HOUR_MS, job.type_no, job.status)
            groups.setdefault(key, []).append(job)
    wanted = [group_of(key, each) for key, each in groups.items()]
    found = office.rows("lateness")

    def order(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["day"], row["hour"], row["type_no"], row["outcome"]

    assert sorted(found, key=order) == sorted(wanted, key=order)
    assert result.jobs == sum(job.status >= 2 for job in jobs)
    assert max(row["measured"] for row in found) > 10  # else it would prove little

    made = Counter((job.made_ms // HOUR_MS, job.type_no) for job in jobs)
    scheduled = office.rows("scheduled")
    assert len(scheduled) == len(made)
    for row in scheduled:
        hour = int(row["hour"].timestamp()) // 3600
        assert row["jobs"] == made[hour, row["type_no"]]
        assert row["day"] == f"{row['hour']:%Y-%m-%d}"
        assert row["biz_type"] == NAMES[row["type_no"]]
    assert result.scheduled == 3000


def done(library: Library, biz_id: int, late_ms: int) -> int:
    """A job that ran so late; the library's clock goes on by as much."""
    job_id = made_at(library, library.pending(biz_id), library.now_ms)
    library.clock.advance(late_ms / 1000)
    library.claim([job_id], "one")
    assert library.settle_as(OutcomeKind.DONE, job_id, "one")
    return job_id


def test_percentiles_are_upper_bounds_and_never_above_the_greatest(small: Office) -> None:
    for n in range(99):
        done(small.library, n, 1)
    done(small.library, 99, 7)
    small.library.clock.advance(DAY_S + OVER_S)
    small.run()
    (row,) = small.rows("lateness")
    assert (row["jobs"], row["measured"], row["late_ms_sum"], row["late_ms_max"]) == (
        100, 100, 106, 7,
    )  # fmt: skip
    assert [row[name] for name in PER_MILLE] == [1, 1, 1, 7]  # of 7 ms the bucket ends at 10
    assert {name: row[name] for name in BUCKETS if row[name]} == {"ms_1": 99, "ms_10": 1}


def test_beyond_the_last_bound_the_greatest_counts(small: Office) -> None:
    done(small.library, 1, 2 * HOUR_MS)
    small.library.clock.advance(DAY_S + OVER_S)
    small.run()
    (row,) = small.rows("lateness")
    assert row["ms_more"] == 1
    assert {row[name] for name in PER_MILLE} == {2 * HOUR_MS}


# ---- day after day


def test_each_day_is_written_once_when_it_is_over(small: Office) -> None:
    library = small.library
    library.clock.advance(OVER_S)
    done(library, 1, 0)
    assert small.run().days == ["2025-12-31"]
    library.clock.advance(DAY_S - 2)  # a second before it is over for certain
    assert small.run().days == []
    library.clock.advance(1)
    assert small.run().days == ["2026-01-01"]
    assert [row["jobs"] for row in small.rows("lateness")] == [1]
    assert small.run().days == []
    assert "all days that are over are written" in small.heard[-1]


def test_nights_that_were_missed_are_made_up_for(small: Office) -> None:
    library, small.retention = small.library, RetentionSettings()
    for day in range(25, 32):
        for table in ("lateness", "scheduled"):
            mark = small.directory / f"{table}/day=2025-12-{day}/_SUCCESS"
            mark.parent.mkdir(parents=True)
            mark.touch()
    library.clock.advance(OVER_S)
    assert small.run().days == []
    for n in range(3):
        done(library, n, 0)
        library.clock.advance(DAY_S)
    assert small.run().days == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert sorted(row["day"] for row in small.rows("lateness")) == small.days()[-3:]
    library.clock.advance(30 * DAY_S)
    assert len(small.run().days) == DAYS_MAX


def test_a_day_is_written_again_where_a_killed_run_left_half_of_it(
    small: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, small.retention = small.library, RetentionSettings(days=2.5)
    library.clock.advance(OVER_S)
    for n in range(2):
        done(library, n, n)
        library.clock.advance(DAY_S)
    real, left = lateness_module._write_day_file, [3]

    def kill(day: Any, url: str) -> None:
        if left[0] == 0:
            raise KilledError
        left[0] -= 1
        real(day, url)

    with monkeypatch.context() as patch:
        patch.setattr(lateness_module, "_write_day_file", kill)
        with pytest.raises(KilledError):
            small.run()
    assert small.days() == [*small.days("scheduled")[:-1]]
    file = next((small.directory / "scheduled/day=2026-01-02").rglob("*.parquet"))
    file.with_name("part-from-before.parquet").write_bytes(file.read_bytes())
    assert small.run().days == ["2026-01-02"]
    assert [row["day"] for row in sorted(small.rows("lateness"), key=lambda r: r["day"])] == [
        "2026-01-01",
        "2026-01-02",
    ]
    assert Counter(row["day"] for row in small.rows("scheduled"))["2026-01-02"] == 1


@pytest.mark.parametrize("staged", [False, True])
def test_of_two_runs_at_once_each_day_has_the_rows_of_one(
    small: Office, monkeypatch: pytest.MonkeyPatch, staged: bool
) -> None:
    """The other one does all of its work while the first writes a day, or is about to move it."""
    done(small.library, 1, 5)
    small.library.clock.advance(DAY_S + OVER_S)
    real = lateness_module._write_day_file
    inner: list[LatenessResult] = []

    def overtaken(day: Any, url: str) -> None:
        if staged:
            real(day, url)
        if not inner:
            inner.append(LatenessResult())
            inner[0] = small.run()
        if not staged:
            real(day, url)

    monkeypatch.setattr(lateness_module, "_write_day_file", overtaken)
    outer = small.run()
    assert [run.days for run in (outer, inner[0])] == [["2026-01-01"]] * 2
    assert [outer.error, inner[0].error] == ["", ""]
    assert [row["jobs"] for row in small.rows("lateness")] == [1]
    assert [row["jobs"] for row in small.rows("scheduled")] == [1]
    assert list((small.directory / "_staging").rglob("*.parquet")) == []


def test_what_killed_runs_left_is_cleared_away_when_it_is_old(small: Office) -> None:
    small.library.clock.advance(DAY_S + OVER_S)
    staging, now_ms = small.directory / "_staging/days", small.library.now_ms
    old, young = (staging / f"{now_ms - ms}-ab12/lateness" for ms in (2 * DAY_MS + 1, 2 * DAY_MS))
    other = staging.with_name("database=0")  # the archive's
    for folder in (old, young, other):
        folder.mkdir(parents=True)
    assert small.run().is_good
    assert [path.exists() for path in (old, young, other)] == [False, True, True]
    assert len(list(staging.iterdir())) == 1


def test_days_of_which_jobs_are_purged_already_are_left_out() -> None:
    now_ms = 20_000 * DAY_MS + HOUR_MS
    today = 20_000
    for days_min, first in [(0.1, 1), (1.5, 1), (3, 2), (3.1, 3), (30, 7), ("none", 7)]:
        found = days_to_write(now_ms, days_min, lambda day: False)
        assert [day // DAY_MS for day in found] == list(range(today - first, today))
    assert days_to_write(now_ms, 30, lambda day: day != (today - 3) * DAY_MS) == [
        (today - 3) * DAY_MS
    ]


def test_with_an_archive_it_is_written_there(small: Office, tmp_path: Path) -> None:
    done(small.library, 1, 0)
    small.library.clock.advance(DAY_S + OVER_S)
    settings = ReconcileSettings(directory=str(small.directory), archive=str(tmp_path / "archive"))
    small.run(reconcile=settings)
    assert not small.directory.exists()
    assert len(list((tmp_path / "archive").glob("*/day=2026-01-01/_SUCCESS"))) == 2


def test_without_one_of_the_databases_nothing_is_written(small: Office) -> None:
    library = small.library
    job_id = done(library, 1, 0)
    library.clock.advance(DAY_S + OVER_S)
    library.sql(job_id, "ALTER TABLE toc_job_0003 RENAME TO toc_job_away")
    try:
        result = small.run()
    finally:
        library.sql(job_id, "ALTER TABLE toc_job_away RENAME TO toc_job_0003")
    assert result.error == "database 0, table toc_job_0003: no such table: toc_job_0003"
    assert (result.days, small.days()) == ([], [])
    assert small.heard[-1] == f"lateness: {result.error}"
    assert small.run().days == ["2026-01-01"]


def test_a_password_is_not_told(small: Office) -> None:
    result = small.run(databases=("mysql+pymysql://root:hunter2@127.0.0.1:9/toc",))
    assert "database 0 does not answer" in result.error
    assert "hunter2" not in repr(result) + "".join(small.heard)
