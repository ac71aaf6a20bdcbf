"""How late jobs were, and how many there are: per day, type and hour, as Parquet for analysts.

The databases add up the jobs of each shard (GROUP BY over one range of job ids at a time); Spark merges these
sums. No row of a job is sent. There are two tables, with a folder for each day and one file in it:

- `lateness/day=2026-01-05`: jobs that *ended* that day, by type, hour of their action_time, and outcome;
- `scheduled/day=2026-01-05`: jobs that were *created* that day, by type and hour.

A day is written after its end, and again if its folder has no file `_SUCCESS`, as after a killed run. The run
writes the file of a day in a staging folder, then moves the file to the folder of the day under a fixed name:
two runs at once leave one file.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toc.domain.job import Status
from toc.reconcile.id_ranges import split_into_id_ranges
from toc.reconcile.spark_errors import short_error_text, spark_error_types
from toc.reconcile.spark_files import (
    Columns,
    SparkFiles,
    new_parquet_session,
    read_on_executors,
)
from toc.runtime.clock import Clock
from toc.runtime.setting_groups import Days
from toc.runtime.settings import Settings
from toc.store.archive_status import EndedJobWindow
from toc.store.biz_types import read_known_types
from toc.store.column_types import sql_time_of_ms
from toc.store.databases import Databases
from toc.store.ended_jobs import (
    BOUNDS_MS,
    DAY_MS,
    CreatedPerHour,
    EndedJobCount,
    possible_ids_of_created,
    possible_ids_of_ended,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATENESS, SCHEDULED = "lateness", "scheduled"
DAYS_MAX = 7
"""How many days back a run writes missing days; jobs of older days may be purged already."""

SETTLED_MS = 60_000
"""How long after midnight a day counts as over: by then all jobs that ended on that day are committed."""

SUCCESS_FILE, FILE = "_SUCCESS", "part-0.parquet"
STAGING = "_staging/days"
LEFTOVER_MS = 2 * DAY_MS
"""A staging folder of this age belongs to a run that was killed."""

BUCKETS = (*(f"ms_{bound}" for bound in BOUNDS_MS), "ms_more")
"""Columns of `lateness`: jobs whose lateness is at most so many ms, and above the column before."""

PER_MILLE = {"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p999_ms": 999}

_ENDED = (
    "day INT, hour INT, type_no INT, status INT, bucket INT, jobs BIGINT, retried BIGINT, "
    "late_ms BIGINT, late_ms_max BIGINT, biz_type STRING"
)
_CREATED = "hour INT, type_no INT, jobs BIGINT, biz_type STRING"
_OUTCOMES = {int(status): status.name.lower() for status in Status if not status.live}


@dataclass(slots=True)
class LatenessResult:
    """The result of writing the tables for some days.

    days: as '2026-01-05', oldest first. jobs: how many jobs ended. scheduled: how many jobs were created.
    """

    days: list[str] = field(default_factory=list)
    jobs: int = 0
    scheduled: int = 0
    error: str = ""

    @property
    def is_good(self) -> bool:
        return not self.error


def write_lateness_tables(
    spark: SparkSession, settings: Settings, clock: Clock, tell: Callable[[str], None]
) -> LatenessResult:
    """Writes both tables for the days that are over and not written yet. `tell` is called with one line.

    Errors of servers and stores are in the result. Raises SettingsError for a URL that Spark does not know.
    """
    reconcile = settings.reconcile
    where = reconcile.directory if reconcile.archive == "none" else reconcile.archive
    folders, result = SparkFiles(spark, where), LatenessResult()
    try:
        _write_missing_days(new_parquet_session(spark), folders, settings, clock, result)
    except spark_error_types() as error:
        result.error = short_error_text(error)
    tell(f"lateness: {result.error or _describe_result(result)}")
    return result


def _describe_result(result: LatenessResult) -> str:
    if not result.days:
        return "all days that are over are written"
    days = result.days[0] if len(result.days) == 1 else f"{result.days[0]} to {result.days[-1]}"
    return f"{days}: {result.jobs:,} jobs ended, {result.scheduled:,} were created"


def days_to_write(now_ms: int, days_min: Days, is_written: Callable[[int], bool]) -> list[int]:
    """The starts of the days that are over, still complete in the database, and not written yet."""
    today_ms = (now_ms - SETTLED_MS) // DAY_MS * DAY_MS
    kept_ms = 0 if days_min == "none" else now_ms - round(days_min * DAY_MS)
    days = [today_ms - n * DAY_MS for n in range(DAYS_MAX, 0, -1)]
    yesterday = days[-1]  # written even if some of its jobs are purged: better than not at all
    return [day for day in days if (day >= kept_ms or day == yesterday) and not is_written(day)]


def _write_missing_days(
    spark: SparkSession,
    folders: SparkFiles,
    settings: Settings,
    clock: Clock,
    result: LatenessResult,
) -> None:
    with closing(Databases.from_settings(settings, clock, pool_size=2)) as databases:
        now_ms = databases.now_ms()
        names = dict(read_known_types(databases, all_must_answer=True).names)

    def day_is_written(day_ms: int) -> bool:
        files = (f"{table}/{_day_folder(day_ms)}/{SUCCESS_FILE}" for table in (SCHEDULED, LATENESS))
        return all(map(folders.exists, files))

    days = days_to_write(now_ms, settings.retention.shortest_retention_days, day_is_written)
    if not days:
        return
    window = EndedJobWindow(days[0], days[-1] + DAY_MS)
    staging = f"{STAGING}/{now_ms}-{secrets.token_hex(4)}"
    _delete_old_staging_folders(folders, now_ms)
    created = _merge_created_counts(
        _read_hourly_counts(spark, settings, window, names, ended=False)
    ).persist()
    ended = _merge_ended_counts(
        _read_hourly_counts(spark, settings, window, names, ended=True)
    ).persist()
    try:
        totals = _count_jobs_by_day(created), _count_jobs_by_day(ended)
        for day_ms in days:
            number = day_ms // DAY_MS
            for table, name in ((created, SCHEDULED), (ended, LATENESS)):
                place = f"{name}/{_day_folder(day_ms)}"
                _write_day_file(
                    table.where(f"day = {number}"), folders.url_of(f"{staging}/{place}")
                )
                _publish_day_file(folders, f"{staging}/{place}", place)
            result.days.append(sql_time_of_ms(day_ms)[:10])
            result.scheduled += totals[0].get(number, 0)
            result.jobs += totals[1].get(number, 0)
    finally:
        created.unpersist()
        ended.unpersist()
    folders.delete(staging)


def _day_folder(day_ms: int) -> str:
    return f"day={sql_time_of_ms(day_ms)[:10]}"


def _write_day_file(day: DataFrame, url: str) -> None:
    keys = [name for name in ("hour", "type_no", "outcome") if name in day.columns]
    # Sorted, so that two runs write the same bytes: both may move their files at the same moment.
    day.drop("day").coalesce(1).sortWithinPartitions(*keys).write.parquet(url)


def _publish_day_file(folders: SparkFiles, staged: str, place: str) -> None:
    (file,) = folders.list_files(staged)
    for left in folders.list_files(place):
        if left != FILE:
            folders.delete(f"{place}/{left}")
    folders.move_file(f"{staged}/{file}", f"{place}/{FILE}")
    folders.move_file(f"{staged}/{SUCCESS_FILE}", f"{place}/{SUCCESS_FILE}")


def _delete_old_staging_folders(folders: SparkFiles, now_ms: int) -> None:
    """Deletes the staging folders of killed runs.

    A run that takes longer than LEFTOVER_MS loses its own staging folder, and fails.
    """
    for name in folders.list_folders(STAGING):
        began_ms = name.partition("-")[0]
        if began_ms.isdecimal() and int(began_ms) < now_ms - LEFTOVER_MS:
            folders.delete(f"{STAGING}/{name}")


def _count_jobs_by_day(table: DataFrame) -> dict[int, int]:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as all the world writes it

    return {
        row.day: row.jobs for row in table.groupBy("day").agg(F.sum("jobs").alias("jobs")).collect()
    }


# ---- counts by the databases, read by Spark's executors


def _read_hourly_counts(
    spark: SparkSession,
    settings: Settings,
    window: EndedJobWindow,
    names: Mapping[int, str],
    *,
    ended: bool,
) -> DataFrame:
    """Counts of the jobs that ended (else: were created) in the window, with the names of their types."""
    ids = possible_ids_of_ended(window) if ended else possible_ids_of_created(window)

    def read_shard_counts(own_settings: Settings, shards: Sequence[int]) -> Iterator[Columns]:
        for reader, shard, piece in split_into_id_ranges(
            own_settings, shards, ids, own_settings.reconcile.page
        ):
            count = reader.count_ended if ended else reader.count_created
            counts: Sequence[EndedJobCount | CreatedPerHour] = count(shard, piece, window)
            if counts:
                yield *zip(*counts, strict=True), [names.get(one.type_no) for one in counts]

    return read_on_executors(
        spark, settings, range(settings.shards), read_shard_counts, _ENDED if ended else _CREATED
    )


# ---- merged by Spark, by a few texts of SQL: a thousand small calls into Java would take a second


def _merge_created_counts(counts: DataFrame) -> DataFrame:
    from pyspark.sql.functions import expr  # noqa: PLC0415 - an extra

    day = expr("hour div 24 AS day")
    return counts.groupBy(day, expr(_HOUR), "type_no", "biz_type").agg(expr("SUM(jobs) AS jobs"))


def _merge_ended_counts(counts: DataFrame) -> DataFrame:
    from pyspark.sql.functions import expr  # noqa: PLC0415 - an extra

    outcome = " ".join(f"WHEN {number} THEN '{name}'" for number, name in _OUTCOMES.items())
    buckets = [f"SUM(IF(bucket = {n}, jobs, 0)) AS {name}" for n, name in enumerate(BUCKETS)]
    sums = [
        "SUM(jobs) AS jobs", "SUM(retried) AS retried", "SUM(IF(bucket IS NULL, 0, jobs)) AS measured",
        "SUM(late_ms) AS late_ms_sum", "MAX(IF(bucket IS NULL, NULL, late_ms_max)) AS late_ms_max",
    ]  # fmt: skip
    outcome = f"CASE status {outcome} END AS outcome"
    keys = [expr(key) for key in ("day", _HOUR, "type_no", "biz_type", outcome)]
    merged = counts.groupBy(*keys).agg(*map(expr, (*sums, *buckets)))
    columns = ["day", "hour", "type_no", "biz_type", "outcome", "jobs", "retried", "measured",
               "late_ms_sum", "late_ms_max"]  # fmt: skip
    percentiles = [f"{_percentile_sql(n)} AS {name}" for name, n in PER_MILLE.items()]
    return merged.selectExpr(*columns, *percentiles, *BUCKETS)


_HOUR = "timestamp_seconds(hour * 3600L) AS hour"


def _percentile_sql(per_mille: int) -> str:
    """SQL for the lateness that `per_mille` of 1,000 jobs do not exceed: the upper bound of a bucket."""
    rank, at_most = f"(measured * {per_mille} + 999) div 1000", ""
    cases = []
    for name, bound in zip(BUCKETS, BOUNDS_MS, strict=False):
        at_most = f"{at_most} + {name}" if at_most else name
        cases.append(f"WHEN {at_most} >= {rank} THEN LEAST({bound}, late_ms_max)")
    return f"CASE WHEN measured = 0 THEN NULL {' '.join(cases)} ELSE late_ms_max END"
