"""Ended jobs: which of them a run copies, and how it reads them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from toc.domain.job import Status
from toc.reconcile.archive_checksums import (
    WRONG_NAMES,
    DayChecksums,
    checksums_of_rows,
    sum_by_number,
)
from toc.reconcile.archive_copy import (
    PartitionRows,
    RowCopy,
    TableArchive,
    day_number,
    day_text,
    values_as_batch,
)
from toc.reconcile.archive_files import Partition
from toc.reconcile.archive_tables import JOBS
from toc.reconcile.delta_tables import TableSpec
from toc.reconcile.id_ranges import split_into_id_ranges
from toc.runtime.setting_groups import Days, RetentionSettings
from toc.runtime.settings import Settings
from toc.store.archive_status import EndedJobWindow
from toc.store.biz_types import read_known_types
from toc.store.databases import Database, Databases
from toc.store.ended_jobs import COLUMNS, DAY_MS, possible_ids_of_ended

ROWS_MAX = 5000  # rows that a task reads at once
PAGE_BYTES = 16 * 2**20  # bytes of attributes that a task reads at once
_STATUS_NAMES = {int(status): status.name.lower() for status in Status}


@dataclass(frozen=True, slots=True)
class JobCopy(RowCopy[int]):
    """The jobs of one database that ended from `first` on and before `end` (ms). An item is a shard."""

    spec: ClassVar[TableSpec] = JOBS

    @property
    def window(self) -> EndedJobWindow:
        return EndedJobWindow(self.first, self.end)

    def read_rows(self, settings: Settings, items: Iterable[int]) -> Iterator[PartitionRows]:
        """Reads the jobs of some shards."""
        ids, number = possible_ids_of_ended(self.window), job_rows_per_read(settings)
        for ended, shard, piece in split_into_id_ranges(settings, items, ids, number):
            rows = ended.read_ended_rows(shard, piece, self.window)
            yield from self._split_by_partition(shard, rows)

    def sum_rows(self, partition: Partition, rows: pa.RecordBatch) -> DayChecksums:
        """The checksums by shard."""
        found, (day, biz_type) = DayChecksums(), partition
        right = self._names_are_right(biz_type, rows)
        sums = sum_by_number(rows.column("shard"), checksums_of_rows(rows, COLUMNS))
        for shard, number, crc in sums:
            found.add_rows(shard, day_number(day), number if right else WRONG_NAMES, crc)
        return found

    def sum_database(self, settings: Settings, items: Iterable[int]) -> DayChecksums:
        """The checksums by shard."""
        found, ids = DayChecksums(), possible_ids_of_ended(self.window)
        pieces = split_into_id_ranges(settings, items, ids, settings.reconcile.page)
        for ended, shard, piece in pieces:
            for one in ended.read_day_checksums(shard, piece, self.window):
                found.add_rows(shard, *one)
        return found

    def _split_by_partition(
        self, shard: int, rows: Sequence[Sequence[Any]]
    ) -> Iterator[PartitionRows]:
        if not rows:
            return
        columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
        places: dict[tuple[int, int], list[int]] = defaultdict(list)
        keys = zip(columns["gmt_modified"], columns["type_no"], strict=True)
        for place, (ended_ms, type_no) in enumerate(keys):
            places[ended_ms // DAY_MS, type_no].append(place)
        added: dict[str, Sequence[Any]] = {
            "biz_id": [int(biz_id) for biz_id in columns["biz_id"]],
            "status_name": [_STATUS_NAMES.get(status) for status in columns["status"]],
            "shard": [shard] * len(rows),
            "database": [self.database] * len(rows),
        }
        batch = values_as_batch(JOBS, columns | added)
        for (day, type_no), some in places.items():
            partition = (day_text(day), self.type_names.get(type_no))
            yield partition, batch.take(pa.array(some))

    def _names_are_right(self, biz_type: str | None, rows: pa.RecordBatch) -> bool:
        types = pc.unique(rows.column("type_no")).to_pylist()
        statuses = pc.binary_join_element_wise(
            rows.column("status").cast(pa.string()), rows.column("status_name"), "="
        )
        right = {f"{number}={name}" for number, name in _STATUS_NAMES.items()}
        databases = pc.unique(rows.column("database")).to_pylist()
        return (
            all(self.type_names.get(type_no) == biz_type for type_no in types)
            and right.issuperset(pc.unique(statuses).to_pylist())
            and databases == [self.database]
        )


class JobArchive(TableArchive):
    """The table of ended jobs. A position is the time before which the jobs ended, in ms."""

    spec: ClassVar[TableSpec] = JOBS

    def shortest_retention_days(self, retention: RetentionSettings) -> Days:
        """The shortest of the limits for jobs."""
        return retention.shortest_retention_days

    def find_end(self, database: Database, first: int, since_ms: int, until_ms: int) -> int:
        """The cutoff itself."""
        return max(first, until_ms)

    def event_id_at(self, end: int) -> int | None:
        """None: the status of jobs has only a time."""
        return None

    def make_copy(
        self, databases: Databases, database: Database, table: tuple[str, str], first: int, end: int
    ) -> tuple[JobCopy, Sequence[int]]:
        """The copy, and the shards of the database."""
        names = read_type_names(databases, database)
        return JobCopy(*table, database.index, names, first, end), database.shards


def read_type_names(databases: Databases, database: Database) -> dict[int, str]:
    """The names of types by number. The archive is kept for ever, so this database must be readable.

    Its names are preferred to the names in other databases.
    """
    return {**read_known_types(databases).names, **read_known_types([database]).names}


def job_rows_per_read(settings: Settings) -> int:
    """How many rows a task reads at once."""
    return min(ROWS_MAX, settings.reconcile.page, PAGE_BYTES // settings.limits.attribute_bytes)
