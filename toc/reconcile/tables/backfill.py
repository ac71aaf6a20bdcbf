"""Fills any days of `lateness`, `volume` and `cohorts` again, from the archive and the databases.

A day can be filled if all jobs that ended since then are in the archive or in the database. The archive has
those that ended before its mark (`archived_until`), since a while before it was begun; the database has those
that ended since, and live jobs. Days are filled one after the other, so the memory for one day is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from toc.domain.times import EPOCH, datetime_of
from toc.errors import InvalidInput, SettingsError
from toc.reconcile.archive import LEAD_DAYS
from toc.reconcile.archive_tables import JOBS
from toc.reconcile.delta_tables import describe_delta_error, find_table
from toc.reconcile.tables.archive_counts import (
    archive_window,
    count_archived_days,
    count_work_of_archive,
    count_work_of_rows,
    list_archive_files,
    read_dead_jobs,
    without_jobs,
)
from toc.reconcile.tables.counts import CountWork
from toc.reconcile.tables.database_counts import (
    CountWindows,
    DayCounts,
    count_days_in_database,
    count_work_of_database,
)
from toc.reconcile.tables.day_filler import DayFiller
from toc.reconcile.tables.nightly_tables import (
    SETTLED_MS,
    DatabaseTables,
    TablesResult,
    errors_of_tables,
    names_of_types,
)
from toc.runtime.clock import Clock
from toc.runtime.private_files import private_umask
from toc.runtime.settings import Settings
from toc.store.archive_status import EndedJobWindow, read_archive_status
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases
from toc.store.ended_jobs import DAY_MS
from toc.store.job_counts import JobCounter

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

DAYS_MAX = 366
"""Days that one call fills."""


@dataclass(frozen=True, slots=True)
class DaySources:
    """Where the jobs of a database are, by its clock. Days before `archived_until` are read from the archive,
    from `archive_from` on. Later days are read from the database, which has all days from `kept_from` on.
    """

    archive_from: date
    archived_until: date
    kept_from: date

    def has_day(self, day: date) -> bool:
        """Whether all jobs that were created or ended on the day are there."""
        return self.archive_from <= day < self.archived_until or day >= self.kept_from


def backfill_tables(
    spark: SparkSession | None,
    settings: Settings,
    clock: Clock,
    first: date,
    last: date,
    tell: Callable[[str], None],
) -> TablesResult:
    """Fills the days from `first` to `last` in every database; `spark` None: in this process.

    `tell` is called with a line for each day and database. Errors of servers and stores are in the result:
    the further days of that database are left out. Raises InvalidInput before anything is written, if a day
    is not over, or if its jobs are neither in the archive nor in the database; StoreUnavailable;
    SettingsError.
    """
    if not 0 <= (last - first).days < DAYS_MAX:
        raise InvalidInput(
            "to", last.isoformat(), f"must be `from`, or up to {DAYS_MAX - 1} days later"
        )
    days = [first + timedelta(days=n) for n in range((last - first).days + 1)]
    result, errors = TablesResult(), errors_of_tables(spark)
    with (
        closing(Databases.from_settings(settings, clock, pool_size=2)) as databases,
        private_umask(),
    ):
        # With fewer shards, rows would not be counted.
        DatabaseMetadata(databases).verify_and_record_meta(settings.facts, list(databases))
        sources = {database.index: find_sources(settings, database) for database in databases}
        _refuse_days(databases, sources, days)
        for database in databases:
            done = DatabaseTables(database.index)
            result.databases.append(done)
            backfill = _Backfill(
                spark, settings, clock, databases, database, sources[database.index]
            )
            try:
                for day in days:
                    backfill.fill_day(day, done)
                    tell(f"tables, database {database.index}: {day} is filled")
            except SettingsError:
                raise
            except errors as error:
                done.error = describe_delta_error(error)
            for line in [*done.findings, *filter(None, [done.error])]:
                tell(f"tables, database {database.index}: {line}")
    return result


def find_sources(settings: Settings, database: Database) -> DaySources:
    """Finds where the jobs of a database are. Raises StoreUnavailable and DELTA_ERRORS."""
    now_ms, retention = database.now_ms(), settings.retention.shortest_retention_days
    kept_ms = 0 if retention == "none" else now_ms - round(retention * DAY_MS)
    kept_from = datetime_of(max(0, kept_ms) + DAY_MS - 1).date()
    status = read_archive_status(database)
    root = settings.reconcile.archive
    table = None if root == "none" or status is None else find_table(root, JOBS.name)
    if table is None or status is None:
        return DaySources(date.max, EPOCH.date(), kept_from)
    # What the archive lacks had been purged, or was in an earlier folder, when this folder was begun.
    lead_days = 0 if retention == "none" else max(0.0, retention - LEAD_DAYS)
    begun_ms = _read_creation_ms(table, now_ms) - round(lead_days * DAY_MS)
    archive_from = datetime_of(max(0, begun_ms) + DAY_MS - 1).date()
    return DaySources(archive_from, datetime_of(status.until_ms).date(), kept_from)


def _read_creation_ms(table: DeltaTable, now_ms: int) -> int:
    """When the table was made, by the clock of the machine that made it."""
    return int(table.metadata().created_time or now_ms)


def _refuse_days(
    databases: Databases, sources: dict[int, DaySources], days: Sequence[date]
) -> None:
    for database in databases:
        yesterday = datetime_of(database.now_ms() - SETTLED_MS).date() - timedelta(days=1)
        if days[-1] > yesterday:
            rule = f"must be a day that is over (UTC), {yesterday} at the latest"
            raise InvalidInput("to", days[-1].isoformat(), rule)
        lacking = [day for day in days if not sources[database.index].has_day(day)]
        if lacking:
            span = f"{lacking[0]}" if len(lacking) == 1 else f"{lacking[0]} to {lacking[-1]}"
            rule = (
                "must be a day whose jobs are in the archive or in the databases; of database "
                f"{database.index} the jobs of {span} are in neither, or not all of them"
            )
            raise InvalidInput("from", days[0].isoformat(), rule)


@dataclass(frozen=True, slots=True)
class _Backfill:
    spark: SparkSession | None
    settings: Settings
    clock: Clock
    databases: Databases
    database: Database
    sources: DaySources

    def fill_day(self, day: date, done: DatabaseTables) -> None:
        """Fills one day. Raises errors_of_tables."""
        checks = DayFiller(
            self.spark,
            self.settings,
            self.database.index,
            names_of_types(self.databases, self.database),
            self.database.now_ms(),
            self.clock,
        ).fill_days([day], [day], *self._find_works(day))
        done.days.append(day)
        done.jobs += checks[0].found
        done.findings += [f"{check}" for check in checks if not check.is_good]

    def _find_works(self, day: date) -> tuple[list[CountWork], Callable[[], DayCounts]]:
        """What counts the jobs of a day, and what counts them again for the checks."""
        since_ms = (day - EPOCH.date()).days * DAY_MS
        of_day = EndedJobWindow(since_ms, since_ms + DAY_MS)
        index, shards = self.database.index, self.database.shards
        is_archived = day < self.sources.archived_until
        archived_ms = (self.sources.archived_until - EPOCH.date()).days * DAY_MS
        windows = CountWindows(None if is_archived else of_day, of_day, archived_ms)
        works = [count_work_of_database(windows, shards)]
        if not is_archived:  # then no job of that day is in the archive
            return works, lambda: count_days_in_database(self.spark, self.settings, windows, shards)
        root = self.settings.reconcile.archive
        window = archive_window(root, index, of_day, of_day)
        files = list_archive_files(root, window)
        dead = read_dead_jobs(self.spark, self.settings, window, files)
        dead = without_jobs(dead, set(self._find_unarchived(dead.rows, archived_ms)))
        works += [count_work_of_archive(window, files, dead.ids)]
        works += [count_work_of_rows(window, dead.rows)]

        def count_again() -> DayCounts:
            in_database = count_days_in_database(self.spark, self.settings, windows, shards)
            archived = count_archived_days(root, window, dead)
            return DayCounts(
                in_database.ended + archived.ended, in_database.created + archived.created
            )

        return works, count_again

    def _find_unarchived(self, rows: pa.Table, archived_ms: int) -> Iterator[int]:
        """Jobs that died and were redriven or discarded, and whose row in the database counts."""
        counter = JobCounter(self.databases)
        for shard in pc.unique(rows["shard"]).to_pylist():
            job_ids = rows.filter(pc.equal(rows["shard"], shard))["job_id"].to_pylist()
            yield from counter.find_unarchived(shard, job_ids, archived_ms)
