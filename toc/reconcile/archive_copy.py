"""Copies rows to files, and computes the checksums of files and databases: the part that all tables share.

`RowCopy` has the part that differs: jobs (archive_jobs) and events (archive_events). The functions are plain
functions of the settings and of a few small items: they run on Spark's executors, or in this process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import pyarrow as pa
from deltalake.transaction import AddAction

from toc.reconcile.archive_checksums import DayChecksums
from toc.reconcile.archive_files import (
    ArchiveFile,
    Partition,
    PartitionedWriter,
    read_add_action,
    read_batches,
)
from toc.reconcile.archive_tables import TIME
from toc.reconcile.delta_tables import TableSpec, open_files
from toc.runtime.private_files import private_umask
from toc.runtime.setting_groups import Days, RetentionSettings
from toc.runtime.settings import Settings
from toc.store.column_types import sql_time_of_ms
from toc.store.databases import Database, Databases
from toc.store.ended_jobs import DAY_MS

Item = TypeVar("Item")

PartitionRows = tuple[Partition, pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class RowCopy(ABC, Generic[Item]):
    """The rows of one database that a run copies: those with `first <= position < end`.

    url: of the table. prefix: begins the names of the files. type_names: by type_no. A position is a time in
    ms or an id (`ArchiveStatus.position`). The copy is sent to executors, so it holds no password.
    """

    url: str
    prefix: str
    database: int
    type_names: Mapping[int, str]
    first: int
    end: int
    spec: ClassVar[TableSpec]

    @abstractmethod
    def read_rows(self, settings: Settings, items: Iterable[Item]) -> Iterator[PartitionRows]:
        """Reads the rows of some items, in batches of one partition."""

    @abstractmethod
    def sum_rows(self, partition: Partition, rows: pa.RecordBatch) -> DayChecksums:
        """The checksums of rows that were read back from a file of that partition."""

    @abstractmethod
    def sum_database(self, settings: Settings, items: Iterable[Item]) -> DayChecksums:
        """The checksums of the rows of some items, computed by the database."""


class TableArchive(ABC):
    """How one table of the archive is filled."""

    spec: ClassVar[TableSpec]

    @abstractmethod
    def shortest_retention_days(self, retention: RetentionSettings) -> Days:
        """After how many days the first rows are purged, or their archive is wanted."""

    @abstractmethod
    def find_end(self, database: Database, first: int, since_ms: int, until_ms: int) -> int:
        """The position before which rows are older than `until_ms`; `first` at least.

        since_ms: the cutoff of the run that reached `first`.
        """

    @abstractmethod
    def event_id_at(self, end: int) -> int | None:
        """The `event_id` of the status at that position."""

    @abstractmethod
    def make_copy(
        self, databases: Databases, database: Database, table: tuple[str, str], first: int, end: int
    ) -> tuple[RowCopy[Any], Sequence[Any]]:
        """The copy of a range of positions, and the items that tasks share. table: URL and prefix."""


class VerifiedFile(NamedTuple):
    """What a file in the store has. `action`: the entry of the file in the table's log."""

    action: AddAction
    checksums: DayChecksums


def write_files(
    copy: RowCopy[Item], settings: Settings, items: Iterable[Item]
) -> Iterator[ArchiveFile]:
    """Writes the rows of some items to new files; yields the files. No reader sees them yet."""
    with private_umask():
        writer = PartitionedWriter(open_files(copy.url), copy.spec, copy.prefix)
        for partition, batch in copy.read_rows(settings, items):
            writer.add_rows(partition, batch)
        written = writer.close()
    yield from written


def verify_files(
    copy: RowCopy[Any], settings: Settings, written: Iterable[ArchiveFile]
) -> Iterator[VerifiedFile]:
    """Reads written files back. A file that is missing is left out, so that its rows are missing."""
    files = open_files(copy.url)
    for file in written:
        sums = DayChecksums()
        try:
            for batch in read_batches(files, copy.spec, file):
                sums.add_all(copy.sum_rows(file.partition, batch))
            yield VerifiedFile(read_add_action(files, copy.spec, file), sums)
        except FileNotFoundError:
            continue


def read_database_checksums(
    copy: RowCopy[Item], settings: Settings, items: Iterable[Item]
) -> Iterator[DayChecksums]:
    """Checksums of the rows of some items, computed by the database."""
    yield copy.sum_database(settings, items)


def values_as_batch(spec: TableSpec, values: Mapping[str, Sequence[Any]]) -> pa.RecordBatch:
    """A batch of the file columns of a table. values: by column; times in ms since 1970."""
    arrays = []
    for field in spec.file_columns:
        if field.type == TIME:
            array = pa.array(values[field.name], pa.timestamp("ms", "UTC"))
        elif pa.types.is_decimal(field.type):
            array = pa.array(values[field.name], pa.uint64())
        else:
            array = pa.array(values[field.name], field.type)
        arrays.append(array.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=spec.file_columns)


def day_text(day: int) -> str:
    """A day, counted since 1970, as the log of a table has it: '2026-01-05'."""
    return sql_time_of_ms(day * DAY_MS)[:10]


def day_number(text: str | None) -> int:
    """The inverse of `day_text`."""
    return int(pa.scalar(text, pa.string()).cast(pa.date32()).cast(pa.int32()).as_py())
