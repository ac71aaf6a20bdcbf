"""The tables that analysts read, every night: fills the days that are over, checks them, and forecasts.

One database after the other; a database that fails waits for the next night, and the others go on. Without
Spark all of it is done in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from typing import TYPE_CHECKING

from toc.domain.times import EPOCH, datetime_of
from toc.errors import SettingsError, TocError
from toc.reconcile.delta_tables import DELTA_ERRORS, describe_delta_error
from toc.reconcile.spark_errors import spark_error_types
from toc.reconcile.tables.database_counts import (
    CountWindows,
    count_days_in_database,
    count_work_of_database,
)
from toc.reconcile.tables.day_filler import DayFiller, measured_phase, tables_root
from toc.reconcile.tables.forecast import write_forecast
from toc.reconcile.tables.table_checks import (
    COUNT,
    TableCheck,
    find_gaps,
    list_gap_days,
    read_checked_days,
    write_checks,
)
from toc.reconcile.tables.table_specs import LATENESS, VOLUME
from toc.runtime.clock import Clock
from toc.runtime.private_files import private_umask
from toc.runtime.setting_groups import Days
from toc.runtime.settings import Settings
from toc.store.archive_status import EndedJobWindow
from toc.store.biz_types import read_known_types
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases
from toc.store.ended_jobs import DAY_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTLED_MS = 60_000
"""How long after midnight a day counts as over: by then all jobs that ended on that day are committed."""

FINDINGS_MAX = 20


@dataclass(slots=True)
class DatabaseTables:
    """What became of the tables of one database.

    days: of `lateness` and `volume` that were filled, oldest first. jobs: that ended on them. live: jobs in
    the forecast. findings: checks that failed, in words. error: why not all was done.
    """

    index: int
    days: list[date] = field(default_factory=list)
    jobs: int = 0
    live: int = 0
    findings: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(slots=True)
class TablesResult:
    """What became of the tables of all databases. seconds: by phase, of all databases together."""

    databases: list[DatabaseTables] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not any(one.findings or one.error for one in self.databases)

    @property
    def findings(self) -> int:
        return sum(len(one.findings) for one in self.databases)

    @property
    def has_errors(self) -> bool:
        return any(one.error for one in self.databases)


def write_analysis_tables(
    spark: SparkSession | None, settings: Settings, clock: Clock, tell: Callable[[str], None]
) -> TablesResult:
    """Fills the tables for the days that are over; `spark` None: in this process.

    `tell` is called with a line for each database. Errors of servers and stores are in the result. Raises
    SettingsError for a URL that delta-rs does not know.
    """
    result, errors = TablesResult(), errors_of_tables(spark)
    run = _TablesRun(spark, settings, clock, result.seconds)
    with (
        closing(Databases.from_settings(settings, clock, pool_size=2)) as databases,
        private_umask(),
    ):
        for database in databases:
            done = DatabaseTables(database.index)
            result.databases.append(done)
            try:
                run.write_tables(databases, database, done)
            except SettingsError:
                raise
            except errors as error:
                done.error = describe_delta_error(error)
            for line in _describe_result(done):
                tell(f"tables, database {database.index}: {line}")
    return result


def errors_of_tables(spark: SparkSession | None) -> tuple[type[Exception], ...]:
    """The errors by which one database fails, and no other."""
    return (TocError, *DELTA_ERRORS, *(() if spark is None else spark_error_types()))


def _describe_result(done: DatabaseTables) -> list[str]:
    lines = [*done.findings[:FINDINGS_MAX]]
    if len(done.findings) > FINDINGS_MAX:
        lines.append(f"{len(done.findings) - FINDINGS_MAX} more findings, see the table checks")
    if done.error:
        return [*lines, done.error]
    if not done.days:
        return [*lines, f"all days that are over are filled; {done.live:,} live jobs"]
    days = f"{done.days[0]}" if len(done.days) == 1 else f"{done.days[0]} to {done.days[-1]}"
    return [*lines, f"{days}: {done.jobs:,} jobs ended; {done.live:,} live jobs"]


def days_in_database(now_ms: int, days_min: Days, days_max: int) -> list[date]:
    """The last days that are over and of which no job can be purged, and yesterday; oldest first.

    days_min: the shortest retention.
    """
    today_ms = (now_ms - SETTLED_MS) // DAY_MS * DAY_MS
    kept_ms = 0 if days_min == "none" else now_ms - round(days_min * DAY_MS)
    days = [today_ms - n * DAY_MS for n in range(days_max, 0, -1)]
    # Yesterday also if some of its jobs are purged: better than not at all.
    return [datetime_of(day).date() for day in days if day >= kept_ms or day == days[-1]]


def window_of_days(days: Sequence[date]) -> EndedJobWindow | None:
    """From the beginning of the first day to the end of the last; None: there is no day."""
    if not days:
        return None
    first = (days[0] - EPOCH.date()).days * DAY_MS
    return EndedJobWindow(first, ((days[-1] - EPOCH.date()).days + 1) * DAY_MS)


def names_of_types(databases: Databases, database: Database) -> dict[int, str]:
    """The names of types; those of this database are preferred to others."""
    return {**read_known_types(databases).names, **read_known_types([database]).names}


@dataclass(frozen=True, slots=True)
class _TablesRun:
    spark: SparkSession | None
    settings: Settings
    clock: Clock
    seconds: dict[str, float]

    def write_tables(self, databases: Databases, database: Database, done: DatabaseTables) -> None:
        """Fills, checks and forecasts for one database. Raises errors_of_tables."""
        # With fewer shards, rows would not be counted.
        DatabaseMetadata(databases).verify_and_record_meta(self.settings.facts, [database])
        now_ms, retention = database.now_ms(), self.settings.retention
        days = days_in_database(
            now_ms, retention.shortest_retention_days, self.settings.reconcile.table_days
        )
        checks = self._fill_missing_days(databases, database, days, now_ms, done)
        self._check_gaps(database.index, checks, days[-1], now_ms, done)
        with measured_phase(self.clock, self.seconds, "forecast"):
            done.live = write_forecast(
                self.spark, self.settings, database.index, database.shards, now_ms
            )

    def _fill_missing_days(
        self,
        databases: Databases,
        database: Database,
        days: Sequence[date],
        now_ms: int,
        done: DatabaseTables,
    ) -> list[TableCheck]:
        """Fills the cohorts of all days, and the other tables where they lack a day."""
        checked = read_checked_days(tables_root(self.settings), database.index, days[0])
        done.days = [
            day
            for day in days
            if not all(checked.get((spec.name, day)) for spec in (LATENESS, VOLUME))
        ]
        windows = CountWindows(window_of_days(done.days), window_of_days(days))
        filler = DayFiller(
            self.spark,
            self.settings,
            database.index,
            names_of_types(databases, database),
            now_ms,
            self.clock,
            self.seconds,
        )
        checks = filler.fill_days(
            done.days,
            days,
            [count_work_of_database(windows, database.shards)],
            partial(count_days_in_database, self.spark, self.settings, windows, database.shards),
        )
        done.jobs = sum(check.found for check in checks if check[:2] == (LATENESS.name, COUNT))
        done.findings += [f"{check}" for check in checks if not check.is_good]
        return checks

    def _check_gaps(
        self,
        database: int,
        checks: Sequence[TableCheck],
        yesterday: date,
        now_ms: int,
        done: DatabaseTables,
    ) -> None:
        root = tables_root(self.settings)
        gaps = find_gaps(root, database, yesterday)
        of_yesterday = [check for check in checks if check.day == yesterday]
        write_checks(root, database, [*of_yesterday, *gaps], now_ms, [yesterday])
        if not all(gap.is_good for gap in gaps):
            missing = list_gap_days(root, database, yesterday)
            done.findings.append(
                f"the tables lack {len(missing)} days between {missing[0]} and {missing[-1]}: "
                f"`toc tables backfill --from {missing[0]} --to {missing[-1]}`"
            )
