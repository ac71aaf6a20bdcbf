"""The progress of a database's archive: one row of its `toc_meta`, which the purger reads.

A run of the archive begins by writing its number into the row, and advances `until_ms` only while that number
is still there: of two concurrent runs the later one wins, and the earlier one can change nothing any more. So
a run that has begun may delete the unverified files of earlier runs, however long that takes.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from toc.domain.ids import created_ms_of, lowest_id_at
from toc.errors import SchemaMismatch
from toc.store.columns import ms_of_sql_time, sql_time
from toc.store.databases import Database

ARCHIVED = "archived_until"
"""The row's name. Its value: '2026-01-05 00:00:00.000 run 16 of 17'; see `ArchiveStatus`."""

AHEAD_MS = 86_400_000
"""How far a client's clock may have been ahead when it made a job. It bounds the walk to the archive's window
(ids contain their creation time); a job made further ahead is neither archived nor purged."""

_TRIES_MAX = 10
_VALUE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) run (\d{1,18}) of (\d{1,18})(, not moved yet)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """The archive of one database. `until_ms`: jobs that ended before it are archived and verified.

    run: the number of the run that reached `until_ms`, 0: none has; begun: the number of the latest run.
    files_moved: False while that run's files may still be in its staging folder.
    """

    until_ms: int
    run: int
    begun: int
    files_moved: bool = True

    def covers(self, job_id: int, ended_ms: int) -> bool:
        """Whether an ended job is certainly in the archive."""
        return ended_ms < self.until_ms and created_ms_of(job_id) <= ended_ms + AHEAD_MS

    def __str__(self) -> str:
        text = f"{sql_time(self.until_ms)} run {self.run} of {self.begun}"
        return text if self.files_moved else f"{text}, not moved yet"


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Jobs that ended from `since_ms` on and before `until_ms`, by the database's clock."""

    since_ms: int
    until_ms: int

    @property
    def id_end(self) -> int:
        """The upper bound of their ids, exclusive."""
        return lowest_id_at(self.until_ms + AHEAD_MS)


def read_archive_status(database: Database) -> ArchiveStatus | None:
    """Reads the row; None: no archive was ever begun.

    Raises StoreUnavailable, and SchemaMismatch if the row's text is invalid.
    """
    column = database.meta.c
    query = select(column.value).where(column.name == ARCHIVED)
    value = database.scalar(query)
    if value is None:
        return None
    try:
        found = _VALUE.fullmatch(value)
        if found is not None:
            return ArchiveStatus(
                ms_of_sql_time(found[1]), int(found[2]), int(found[3]), files_moved=not found[4]
            )
    except ValueError:  # no such day
        pass
    text = f"{ARCHIVED} in toc_meta is {value!r}, which toc cannot have written"
    raise SchemaMismatch(f"database {database.index}: {text}")


def begin_archive_run(database: Database) -> ArchiveStatus:
    """Begins a run. From then on no earlier run can call `advance_archive` with effect."""
    for _ in range(_TRIES_MAX):
        before = read_archive_status(database)
        if before is None:
            mine = ArchiveStatus(0, 0, 1)
            with suppress(IntegrityError):  # another run was faster
                database.execute(insert(database.meta), {"name": ARCHIVED, "value": str(mine)})
                return mine
        else:
            mine = replace(before, begun=before.begun + 1)
            if _compare_and_set(database, before, mine):
                return mine
    raise AssertionError(f"database {database.index}: {ARCHIVED} changes all the time")


def advance_archive(database: Database, mine: ArchiveStatus, until_ms: int) -> ArchiveStatus | None:
    """Advances `until_ms`, for the run that began with `mine`. None: another run has begun since.

    In the new status `files_moved` is False. The change is one statement. An earlier `until_ms` than that of
    the row changes nothing, and the result is None too.
    """
    then = ArchiveStatus(until_ms, mine.begun, mine.begun, files_moved=False)
    # Read again: the answer may have been lost, and the statement repeated.
    if _compare_and_set(database, mine, then) or read_archive_status(database) == then:
        return then
    return None


def record_files_moved(database: Database, run: int) -> None:
    """Records that the files of this run are in their final folder; no effect after a later run."""
    for _ in range(_TRIES_MAX):
        now = read_archive_status(database)
        if now is None or now.run != run or now.files_moved:
            return
        if _compare_and_set(database, now, replace(now, files_moved=True)):
            return
    raise AssertionError(f"database {database.index}: {ARCHIVED} changes all the time")


def _compare_and_set(database: Database, before: ArchiveStatus, after: ArchiveStatus) -> bool:
    column = database.meta.c
    change = update(database.meta).where(column.name == ARCHIVED, column.value == str(before))
    if after.run != before.run:
        # The text begins with its time.
        change = change.where(column.value < sql_time(after.until_ms))
    return bool(database.execute(change.values(value=str(after))))
