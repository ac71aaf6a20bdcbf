"""The archive: ended jobs go to Parquet before they are purged.

One database after the other, a few days before the purger may touch its jobs:

1. it begins: from here on no earlier run can say any more what is in the archive (store/archived.py);
2. rows that ended since the last time, until a midnight (UTC), go to a staging folder of this run;
3. they are read back, and counted and summed up per shard and day: by Spark what is in Parquet, by
   the database what is in its tables. Where the two differ, nothing of the database moves;
4. the database's mark moves on, if no other run has begun; from then on the purger may delete;
5. the files move from the staging folder to where they are read, and the mark says so. Should this be
   interrupted, the next run does it first; where it does not see that folder (a directory of another
   machine, which led last night) it leaves that database alone.

So a reader meets only rows that were compared, each file once; a run that is killed leaves but a
staging folder, which a later run throws away: nobody can declare it archived any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from toc.errors import SchemaMismatch, TocError
from toc.reconcile.archiving import (
    differences,
    session_for_parquet,
    sums_of_database,
    sums_of_parquet,
    write,
)
from toc.reconcile.folders import Folders
from toc.reconcile.troubles import reason_of, spark_errors
from toc.runtime.clock import Clock
from toc.runtime.settings import Days, Settings
from toc.store import archived
from toc.store.archived import Standing, Window
from toc.store.columns import sql_time
from toc.store.databases import Database, Databases
from toc.store.ended import DAY_MS, HOUR_MS, type_names
from toc.store.facts import recorded_facts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAD_DAYS = 3
"""So long before the purger may delete it a job is archived: a day for the day to end, one until the next
night, one for a night that failed."""

SETTLED_MS = HOUR_MS
"""What ended so long ago has been committed. Counts where retention is shorter than LEAD_DAYS."""

TRIES = 2
"""A dead job that is redriven while the archive is at it makes a difference; not twice."""

DIFFERENCES_MAX = 20

JOBS, STAGING = "jobs", "_staging"


@dataclass(slots=True)
class ArchivedDatabase:
    """What became of one database. Times in ms since 1970 UTC; until_ms is since_ms where nothing was due.

    differing: a line for each shard and day in which archive and database differ (DIFFERENCES_MAX of
    them). trouble: why it could not be done, where it could not.
    """

    index: int
    since_ms: int = 0
    until_ms: int = 0
    rows: int = 0
    files: int = 0
    differing: list[str] = field(default_factory=list)
    trouble: str = ""

    @property
    def is_good(self) -> bool:
        return not (self.differing or self.trouble)


@dataclass(slots=True)
class Archived:
    """What a run came to. `root`: where; seconds: by phase, "write", "check" and "publish"."""

    root: str
    databases: list[ArchivedDatabase] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return all(database.is_good for database in self.databases)

    @property
    def differs(self) -> bool:
        """Whether archive and database differ somewhere: exit code 1."""
        return any(database.differing for database in self.databases)

    @property
    def rows(self) -> int:
        return sum(database.rows for database in self.databases)


def archive(
    spark: SparkSession, settings: Settings, clock: Clock, tell: Callable[[str], None]
) -> Archived:
    """Archives what is due, in every database that answers. `tell` hears a line for each.

    What servers and stores do stands in the result. Raises SettingsError for a URL that Spark does not know.
    """
    run = _Run(spark, settings, clock, tell)
    with closing(Databases.of(settings, clock, pool_size=2)) as databases:
        for database in databases:
            run.one(databases, database)
    return run.result


def cutoff_ms(now_ms: int, days_min: Days) -> int:
    """What ended before this is due to be archived: a midnight. 0 where nothing is ever purged."""
    if days_min == "none":
        return 0
    age_ms = max(SETTLED_MS, round((days_min - LEAD_DAYS) * DAY_MS))
    return max(0, (now_ms - age_ms) // DAY_MS * DAY_MS)


class _Stop(Exception):
    """Why a database could not be archived."""


class _Run:
    def __init__(
        self, spark: SparkSession, settings: Settings, clock: Clock, tell: Callable[[str], None]
    ) -> None:
        self._spark, self._settings = session_for_parquet(spark), settings
        self._clock, self._tell = clock, tell
        self._folders = Folders(spark, settings.reconcile.archive)
        self.result = Archived(self._folders.root)

    def one(self, databases: Databases, database: Database) -> None:
        """Everything of one database."""
        done = ArchivedDatabase(database.index)
        self.result.databases.append(done)
        try:
            self._one(databases, database, done)
        except (TocError, _Stop, OSError) as error:
            done.trouble = str(error)
        except spark_errors() as error:
            done.trouble = reason_of(error)
        for line in done.differing or [done.trouble] if not done.is_good else []:
            self._tell(f"archive, database {database.index}: {line}")

    def _one(self, databases: Databases, database: Database, done: ArchivedDatabase) -> None:
        _check_routing(self._settings, database)
        until_ms = cutoff_ms(database.now_ms(), self._settings.retention.days_min)
        mine = archived.standing(database)
        if mine is not None:
            self._publish(database, mine)
        if until_ms > (0 if mine is None else mine.until_ms):
            mine = archived.begin(database)
            self._publish(database, mine)  # another run may have moved the mark since
            self._clear(database, mine)
        done.since_ms = done.until_ms = 0 if mine is None else mine.until_ms
        if mine is None or until_ms <= mine.until_ms:
            text = "nothing is due" if until_ms else "nothing is ever purged, nothing is archived"
            self._tell(f"archive, database {database.index}: {text}")
            return
        window = Window(mine.until_ms, until_ms)
        self._demand_room(database, window)
        if not self._copied(databases, database, mine, window, done):
            return
        moved = archived.advance(database, mine, until_ms)
        if moved is None:
            raise _Stop("another run of the archive has begun meanwhile; this one changed nothing")
        done.until_ms = until_ms
        done.files = self._publish(database, moved)
        self._tell(
            f"archive, database {database.index}: {done.rows:,} jobs that ended before "
            f"{sql_time(until_ms)[:10]}, in {done.files} files; count and checksum agree"
        )

    def _copied(
        self,
        databases: Databases,
        database: Database,
        mine: Standing,
        window: Window,
        done: ArchivedDatabase,
    ) -> bool:
        """Whether what is in the staging folder now is what is in the database."""
        url = self._folders.url(_staging(database, mine.begun))
        names = type_names(databases)
        for left in reversed(range(TRIES)):
            with self._timed("write"):
                write(self._spark, self._settings, database.shards, window, names, url)
            with self._timed("check"):
                ours = sums_of_parquet(self._spark, url, names)
                theirs = sums_of_database(self._spark, self._settings, database.shards, window)
            found = list(differences(ours, theirs))
            if not found:
                done.rows = ours.rows
                return True
            if left:
                text = f"{len(found)} differences, once more: {found[0]}"
                self._tell(f"archive, database {database.index}: {text}")
        done.differing = found[:DIFFERENCES_MAX]
        return False

    def _publish(self, database: Database, mark: Standing) -> int:
        """Moves what the last successful run left in its staging folder to its place; how many files."""
        staging, files = _staging(database, mark.run), 0
        if mark.moved:
            return 0
        if not self._folders.is_there(staging):
            now = archived.standing(database)
            if now is not None and now.run == mark.run and not now.moved:
                raise _Stop(
                    f"run {mark.run} was interrupted before it moved its files out of "
                    f"{self._folders.url(staging)}, and they are not there: is the archive a directory "
                    "of another machine? Run `toc nightly` on that one (docs/archive.md)"
                )
            return 0  # another run has moved them meanwhile
        with self._timed("publish"):
            for day in self._folders.folders(staging):
                for file in self._folders.files(f"{staging}/{day}"):
                    self._folders.move(f"{staging}/{day}/{file}", f"{_place(database, day)}/{file}")
                    files += 1
            # In this order: a folder that is gone before the mark says so is one of another machine.
            archived.moved(database, mark.run)
            self._folders.delete(staging)
        return files

    def _clear(self, database: Database, mine: Standing) -> None:
        """What earlier runs left that came to nothing."""
        for name in self._folders.folders(_staging(database)):
            number = name.removeprefix("run=")
            if number.isdecimal() and int(number) < mine.begun:
                self._folders.delete(f"{_staging(database)}/{name}")

    def _demand_room(self, database: Database, window: Window) -> None:
        """A day that is there already is of another system, or of a database's later life."""
        first = f"day={sql_time(window.since_ms)[:10]}"
        for day in self._folders.folders(JOBS):
            if day >= first and self._folders.is_there(_place(database, day)):
                raise _Stop(
                    f"{self._folders.url(_place(database, day))} is there, but the database says that "
                    "the day was never archived: was it restored from a backup, or do two systems "
                    "share the folder? Move away what is not its own (docs/archive.md)"
                )

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            seconds = self.result.seconds
            seconds[phase] = seconds.get(phase, 0.0) + self._clock.monotonic_s() - began_s


def _staging(database: Database, run: int | None = None) -> str:
    folder = f"{STAGING}/database={database.index}"
    return folder if run is None else f"{folder}/run={run}"


def _place(database: Database, day: str) -> str:
    return f"{JOBS}/{day}/database={database.index}"


def _check_routing(settings: Settings, database: Database) -> None:
    """With fewer shards than there are it would declare archived what it has never seen."""
    kept = recorded_facts(database)
    for name, value in {**settings.facts, "database": str(database.index)}.items():
        if kept.get(name, value) != value:
            raise SchemaMismatch(
                f"database {database.index} was set up with {name} = {kept[name]}, "
                f"the settings say {value}"
            )
