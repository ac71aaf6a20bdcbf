"""The archive: ended jobs go to Delta tables before they are purged.

One database after the other, some days before the purger may delete its jobs:

1. The run begins, in the row `archived_until` of the database's `toc_meta`, and in the table. From here on
   no earlier run can change either. The row has a time: jobs that ended before this time are archived, and
   may be purged. The table has such a time too; it is later if a run was killed between steps 4 and 5.
2. The jobs that ended from the later one of these times on, and before a midnight (UTC), are written to new
   files in the table's folder. No reader sees a file that no commit names.
3. The files are read back from the store. Number and checksum of their rows per shard and day must be those
   that the database computes. If they differ, the run deletes the files, and nothing else has changed.
4. One commit adds all files to the table, and sets the table's time.
5. The time in the row is advanced; from then on the purger may delete.

A run that is killed before step 4 leaves files that no commit names; `archive_maintenance` deletes them.
`archive_commits` explains why no row can be in the table twice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from toc.errors import SettingsError, TocError
from toc.reconcile.archive_checksums import DayChecksums, describe_checksum_differences
from toc.reconcile.archive_commits import ArchiveTable, CannotArchive
from toc.reconcile.archive_files import delete_files
from toc.reconcile.archive_jobs import (
    JobCopy,
    VerifiedFile,
    read_database_checksums,
    verify_job_files,
    write_job_files,
)
from toc.reconcile.archive_tables import JOBS
from toc.reconcile.delta_tables import DELTA_ERRORS, describe_delta_error, open_files
from toc.reconcile.executors import run_work
from toc.reconcile.spark_errors import spark_error_types
from toc.runtime.clock import Clock
from toc.runtime.private_files import private_umask
from toc.runtime.setting_groups import Days
from toc.runtime.settings import Settings
from toc.store import archive_status
from toc.store.archive_status import EndedJobWindow
from toc.store.biz_types import read_known_types
from toc.store.column_types import sql_time_of_ms
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases
from toc.store.ended_jobs import DAY_MS, HOUR_MS

if TYPE_CHECKING:
    from deltalake.transaction import AddAction
    from pyspark.sql import SparkSession

LEAD_DAYS = 3
"""A job is archived so many days before the purger may delete the job: one day until its day ends, one until
the next night, one for a night that failed."""

SETTLED_MS = HOUR_MS
"""Jobs that ended longer ago are certainly committed. Applies if retention is shorter than LEAD_DAYS."""

TRIES = 2
"""How often rows are copied and checked: a job that is redriven during the first try makes sums differ."""

DIFFERENCES_MAX = 20


@dataclass(slots=True)
class DatabaseArchiveResult:
    """The result of archiving one database.

    Times in ms since 1970 UTC; until_ms equals since_ms if nothing was due.

    differing: a line for each shard and day in which archive and database differ (at most DIFFERENCES_MAX).
    error: why it could not be archived.
    """

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
    """The result of archiving all databases."""

    databases: list[DatabaseArchiveResult] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return all(database.is_good for database in self.databases)

    @property
    def has_differences(self) -> bool:
        """Whether archive and database differ somewhere: exit code 1."""
        return any(database.differing for database in self.databases)

    @property
    def row_count(self) -> int:
        return sum(database.rows for database in self.databases)


def archive_ended_jobs(
    spark: SparkSession | None, settings: Settings, clock: Clock, tell: Callable[[str], None]
) -> ArchiveResult:
    """Archives the due days of every database that answers; `spark` None: in this process.

    `tell` is called with a line for each database. Errors of servers and stores are in the result. Raises
    SettingsError for a URL that delta-rs does not know.
    """
    run = _ArchiveRun(spark, settings, tell)
    with (
        closing(Databases.from_settings(settings, clock, pool_size=2)) as databases,
        private_umask(),
    ):
        for database in databases:
            run.archive_database(databases, database)
    return run.result


def begin_in_new_folder(settings: Settings, clock: Clock) -> dict[int, int]:
    """Makes the tables in `reconcile.archive` go on where the archive of another folder ends.

    For a change of that setting. Returns by database the time, in ms since 1970, before which ended jobs are
    in the other folder. Raises CannotArchive if the tables have rows of another system, DELTA_ERRORS, and
    StoreUnavailable. Can be repeated.
    """
    begun = {}
    with (
        closing(Databases.from_settings(settings, clock, pool_size=1)) as databases,
        private_umask(),
    ):
        for database in databases:
            DatabaseMetadata(databases).verify_and_record_meta(settings.facts, [database])
            table = ArchiveTable.of_database(settings.reconcile.archive, JOBS, database)
            status = archive_status.read_archive_status(database)
            if status is not None and table.until_ms < status.until_ms:
                status = archive_status.begin_archive_run(database)
                table.begin_run(status.begun)
                table.commit_files([], status.until_ms)
                begun[database.index] = status.until_ms
    return begun


def archive_cutoff_ms(now_ms: int, days_min: Days) -> int:
    """The midnight before which jobs must have ended to be archived; 0 if nothing is ever purged."""
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

    def archive_database(self, databases: Databases, database: Database) -> None:
        """Archives one database; errors go into its result."""
        done = DatabaseArchiveResult(database.index)
        self.result.databases.append(done)
        try:
            self._archive_due_jobs(databases, database, done)
        except SettingsError:
            raise
        except self._errors as error:
            done.error = describe_delta_error(error)
        if not done.is_good:
            for line in done.differing or [done.error]:
                self._report_progress(database, line)

    def _report_progress(self, database: Database, text: str) -> None:
        self._tell(f"archive, database {database.index}: {text}")

    def _archive_due_jobs(
        self, databases: Databases, database: Database, done: DatabaseArchiveResult
    ) -> None:
        # With fewer shards, rows that were never read would count as archived.
        DatabaseMetadata(databases).verify_and_record_meta(self._settings.facts, [database])
        until_ms = archive_cutoff_ms(
            database.now_ms(), self._settings.retention.shortest_retention_days
        )
        if not until_ms:
            self._report_progress(database, "nothing is ever purged, so nothing is archived")
            return
        table = ArchiveTable.of_database(self._settings.reconcile.archive, JOBS, database)
        status = archive_status.read_archive_status(database)
        table.refuse_other_origin(status)
        if status is None or until_ms > status.until_ms:
            status = archive_status.begin_archive_run(database)
        done.since_ms = done.until_ms = status.until_ms
        if until_ms <= status.until_ms:
            self._report_progress(database, "nothing is due")
            return
        table.begin_run(status.begun)
        window = EndedJobWindow(max(status.until_ms, table.until_ms), until_ms)
        if window.since_ms < until_ms:
            actions = self._write_and_verify_files(databases, database, table, window, done)
            if actions is None:
                return
            table.commit_files(actions, until_ms)
            done.files = len(actions)
        if archive_status.advance_archived_until(database, status, until_ms) is None:
            raise CannotArchive(
                "another run of the archive has begun meanwhile; that run advances archived_until"
            )
        done.until_ms = until_ms
        self._report_progress(
            database,
            f"{done.rows:,} jobs that ended before {sql_time_of_ms(until_ms)[:10]}, in {done.files} files; "
            "count and checksum agree",
        )

    def _write_and_verify_files(
        self,
        databases: Databases,
        database: Database,
        table: ArchiveTable,
        window: EndedJobWindow,
        done: DatabaseArchiveResult,
    ) -> list[AddAction] | None:
        """Writes the rows of the window to files; None: their checksums are not the database's."""
        # The archive is kept for ever, so the names of types in this database must be readable. They are
        # preferred to the names in other databases.
        names = {**read_known_types(databases).names, **read_known_types([database]).names}
        copy = JobCopy(
            table.url, f"database-{database.index}-run-{table.run}", database.index, window, names
        )
        shards = database.shards
        for left in reversed(range(TRIES)):
            written = run_work(self._spark, self._settings, partial(write_job_files, copy), shards)
            verified: list[VerifiedFile] = run_work(
                self._spark, self._settings, partial(verify_job_files, copy), written
            )
            database_sums = run_work(
                self._spark, self._settings, partial(read_database_checksums, copy), shards
            )
            archived = _merge_checksums([file.checksums for file in verified])
            found = list(describe_checksum_differences(archived, _merge_checksums(database_sums)))
            if not found:
                done.rows = archived.row_count
                return [file.action for file in verified]
            delete_files(open_files(table.url), written)
            if left:
                self._report_progress(
                    database, f"{len(found)} differences, trying again: {found[0]}"
                )
        done.differing = found[:DIFFERENCES_MAX]
        return None


def _merge_checksums(parts: list[DayChecksums]) -> DayChecksums:
    merged = DayChecksums()
    for part in parts:
        merged.add_all(part)
    return merged
