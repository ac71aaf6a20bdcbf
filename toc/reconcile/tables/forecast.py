"""The table `forecast`: how many live jobs come due, beside the most that were done in an hour lately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from toc.domain.times import datetime_of
from toc.reconcile.delta_tables import DAY, find_table, replace_days
from toc.reconcile.executors import run_work
from toc.reconcile.tables.day_filler import tables_root
from toc.reconcile.tables.table_rows import rows_of_spec
from toc.reconcile.tables.table_specs import DATABASE, FORECAST, VOLUME
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store.databases import Databases
from toc.store.ended_jobs import DAY_MS, HOUR_MS
from toc.store.job_counts import JobCounter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE_MS = 60_000
MINUTES_MS, HOURS_MS = DAY_MS, 30 * DAY_MS
"""How far the forecast goes by minutes, and by hours."""

OVERDUE, MINUTE, HOUR = "overdue", "minute", "hour"


def write_forecast(
    spark: SparkSession | None,
    settings: Settings,
    database: int,
    shards: Sequence[int],
    now_ms: int,
) -> int:
    """Writes the forecast that is made today, in place of an earlier one; returns how many jobs are live.

    Raises TocError, DELTA_ERRORS, and errors of Spark.
    """
    root, jobs = tables_root(settings), Counter[tuple[str, int]]()
    for span, from_ms, number in run_work(
        spark, settings, partial(_count_due_jobs, now_ms), shards
    ):
        jobs[span, from_ms] += number
    done_max = _read_most_done_per_hour(
        root, database, datetime_of(now_ms).date(), settings.reconcile.table_days
    )
    keys = sorted(jobs)
    capacity = {MINUTE: None if done_max is None else done_max / 60, HOUR: done_max, OVERDUE: None}
    day = datetime_of(now_ms).date()
    columns: dict[str, list[Any]] = {
        "span": [span for span, _ in keys],
        "due_from": [from_ms for _, from_ms in keys],
        "jobs": [jobs[key] for key in keys],
        "done_max": [capacity[span] for span, _ in keys],
        "counted_at": [now_ms] * len(keys),
        DAY: [day] * len(keys),
        DATABASE: [database] * len(keys),
    }
    replace_days(root, FORECAST, [day], database, rows_of_spec(FORECAST, columns))
    return sum(number for (span, _), number in jobs.items() if span != MINUTE)


def _count_due_jobs(
    now_ms: int, settings: Settings, shards: Sequence[int]
) -> Iterator[tuple[str, int, int]]:
    """(span, its beginning, jobs), for some shards together.

    Each statement reads a day of one shard's index.
    """
    found = Counter[tuple[str, int]]()
    first_minute_ms = now_ms // MINUTE_MS * MINUTE_MS
    with closing(Databases.from_settings(settings, SystemClock(), pool_size=1)) as databases:
        counter = JobCounter(databases)
        for shard in shards:
            late = counter.count_due(shard, 0, first_minute_ms, HOURS_MS)
            found[OVERDUE, first_minute_ms] += sum(late.values())
            by_minute = counter.count_due(
                shard, first_minute_ms, first_minute_ms + MINUTES_MS, MINUTE_MS
            )
            for from_ms, jobs in by_minute.items():
                found[MINUTE, from_ms] += jobs
            for day_ms in range(first_minute_ms, first_minute_ms + HOURS_MS, DAY_MS):
                for from_ms, jobs in counter.count_due(
                    shard, day_ms, day_ms + DAY_MS, HOUR_MS
                ).items():
                    found[HOUR, from_ms] += jobs
    for (span, from_ms), jobs in found.items():
        if jobs:
            yield span, from_ms, jobs


def _read_most_done_per_hour(root: str, database: int, today: date, days: int) -> float | None:
    """How many jobs were done in the busiest hour of the last days; None: no job was."""
    table = find_table(root, VOLUME.name)
    if table is None:
        return None
    of_days = (pc.field(DAY) >= today - timedelta(days=days)) & (pc.field(DATABASE) == database)
    rows = table.to_pyarrow_dataset().to_table(columns=["hour", "done"], filter=of_days)
    done = rows.group_by("hour").aggregate([("done", "sum")])["done_sum"].to_pylist()
    return float(max(done)) if any(done) else None
