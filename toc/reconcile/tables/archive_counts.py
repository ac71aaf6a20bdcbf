"""Counts archived jobs: the same groups as `toc.store.job_counts`, from the files of the table `jobs`.

A job that died and was redriven or discarded has ended twice, and is in the archive twice. Where the days of
ends are counted, it counts on both, as it did in the nights of these days. Where the days of creation are
counted, each job counts once, as it ended last: so the rows of dead jobs (no others can end again) are looked
at together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from toc.domain.job import Status
from toc.domain.times import datetime_of
from toc.reconcile.archive_tables import JOBS
from toc.reconcile.delta_tables import DAY, find_table, open_files, table_url
from toc.reconcile.executors import run_work
from toc.reconcile.tables.counts import SCHEMA, CountWork, TooManyGroups, merge_pages
from toc.reconcile.tables.database_counts import DayCounts
from toc.runtime.settings import Settings
from toc.store.archive_status import EndedJobWindow
from toc.store.ended_jobs import DAY_MS, ENDED_STATUSES, HOUR_MS
from toc.store.job_counts import AGE_BOUNDS_MS, BOUNDS_MS, CREATED, ENDED, LATENESS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS = [
    "job_id", "type_no", "status", "action_time", "claim_time", "gmt_create", "gmt_modified",
    "attempts", "claim_token", "shard", "database",
]  # fmt: skip
PAGE_ROWS = 20_000
"""Rows that a task has in memory: numbers and times, and no texts of the jobs."""

_MS = pa.timestamp("ms", "UTC")
_NODE = r"^(?P<node>[^:]*(?::[^:]*)?)"  # process_of_token
_NO_IDS = pa.array([], pa.int64())


class ArchiveWindow(NamedTuple):
    """Archived jobs of one database. ended, created: as in CountWindows. url: of the table."""

    url: str
    database: int
    ended: EndedJobWindow | None
    created: EndedJobWindow


@dataclass(frozen=True, slots=True)
class DeadJobs:
    """The jobs created in a window that died once. ids: of all. rows: one for each that counts, the last one.

    dropped: rows of the archive that do not count, by day of creation since 1970.
    """

    ids: pa.Array
    rows: pa.Table
    dropped: Counter[int]


def list_archive_files(root: str, window: ArchiveWindow) -> list[str]:
    """The paths of the files that may have jobs of the window, by the partitions and figures in the log."""
    table = find_table(root, JOBS.name)
    if table is None:
        return []
    since, until = (datetime_of(ms) for ms in (window.created.since_ms, window.created.until_ms))
    wanted = (pc.field("gmt_create") >= since) & (pc.field("gmt_create") < until)
    if window.ended is not None:
        first = datetime_of(window.ended.since_ms).date()
        last = datetime_of(window.ended.until_ms - 1).date()
        wanted |= (pc.field(DAY) >= first) & (pc.field(DAY) <= last)
    dataset = table.to_pyarrow_dataset()
    return sorted(fragment.path for fragment in dataset.get_fragments(filter=wanted))


def count_work_of_archive(
    window: ArchiveWindow, files: Sequence[str], without: pa.Array
) -> CountWork:
    """The work of counting the jobs of some files. `without`: ids that are left out of the created jobs."""
    return CountWork(files, partial(_read_counts, window, without))


def count_work_of_rows(window: ArchiveWindow, rows: pa.Table) -> CountWork:
    """The work of counting rows that were read already, by creation."""
    return (
        CountWork((rows,), partial(_count_given_rows, window)) if rows else CountWork((), _nothing)
    )


def read_dead_jobs(
    spark: SparkSession | None, settings: Settings, window: ArchiveWindow, files: Sequence[str]
) -> DeadJobs:
    """Reads the jobs that died once, and were created in the window. Raises TooManyGroups.

    The caller removes those whose row in the database counts instead: `without_jobs`.
    """
    parts = run_work(spark, settings, partial(_read_dead_ids, window), files)
    ids = pc.unique(pa.concat_arrays([_NO_IDS, *parts]))
    if len(ids) > settings.reconcile.table_rows_max:
        raise TooManyGroups(
            f"more than {settings.reconcile.table_rows_max:,} jobs died that were created on one day "
            "(reconcile.table_rows_max)"
        )
    if not len(ids):
        return DeadJobs(ids, _empty_rows(), Counter())
    tables = run_work(spark, settings, partial(_read_rows_of_jobs, window, ids), files)
    every = pa.concat_tables([_empty_rows(), *tables])
    ordered = every.sort_by([("job_id", "ascending"), ("gmt_modified", "ascending")])
    ordered_ids = ordered["job_id"].combine_chunks()
    next_ids = pa.concat_arrays([ordered_ids, pa.array([0], pa.int64())])[1:]
    last = ordered.filter(pc.not_equal(ordered_ids, next_ids))
    return DeadJobs(ids, last, _count_days(every) - _count_days(last))


def without_jobs(dead: DeadJobs, job_ids: set[int]) -> DeadJobs:
    """Removes the rows of jobs, which then do not count."""
    is_out = pc.is_in(dead.rows["job_id"], pa.array(sorted(job_ids), pa.int64()))
    dropped = dead.dropped + _count_days(dead.rows.filter(is_out))
    return DeadJobs(dead.ids, dead.rows.filter(pc.invert(is_out)), dropped)


def count_archived_days(root: str, window: ArchiveWindow, dead: DeadJobs) -> DayCounts:
    """How many rows ended, and how many jobs were created, by day: by partition and by filter, for checks."""
    ended, created = Counter[int](), Counter[int]()
    table = find_table(root, JOBS.name)
    if table is None:
        return DayCounts(ended, created)
    dataset, is_ours = table.to_pyarrow_dataset(), pc.field("database") == window.database
    if window.ended is not None:
        for day in range(window.ended.since_ms // DAY_MS, window.ended.until_ms // DAY_MS):
            of_day = pc.field(DAY) == datetime_of(day * DAY_MS).date()
            ended[day] = dataset.count_rows(filter=is_ours & of_day)
    for day in range(window.created.since_ms // DAY_MS, window.created.until_ms // DAY_MS):
        since, until = datetime_of(day * DAY_MS), datetime_of((day + 1) * DAY_MS)
        of_day = (pc.field("gmt_create") >= since) & (pc.field("gmt_create") < until)
        created[day] = dataset.count_rows(filter=is_ours & of_day) - dead.dropped[day]
    return DayCounts(ended, created)


# ---- on executors, or in this process


def _nothing(settings: Settings, items: Sequence[Any]) -> Iterator[pa.RecordBatch]:
    return iter(())


def _read_counts(
    window: ArchiveWindow, without: pa.Array, settings: Settings, files: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    for rows in _read_rows(window, files):
        pages = []
        if window.ended is not None:
            ended = rows.filter(_is_within(rows["gmt_modified"], window.ended))
            pages += [_lateness_page(ended), _ended_page(ended)]
        created = rows.filter(_is_within(rows["gmt_create"], window.created))
        created = created.filter(pc.invert(pc.is_in(created["job_id"], without)))
        pages.append(_created_page(created))
        batches = [batch for page in pages for batch in page.to_batches()]
        yield from merge_pages(batches, settings.reconcile.table_rows_max).to_batches()


def _count_given_rows(
    window: ArchiveWindow, settings: Settings, tables: Sequence[pa.Table]
) -> Iterator[pa.RecordBatch]:
    for rows in tables:
        yield from _created_page(rows).to_batches()


def _read_dead_ids(
    window: ArchiveWindow, settings: Settings, files: Sequence[str]
) -> Iterator[pa.Array]:
    for rows in _read_rows(window, files):
        of_window = _is_within(rows["gmt_create"], window.created)
        dead = rows.filter(pc.and_(of_window, pc.equal(rows["status"], int(Status.DEAD))))
        if dead.num_rows:
            yield dead["job_id"].combine_chunks()


def _read_rows_of_jobs(
    window: ArchiveWindow, ids: pa.Array, settings: Settings, files: Sequence[str]
) -> Iterator[pa.Table]:
    for rows in _read_rows(window, files):
        found = rows.filter(pc.is_in(rows["job_id"], ids))
        found = found.filter(_is_within(found["gmt_create"], window.created))
        if found.num_rows:
            yield found


def _read_rows(window: ArchiveWindow, files: Sequence[str]) -> Iterator[pa.Table]:
    """The rows of one database, a page at a time, with times in ms since 1970."""
    store = open_files(window.url)
    for path in files:
        with store.open_input_file(path) as stream, parquet.ParquetFile(stream) as reader:
            for batch in reader.iter_batches(PAGE_ROWS, columns=_COLUMNS):
                rows = pa.Table.from_batches([batch])
                rows = rows.filter(pc.equal(rows["database"], window.database))
                yield pa.table([_as_plain(rows, name) for name in _COLUMNS], schema=_ROWS)


_ROWS = pa.schema(
    [(name, pa.int64() if name != "claim_token" else pa.string()) for name in _COLUMNS]
)


def _empty_rows() -> pa.Table:
    return _ROWS.empty_table()


def _as_plain(rows: pa.Table, name: str) -> pa.ChunkedArray:
    column = rows[name]
    if pa.types.is_timestamp(column.type):
        column = column.cast(_MS)
    return column.cast(_ROWS.field(name).type)


def _is_within(column: pa.ChunkedArray, window: EndedJobWindow) -> pa.ChunkedArray:
    return pc.and_(pc.greater_equal(column, window.since_ms), pc.less(column, window.until_ms))


def _count_days(rows: pa.Table) -> Counter[int]:
    return Counter(_divide(rows["gmt_create"], DAY_MS).to_pylist())


def _divide(column: pa.ChunkedArray, unit: int) -> pa.ChunkedArray:
    return pc.divide(column, unit)  # integers, and times after 1970: rounded down


# ---- one page of counts for each page of rows: a row of counts for each job, which the merge adds up


def _lateness_page(rows: pa.Table) -> pa.Table:
    is_measured = pc.and_(
        pc.and_(pc.equal(rows["status"], int(Status.DONE)), pc.equal(rows["attempts"], 1)),
        pc.is_valid(rows["claim_time"]),
    )
    late_ms = pc.max_element_wise(pc.subtract(rows["claim_time"], rows["action_time"]), 0)
    return _page(
        rows, LATENESS, "gmt_modified", "action_time",
        node=pc.struct_field(pc.extract_regex(rows["claim_token"], _NODE), "node"),
        measured=is_measured, ms=late_ms, bounds=BOUNDS_MS,
    )  # fmt: skip


def _ended_page(rows: pa.Table) -> pa.Table:
    return _page(rows, ENDED, "gmt_modified", "gmt_modified")


def _created_page(rows: pa.Table) -> pa.Table:
    age_ms = pc.max_element_wise(pc.subtract(rows["gmt_modified"], rows["gmt_create"]), 0)
    has_ended = pc.is_in(rows["status"], pa.array(ENDED_STATUSES, pa.int64()))
    return _page(
        rows, CREATED, "gmt_create", "gmt_create",
        measured=has_ended, ms=age_ms, bounds=AGE_BOUNDS_MS,
    )  # fmt: skip


def _page(
    rows: pa.Table,
    measure: int,
    day_of: str,
    hour_of: str,
    *,
    node: Any = None,
    measured: Any = None,
    ms: Any = None,
    bounds: Sequence[int] = (),
) -> pa.Table:
    """Counts of 1. `measured`: where `ms` counts, and has a bucket."""
    number = rows.num_rows
    zeros, nothing = pa.array([0] * number, pa.int64()), pa.nulls(number, pa.int32())
    bucket: Any = nothing
    if measured is not None:
        ms = pc.if_else(measured, ms, 0)
        exceeded = zeros
        for bound in bounds:
            exceeded = pc.add(exceeded, pc.cast(pc.greater(ms, bound), pa.int64()))
        bucket = pc.if_else(measured, exceeded, pa.scalar(None, pa.int64()))
    columns = {
        "measure": pa.array([measure] * number, pa.int32()),
        "day": _divide(rows[day_of], DAY_MS),
        "hour": _divide(rows[hour_of], HOUR_MS),
        "type_no": rows["type_no"],
        "status": rows["status"],
        "node": pa.nulls(number, pa.string()) if node is None else node,
        "bucket": bucket,
        "jobs": pa.array([1] * number, pa.int64()),
        "retried": pc.cast(pc.greater(rows["attempts"], 1), pa.int64()),
        "attempts": rows["attempts"],
        "ms": zeros if ms is None else ms,
        "ms_max": zeros if ms is None else ms,
        "shard": rows["shard"],
    }
    return pa.table([columns[field.name].cast(field.type) for field in SCHEMA], schema=SCHEMA)


def archive_window(
    root: str, database: int, ended: EndedJobWindow | None, created: EndedJobWindow
) -> ArchiveWindow:
    """The window, with the URL of the table in `root`."""
    return ArchiveWindow(table_url(root, JOBS.name), database, ended, created)
