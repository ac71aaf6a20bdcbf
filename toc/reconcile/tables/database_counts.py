"""Counts the jobs of a database by its own SQL: the work of a task, and the figures that check a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from toc.reconcile.executors import run_work
from toc.reconcile.id_ranges import split_into_id_ranges
from toc.reconcile.tables.counts import SCHEMA, CountWork
from toc.runtime.settings import Settings
from toc.store.archive_status import EndedJobWindow
from toc.store.ended_jobs import IdRange, possible_ids_of_created, possible_ids_of_ended
from toc.store.job_counts import JobCount, JobCounter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CountWindows(NamedTuple):
    """The jobs to count: those that ended in a window, and those that were created in a window.

    None: no job. archived_ms: jobs that ended before are left out of the created ones.
    """

    ended: EndedJobWindow | None
    created: EndedJobWindow | None
    archived_ms: int = 0

    @property
    def ids(self) -> IdRange:
        """All ids that these jobs can have."""
        found = []
        if self.ended is not None:
            found.append(possible_ids_of_ended(self.ended))
        if self.created is not None:
            found.append(possible_ids_of_created(self.created))
        first = min((one.first for one in found), default=0)
        return IdRange(first, max((one.end for one in found), default=0))


class DayCounts(NamedTuple):
    """Jobs that ended, and jobs that were created, by day since 1970."""

    ended: Counter[int]
    created: Counter[int]


def count_work_of_database(windows: CountWindows, shards: Sequence[int]) -> CountWork:
    """The work of counting the jobs of some shards of one database."""
    if windows.ended is None and windows.created is None:
        return CountWork((), _read_nothing)
    return CountWork(shards, partial(_read_counts, windows))


def _read_nothing(settings: Settings, shards: Sequence[Any]) -> Iterator[pa.RecordBatch]:
    return iter(())


def _read_counts(
    windows: CountWindows, settings: Settings, shards: Sequence[int]
) -> Iterator[pa.RecordBatch]:
    """Each range of ids is counted by up to three statements, so that its rows are in memory once."""
    rows = settings.reconcile.page
    for reader, shard, ids in split_into_id_ranges(settings, shards, windows.ids, rows):
        counter, found = JobCounter(reader.databases), list[JobCount]()
        if windows.ended is not None and ids.first < possible_ids_of_ended(windows.ended).end:
            found += counter.count_lateness(shard, ids, windows.ended)
            found += counter.count_ended(shard, ids, windows.ended)
        if windows.created is not None and ids.end > possible_ids_of_created(windows.created).first:
            found += counter.count_created(shard, ids, windows.created, windows.archived_ms)
        if found:
            yield page_of_counts(found, shard)


def page_of_counts(counts: Sequence[JobCount], shard: int) -> pa.RecordBatch:
    """The counts of one shard as a page."""
    columns = [*zip(*counts, strict=True), [shard] * len(counts)]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def count_days_in_database(
    spark: SparkSession | None, settings: Settings, windows: CountWindows, shards: Sequence[int]
) -> DayCounts:
    """Counts the same jobs again, by plainer statements: to check tables."""
    found = DayCounts(Counter(), Counter())
    if windows.ended is None and windows.created is None:
        return found
    for is_ended, day, jobs in run_work(spark, settings, partial(_read_days, windows), shards):
        (found.ended if is_ended else found.created)[day] += jobs
    return found


def _read_days(
    windows: CountWindows, settings: Settings, shards: Sequence[int]
) -> Iterator[tuple[bool, int, int]]:
    rows = settings.reconcile.page
    for reader, shard, ids in split_into_id_ranges(settings, shards, windows.ids, rows):
        counter = JobCounter(reader.databases)
        if windows.ended is not None:
            for one in counter.count_ended_per_day(shard, ids, windows.ended):
                yield True, one.day, one.jobs
        if windows.created is not None:
            for one in counter.count_created_per_day(
                shard, ids, windows.created, windows.archived_ms
            ):
                yield False, one.day, one.jobs
