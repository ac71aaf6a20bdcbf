"""The archive: ended jobs and events go to Delta tables before they are purged.

One database after the other, some days before the purger may delete its rows, and one table after the other:

1. The run begins, in the table's row (`archived_until`, `events_archived_until`) of the database's
   `toc_meta`, and in the table. From here on no earlier run can change either. The row has a position: jobs
   that ended before this time, or events below this id, are archived, and may be purged. The table has such
   a position too; it is later if a run was killed between steps 4 and 5.
2. The rows from the later one of these positions on, and from before a midnight (UTC), are written to new
   files in the table's folder. No reader sees a file that no commit names.
3. The files are read back from the store. Number and checksum of their rows per shard and day must be those
   that the database computes. If they differ, the run deletes the files, and nothing else has changed.
4. One commit adds all files to the table, and sets the table's position.
5. The position in the row is advanced; from then on the purger may delete.

A run that is killed before step 4 leaves files that no commit names; `archive_maintenance` deletes them.
`archive_commits` explains why no row can be in the table twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from toc.errors import SettingsError, TocError
from toc.reconcile.archive_checksums import DayChecksums, describe_checksum_differences
from toc.reconcile.archive_commits import ArchiveTable, CannotArchive
from toc.reconcile.archive_copy import (
    RowCopy,
    TableArchive,
    VerifiedFile,
    read_database_checksums,
    verify_files,
    write_files,
)
from toc.reconcile.archive_events import EventArchive
from toc.reconcile.archive_files import delete_files
from toc.reconcile.archive_jobs import JobArchive
from toc.reconcile.archive_tables import MARKS, TABLES
from toc.reconcile.delta_tables import DELTA_ERRORS, describe_delta_error, open_files
from toc.reconcile.executors import run_work
from toc.reconcile.spark_errors import spark_error_types
from toc.runtime.clock import Clock
from toc.runtime.private_files import private_umask
from toc.runtime.setting_groups import Days
from toc.runtime.settings import Settings
from toc.store import archive_status
from toc.store.archive_status import ArchiveStatus
from toc.store.column_types import sql_time_of_ms
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases
from toc.store.ended_jobs import DAY_MS, HOUR_MS

if TYPE_CHECKING:
    from deltalake.transaction import AddAction
    from pyspark.sql import SparkSession

ARCHIVES: tuple[TableArchive, ...] = (JobArchive(), EventArchive())
"""How each table is filled, in this order."""

LEAD_DAYS = 3
"""A row is archived so many days before the purger may delete the row: one day until its day ends, one until
the next night, one for a night that failed."""

SETTLED_MS = HOUR_MS
"""Rows that are older are certainly committed. Applies if retention is shorter than LEAD_DAYS."""

TRIES = 2
"""How often rows are copied and checked: a job that is redriven or discarded during the first try makes sums
differ."""

DIFFERENCES_MAX = 20


@dataclass(slots=True)
class TableArchiveResult:
    """The result of archiving the rows of one database in one table.

    index: of the database. Times in ms since 1970 UTC; until_ms equals since_ms if nothing was due.

    differing: a line for each shard and day in which archive and database differ (at most DIFFERENCES_MAX).
    error: why it could not be archived.
    """

    table: str
    index: int
    since_ms: int = 0
    until_ms: int = 0
    rows: int = 0
    files: int = 0
    differing: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def is_good(self) -> bool:
        return not (self.differing or self.error)


@dataclass(slots=True)
class ArchiveResult:
    """The result of archiving all databases, in the order of the work."""

    parts: list[TableArchiveResult] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return all(part.is_good for part in self.parts)

    @property
    def has_differences(self) -> bool:
        """Whether archive and database differ somewhere: exit code 1."""
        return any(part.differing for part in self.parts)

    @property
    def row_count(self) -> int:
        return sum(part.rows for part in self.parts)

    def of_table(self, table: str) -> list[TableArchiveResult]:
        """The results of one table, by database."""
        return [part for part in self.parts if part.table == table]


def archive_due_rows(
    spark: SparkSession | None, settings: Settings, clock: Clock, tell: Callable[[str], None]
) -> ArchiveResult:
    """Archives the due days of every database that answers; `spark` None: in this process.

    `tell` is called with a line for each database and table. Errors of servers and stores are in the result.
    Raises SettingsError for a URL that delta-rs does not know.
    """
    run = _ArchiveRun(spark, settings, tell)
    with (
        closing(Databases.from_settings(settings, clock, pool_size=2)) as databases,
        private_umask(),
    ):
        for database in databases:
            for archive in ARCHIVES:
                run.archive_table(databases, database, archive)
    return run.result


def begin_in_new_folder(settings: Settings, clock: Clock) -> dict[str, dict[int, ArchiveStatus]]:
    """Makes the tables in `reconcile.archive` go on where the archive of another folder ends.

    For a change of that setting. Returns by table and database the status whose rows are in the other folder.
    Raises CannotArchive if the tables have rows of another system, DELTA_ERRORS, and StoreUnavailable. Can be
    repeated.
    """
    begun: dict[str, dict[int, ArchiveStatus]] = {}
    with (
        closing(Databases.from_settings(settings, clock, pool_size=1)) as databases,
        private_umask(),
    ):
        for database in databases:
            DatabaseMetadata(databases).verify_and_record_meta(settings.facts, [database])
            for spec in TABLES:
                table = ArchiveTable.of_database(settings.reconcile.archive, spec, database)
                mark = MARKS[spec.name]
                status = archive_status.read_archive_status(database, mark)
                if status is not None and table.position < status.position:
                    status = archive_status.begin_archive_run(database, mark)
                    table.begin_run(status.begun)
                    table.commit_files([], status.position, status.until_ms)
                    begun.setdefault(spec.name, {})[database.index] = status
    return begun


def archive_cutoff_ms(now_ms: int, days_min: Days) -> int:
    """The midnight before which rows are archived; 0 if nothing is ever purged."""
    if days_min == "none":
        return 0
    age_ms = max(SETTLED_MS, round((days_min - LEAD_DAYS) * DAY_MS))
    return max(0, (now_ms - age_ms) // DAY_MS * DAY_MS)


class _ArchiveRun:
    def __init__(
        self, spark: SparkSession | None, settings: Settings, tell: Callable[[str], None]
    ) -> None:
        self._spark, self._settings, self._tell = spark, settings, tell
        self._errors: tuple[type[Exception], ...] = (TocError, *DELTA_ERRORS)
        if spark is not None:
            self._errors += spark_error_types()
        self.result = ArchiveResult()

    def archive_table(
        self, databases: Databases, database: Database, archive: TableArchive
    ) -> None:
        """Archives one table of one database; errors go into the result."""
        done = TableArchiveResult(archive.spec.name, database.index)
        self.result.parts.append(done)
        try:
            self._archive_due_rows(databases, database, archive, done)
        except SettingsError:
            raise
        except self._errors as error:
            done.error = describe_delta_error(error)
        if not done.is_good:
            for line in done.differing or [done.error]:
                self._report_progress(done, line)

    def _report_progress(self, done: TableArchiveResult, text: str) -> None:
        self._tell(f"archive, {done.table} of database {done.index}: {text}")

    def _archive_due_rows(
        self,
        databases: Databases,
        database: Database,
        archive: TableArchive,
        done: TableArchiveResult,
    ) -> None:
        # With fewer shards, rows that were never read would count as archived.
        DatabaseMetadata(databases).verify_and_record_meta(self._settings.facts, [database])
        until_ms = archive_cutoff_ms(
            database.now_ms(), archive.shortest_retention_days(self._settings.retention)
        )
        if not until_ms:
            self._report_progress(done, "nothing is ever purged, so nothing is archived")
            return
        table = ArchiveTable.of_database(self._settings.reconcile.archive, archive.spec, database)
        status = archive_status.read_archive_status(database, table.mark)
        table.refuse_other_origin(status)
        if status is None or until_ms > status.until_ms:
            status = archive_status.begin_archive_run(database, table.mark)
        done.since_ms = done.until_ms = status.until_ms
        if until_ms <= status.until_ms:
            self._report_progress(done, "nothing is due")
            return
        table.begin_run(status.begun)
        first = max(status.position, table.position)
        known_ms = max(status.until_ms, table.until_ms)
        end = archive.find_end(database, first, known_ms, until_ms)
        if first < end:
            copied = (table.url, f"database-{database.index}-run-{table.run}")
            copy, items = archive.make_copy(databases, database, copied, first, end)
            actions = self._write_and_verify_files(copy, items, done)
            if actions is None:
                return
            table.commit_files(actions, end, until_ms)
            done.files = len(actions)
        event_id = archive.event_id_at(end)
        if archive_status.advance_archived_until(database, status, until_ms, event_id) is None:
            raise CannotArchive(
                f"another run of the archive has begun meanwhile; that run advances {table.mark}"
            )
        done.until_ms = until_ms
        self._report_progress(
            done,
            f"{done.rows:,} rows from before {sql_time_of_ms(until_ms)[:10]}, in {done.files} "
            "files; count and checksum agree",
        )

    def _write_and_verify_files(
        self, copy: RowCopy[Any], items: Sequence[Any], done: TableArchiveResult
    ) -> list[AddAction] | None:
        """Writes the rows of the copy to files; None: their checksums are not the database's."""
        for left in reversed(range(TRIES)):
            written = run_work(self._spark, self._settings, partial(write_files, copy), items)
            verified: list[VerifiedFile] = run_work(
                self._spark, self._settings, partial(verify_files, copy), written
            )
            database_sums = run_work(
                self._spark, self._settings, partial(read_database_checksums, copy), items
            )
            archived = _merge_checksums([file.checksums for file in verified])
            found = list(describe_checksum_differences(archived, _merge_checksums(database_sums)))
            if not found:
                done.rows = archived.row_count
                return [file.action for file in verified]
            delete_files(open_files(copy.url), written)
            if left:
                self._report_progress(done, f"{len(found)} differences, trying again: {found[0]}")
        done.differing = found[:DIFFERENCES_MAX]
        return None


def _merge_checksums(parts: list[DayChecksums]) -> DayChecksums:
    merged = DayChecksums()
    for part in parts:
        merged.add_all(part)
    return merged
