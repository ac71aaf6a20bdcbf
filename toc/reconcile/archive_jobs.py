"""Copies the ended jobs of some shards to files, and computes the checksums of files and databases.

These are plain functions of the settings and of a few small items: they run on Spark's executors, or in this
process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from toc.domain.job import Status
from toc.reconcile.archive_checksums import (
    WRONG_NAMES,
    DayChecksums,
    checksums_of_rows,
    sum_by_number,
)
from toc.reconcile.archive_files import (
    ArchiveFile,
    Partition,
    PartitionedWriter,
    read_add_action,
    read_batches,
)
from toc.reconcile.archive_tables import JOBS, TIME
from toc.reconcile.delta_tables import open_files
from toc.reconcile.id_ranges import split_into_id_ranges
from toc.runtime.private_files import private_umask
from toc.runtime.settings import Settings
from toc.store.archive_status import EndedJobWindow
from toc.store.column_types import sql_time_of_ms
from toc.store.ended_jobs import COLUMNS, DAY_MS, possible_ids_of_ended

ROWS_MAX = 5000  # rows that a task reads at once
PAGE_BYTES = 16 * 2**20  # bytes of attributes that a task reads at once
_STATUS_NAMES = {int(status): status.name.lower() for status in Status}


class JobCopy(NamedTuple):
    """The jobs of one database to be copied: those that ended in `window`.

    url: of the table. prefix: begins the names of the files. type_names: by type_no.
    """

    url: str
    prefix: str
    database: int
    window: EndedJobWindow
    type_names: Mapping[int, str]


class VerifiedFile(NamedTuple):
    """What a file in the store has. `action`: the entry of the file in the table's log."""

    action: AddAction
    checksums: DayChecksums


def write_job_files(
    copy: JobCopy, settings: Settings, shards: Iterable[int]
) -> Iterator[ArchiveFile]:
    """Writes the jobs of some shards to new files; yields the files. No reader sees them yet."""
    with private_umask():
        writer = PartitionedWriter(open_files(copy.url), JOBS, copy.prefix)
        ids = possible_ids_of_ended(copy.window)
        for ended, shard, piece in split_into_id_ranges(
            settings, shards, ids, job_rows_per_read(settings)
        ):
            rows = ended.read_ended_rows(shard, piece, copy.window)
            for partition, batch in _split_by_partition(copy, shard, rows):
                writer.add_rows(partition, batch)
        written = writer.close()
    yield from written


def verify_job_files(
    copy: JobCopy, settings: Settings, written: Iterable[ArchiveFile]
) -> Iterator[VerifiedFile]:
    """Reads written files back. A file that is missing is left out, so that its rows are missing."""
    files = open_files(copy.url)
    for file in written:
        try:
            sums = _read_file_checksums(copy, file)
            yield VerifiedFile(read_add_action(files, JOBS, file), sums)
        except FileNotFoundError:
            continue


def read_database_checksums(
    copy: JobCopy, settings: Settings, shards: Iterable[int]
) -> Iterator[DayChecksums]:
    """Checksums of the jobs that ended in the window, computed by the database."""
    found = DayChecksums()
    ids, rows = possible_ids_of_ended(copy.window), settings.reconcile.page
    for ended, shard, piece in split_into_id_ranges(settings, shards, ids, rows):
        for one in ended.read_day_checksums(shard, piece, copy.window):
            found.add_rows(shard, *one)
    yield found


def job_rows_per_read(settings: Settings) -> int:
    """How many rows a task reads at once."""
    return min(ROWS_MAX, settings.reconcile.page, PAGE_BYTES // settings.limits.attribute_bytes)


def _split_by_partition(
    copy: JobCopy, shard: int, rows: Sequence[Sequence[Any]]
) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    if not rows:
        return
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    places: dict[tuple[int, int], list[int]] = defaultdict(list)
    keys = zip(columns["gmt_modified"], columns["type_no"], strict=True)
    for place, (ended_ms, type_no) in enumerate(keys):
        places[ended_ms // DAY_MS, type_no].append(place)
    batch = _rows_as_batch(copy, shard, columns)
    for (day, type_no), some in places.items():
        partition = (_day_text(day), copy.type_names.get(type_no))
        yield partition, batch.take(pa.array(some))


def _rows_as_batch(
    copy: JobCopy, shard: int, columns: Mapping[str, Sequence[Any]]
) -> pa.RecordBatch:
    number = len(columns["job_id"])
    values = dict(columns) | {
        "biz_id": [int(biz_id) for biz_id in columns["biz_id"]],
        "status_name": [_STATUS_NAMES.get(status) for status in columns["status"]],
        "shard": [shard] * number,
        "database": [copy.database] * number,
    }
    arrays = []
    for field in JOBS.file_columns:
        if field.type == TIME:
            array = pa.array(values[field.name], pa.timestamp("ms", "UTC"))
        elif pa.types.is_decimal(field.type):
            array = pa.array(values[field.name], pa.uint64())
        else:
            array = pa.array(values[field.name], field.type)
        arrays.append(array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=JOBS.file_columns)


def _read_file_checksums(copy: JobCopy, file: ArchiveFile) -> DayChecksums:
    found = DayChecksums()
    day_text, biz_type = file.partition
    day = _day_number(day_text)
    for batch in read_batches(open_files(copy.url), JOBS, file):
        right = _names_are_right(copy, biz_type, batch)
        sums = sum_by_number(batch.column("shard"), checksums_of_rows(batch, COLUMNS))
        for shard, rows, crc in sums:
            found.add_rows(shard, day, rows if right else WRONG_NAMES, crc)
    return found


def _names_are_right(copy: JobCopy, biz_type: str | None, batch: pa.RecordBatch) -> bool:
    types = pc.unique(batch.column("type_no")).to_pylist()
    statuses = pc.binary_join_element_wise(
        batch.column("status").cast(pa.string()), batch.column("status_name"), "="
    )
    right = {f"{number}={name}" for number, name in _STATUS_NAMES.items()}
    databases = pc.unique(batch.column("database")).to_pylist()
    return (
        all(copy.type_names.get(type_no) == biz_type for type_no in types)
        and right.issuperset(pc.unique(statuses).to_pylist())
        and databases == [copy.database]
    )


def _day_text(day: int) -> str:
    return sql_time_of_ms(day * DAY_MS)[:10]


def _day_number(text: str | None) -> int:
    return int(pa.scalar(text, pa.string()).cast(pa.date32()).cast(pa.int32()).as_py())
