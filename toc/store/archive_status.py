"""The progress of a database's archive: one row of its `toc_meta`, which the purger reads.

A run of the archive begins by writing its number into the row, and advances `until_ms` only while the row has
that number. If two runs are concurrent, the run that began later wins, and the other run cannot change the
row any more.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from toc.domain.ids import created_ms_of, lowest_id_at
from toc.errors import SchemaMismatch
from toc.store.column_types import ms_of_sql_time, sql_time_of_ms
from toc.store.databases import Database

ARCHIVED = "archived_until"
"""The row's name in `toc_meta`. The value: '2026-01-05 00:00:00.000 run 16 of 17'; see `ArchiveStatus`."""

AHEAD_MS = 86_400_000
"""How far a client's clock may have been ahead when the client made a job. This bound limits the ids that an
archive run reads (ids contain their creation time). A job with a later id is neither archived nor purged."""

_TRIES_MAX = 10
_VALUE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) run (\d{1,18}) of (\d{1,18})(, not moved yet)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """The archive of one database. `until_ms`: jobs that ended before it are archived and verified.

    run: the number of the run that reached `until_ms`; 0: no run has. begun: the number of the latest run.
    files_moved: False if toc 0.1 was interrupted before it moved the files of `run` to their final folder.
    """

    until_ms: int
    run: int
    begun: int
    files_moved: bool = True

    def covers_ended_job(self, job_id: int, ended_ms: int) -> bool:
        """Whether an ended job is certainly in the archive."""
        return ended_ms < self.until_ms and created_ms_of(job_id) <= ended_ms + AHEAD_MS

    def __str__(self) -> str:
        text = f"{sql_time_of_ms(self.until_ms)} run {self.run} of {self.begun}"
        return text if self.files_moved else f"{text}, not moved yet"


@dataclass(frozen=True, slots=True)
class EndedJobWindow:
    """Jobs that ended from `since_ms` on and before `until_ms`, by the database's clock."""

    since_ms: int
    until_ms: int

    @property
    def id_upper_bound(self) -> int:
        """The exclusive upper bound of the ids of these jobs."""
        return lowest_id_at(self.until_ms + AHEAD_MS)


def read_archive_status(database: Database) -> ArchiveStatus | None:
    """Reads the archive's row of `toc_meta`; None: no archive was ever begun.

    Raises StoreUnavailable, and SchemaMismatch if the text of the row is invalid.
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
    """Begins a run of the archive: `advance_archived_until` of earlier runs then changes nothing.

    Raises SchemaMismatch if files of toc 0.1 are not in their final folder yet.
    """
    for _ in range(_TRIES_MAX):
        before = read_archive_status(database)
        if before is None:
            mine = ArchiveStatus(0, 0, 1)
            with suppress(IntegrityError):  # another run was faster
                database.execute(insert(database.meta), {"name": ARCHIVED, "value": str(mine)})
                return mine
        elif not before.files_moved:
            raise SchemaMismatch(
                f"database {database.index}: {ARCHIVED} in toc_meta is '{before}': the archive of toc 0.1 "
                f"was interrupted, and the files of its run {before.run} are still in _staging. Move these "
                "files, then correct the row (docs/how-to/upgrade.md)"
            )
        else:
            mine = replace(before, begun=before.begun + 1)
            if _compare_and_set(database, before, mine):
                return mine
    raise AssertionError(
        f"database {database.index}: the row {ARCHIVED} of toc_meta was not written: other processes"
        f" changed it before each of {_TRIES_MAX} tries"
    )


def advance_archived_until(
    database: Database, mine: ArchiveStatus, until_ms: int
) -> ArchiveStatus | None:
    """Advances `until_ms` for the run that began with `mine`. None: another run has begun since.

    The change is one statement. If `until_ms` is not later than that of the row, nothing is changed, and the
    result is None.
    """
    then = ArchiveStatus(until_ms, mine.begun, mine.begun)
    # Read the row again: the answer of the first try may have been lost, and the statement repeated.
    if _compare_and_set(database, mine, then) or read_archive_status(database) == then:
        return then
    return None


def _compare_and_set(database: Database, before: ArchiveStatus, after: ArchiveStatus) -> bool:
    column = database.meta.c
    change = update(database.meta).where(column.name == ARCHIVED, column.value == str(before))
    if after.run != before.run:
        # The text begins with the time `until_ms`, so texts compare like times.
        change = change.where(column.value < sql_time_of_ms(after.until_ms))
    return bool(database.execute(change.values(value=str(after))))
