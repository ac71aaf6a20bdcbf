"""The archive: ended jobs go to Parquet before they are purged.

One database after the other, some days before the purger may delete its jobs:

1. The run begins. From here on no earlier run can change the row `archived_until` of the database's
   `toc_meta` (store/archive_status.py), which has a time: jobs that ended before this time are archived.
2. The jobs that ended from that time on, and before a midnight (UTC), are copied to a staging folder of this
   run.
3. The jobs are counted and their checksums summed up per shard and day: by Spark in the Parquet files, by the
   database in its tables. If the two results differ, the row is not changed, and the files stay in the
   staging folder.
4. The time in the row is advanced, if no other run has begun; from then on the purger may delete.
5. The files are moved from the staging folder to the folders of their days, and the row records that they are
   moved. The next run first completes an interrupted move. A run that does not see the staging folder (which
   is in a directory of another machine, if a node there was the leader last night) archives nothing of that
   database.

So readers see only rows that were compared, each file once. A run that is killed before step 4 leaves a
staging folder, which a later run deletes: no run can publish that folder any more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toc.reconcile.archive_files import (
    compute_database_checksums,
    compute_parquet_checksums,
    describe_checksum_differences,
    new_parquet_session,
    write_ended_jobs,
)
from toc.reconcile.spark_errors import short_error_text, spark_error_types
from toc.reconcile.spark_files import SparkFiles
from toc.runtime.clock import Clock
from toc.runtime.setting_groups import Days
from toc.runtime.settings import Settings
from toc.store import archive_status
from toc.store.archive_status import ArchiveStatus, EndedJobWindow
from toc.store.biz_types import read_known_types
from toc.store.column_types import sql_time_of_ms
from toc.store.databases import Database, Databases
from toc.store.ended_jobs import DAY_MS, HOUR_MS
from toc.store.recorded_meta import read_recorded_meta, refuse_differing_facts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAD_DAYS = 3
"""A job is archived so many days before the purger may delete the job: one day until its day ends, one until
the next night, one for a night that failed."""

SETTLED_MS = HOUR_MS
"""Jobs that ended longer ago are certainly committed. Applies if retention is shorter than LEAD_DAYS."""

TRIES = 2
"""How often rows are copied and checked: a job that is redriven during the first try makes sums differ."""

DIFFERENCES_MAX = 20

JOBS, STAGING = "jobs", "_staging"


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
    spark: SparkSession, settings: Settings, clock: Clock, tell: Callable[[str], None]
) -> ArchiveResult:
    """Archives the due days of every database that answers. `tell` is called with a line for each database.

    Errors of servers and stores are in the result. Raises SettingsError for a URL that Spark does not know.
    """
    run = _ArchiveRun(spark, settings, tell)
    with closing(Databases.from_settings(settings, clock, pool_size=2)) as databases:
        for database in databases:
            run.archive_database(databases, database)
    return run.result


def archive_cutoff_ms(now_ms: int, days_min: Days) -> int:
    """The midnight before which jobs must have ended to be archived; 0 if nothing is ever purged."""
    if days_min == "none":
        return 0
    age_ms = max(SETTLED_MS, round((days_min - LEAD_DAYS) * DAY_MS))
    return max(0, (now_ms - age_ms) // DAY_MS * DAY_MS)


class _CannotArchive(Exception):
    """A database could not be archived; the text says why."""


class _ArchiveRun:
    def __init__(
        self, spark: SparkSession, settings: Settings, tell: Callable[[str], None]
    ) -> None:
        self._spark, self._settings = new_parquet_session(spark), settings
        self._tell = tell
        self._folders = SparkFiles(spark, settings.reconcile.archive)
        self.result = ArchiveResult()

    def archive_database(self, databases: Databases, database: Database) -> None:
        """Archives one database; errors go into its result."""
        done = DatabaseArchiveResult(database.index)
        self.result.databases.append(done)
        errors: tuple[type[Exception], ...] = (_CannotArchive, *spark_error_types())
        try:
            self._archive_due_jobs(databases, database, done)
        except errors as error:
            done.error = short_error_text(error)
        if not done.is_good:
            for line in done.differing or [done.error]:
                self._report_progress(database, line)

    def _report_progress(self, database: Database, text: str) -> None:
        self._tell(f"archive, database {database.index}: {text}")

    def _archive_due_jobs(
        self, databases: Databases, database: Database, done: DatabaseArchiveResult
    ) -> None:
        # With fewer shards, rows that were never read would count as archived.
        refuse_differing_facts(database, read_recorded_meta(database), self._settings.facts)
        until_ms = archive_cutoff_ms(
            database.now_ms(), self._settings.retention.shortest_retention_days
        )
        status = archive_status.read_archive_status(database)
        if status is not None:
            self._publish_staged_files(database, status)
        if until_ms > (0 if status is None else status.until_ms):
            status = archive_status.begin_archive_run(database)
            # Again: another run may have advanced `archived_until` meanwhile.
            self._publish_staged_files(database, status)
            self._delete_old_staging_folders(database, status)
        done.since_ms = done.until_ms = 0 if status is None else status.until_ms
        if status is None or until_ms <= status.until_ms:
            text = (
                "nothing is due" if until_ms else "nothing is ever purged, so nothing is archived"
            )
            self._report_progress(database, text)
            return
        window = EndedJobWindow(status.until_ms, until_ms)
        self._refuse_archived_days(database, window)
        if not self._copy_and_verify_rows(databases, database, status, window, done):
            return
        moved = archive_status.advance_archived_until(database, status, until_ms)
        if moved is None:
            raise _CannotArchive(
                "another run of the archive has begun meanwhile; this run changed nothing"
            )
        done.until_ms = until_ms
        done.files = self._publish_staged_files(database, moved)
        self._report_progress(
            database,
            f"{done.rows:,} jobs that ended before {sql_time_of_ms(until_ms)[:10]}, in {done.files} files; "
            "count and checksum agree",
        )

    def _copy_and_verify_rows(
        self,
        databases: Databases,
        database: Database,
        status: ArchiveStatus,
        window: EndedJobWindow,
        done: DatabaseArchiveResult,
    ) -> bool:
        """Copies the rows of the window to the staging folder; True if the checksums are the database's."""
        url = self._folders.url_of(_staging_folder(database, status.begun))
        # The archive is kept for ever, so the names of types in this database must be readable. They are
        # preferred to the names in other databases.
        names = {**read_known_types(databases).names, **read_known_types([database]).names}
        for left in reversed(range(TRIES)):
            write_ended_jobs(self._spark, self._settings, database.shards, window, names, url)
            archive_sums = compute_parquet_checksums(self._spark, url, names)
            database_sums = compute_database_checksums(
                self._spark, self._settings, database.shards, window
            )
            found = list(describe_checksum_differences(archive_sums, database_sums))
            if not found:
                done.rows = archive_sums.row_count
                return True
            if left:
                self._report_progress(
                    database, f"{len(found)} differences, trying again: {found[0]}"
                )
        done.differing = found[:DIFFERENCES_MAX]
        return False

    def _publish_staged_files(self, database: Database, status: ArchiveStatus) -> int:
        """Moves the last successful run's files to the folders of their days; returns how many."""
        staging, files = _staging_folder(database, status.run), 0
        if status.files_moved:
            return 0
        if not self._folders.exists(staging):
            now = archive_status.read_archive_status(database)
            if now is not None and now.run == status.run and not now.files_moved:
                raise _CannotArchive(
                    f"run {status.run} was interrupted before it moved its files out of "
                    f"{self._folders.url_of(staging)}, and the files are missing: is the archive a directory "
                    "of another machine? Run `toc nightly` on that machine (docs/how-to/archive.md)"
                )
            return 0  # another run has moved them meanwhile
        for day in self._folders.list_folders(staging):
            for file in self._folders.list_files(f"{staging}/{day}"):
                target = f"{_day_folder(database, day)}/{file}"
                self._folders.move_file(f"{staging}/{day}/{file}", target)
                files += 1
        # First record that the files are moved, then delete the folder. So if the folder is missing, and
        # the record does not say that the files are moved, then the folder is on another machine.
        archive_status.record_files_moved(database, status.run)
        self._folders.delete(staging)
        return files

    def _delete_old_staging_folders(self, database: Database, status: ArchiveStatus) -> None:
        """Deletes the staging folders of earlier runs that did not complete."""
        for name in self._folders.list_folders(_staging_folder(database)):
            number = name.removeprefix("run=")
            if number.isdecimal() and int(number) < status.begun:
                self._folders.delete(f"{_staging_folder(database)}/{name}")

    def _refuse_archived_days(self, database: Database, window: EndedJobWindow) -> None:
        """Raises if the archive has files of a day in the window, as after a restore of the database."""
        first = f"day={sql_time_of_ms(window.since_ms)[:10]}"
        for day in self._folders.list_folders(JOBS):
            if day >= first and self._folders.exists(_day_folder(database, day)):
                raise _CannotArchive(
                    f"{self._folders.url_of(_day_folder(database, day))} exists, but the database says that "
                    "the day was never archived: was it restored from a backup, or do two systems "
                    "share the folder? Move the files of the other system away (docs/how-to/archive.md)"
                )


def _staging_folder(database: Database, run: int | None = None) -> str:
    folder = f"{STAGING}/database={database.index}"
    return folder if run is None else f"{folder}/run={run}"


def _day_folder(database: Database, day: str) -> str:
    return f"{JOBS}/{day}/database={database.index}"
