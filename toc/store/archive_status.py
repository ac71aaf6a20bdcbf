"""The progress of a database's archive: a row of its `toc_meta` for jobs and one for events.

The purger reads these rows. A run of the archive begins by writing its number into the row, and advances
`until_ms` only while the row has that number. If two runs are concurrent, the run that began later wins, and
the other run cannot change the row any more.
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
"""The name of the row for jobs. The value: '2026-01-05 00:00:00.000 run 16 of 17'; see `ArchiveStatus`."""

EVENTS_ARCHIVED = "events_archived_until"
"""The name of the row for events. The value: '2026-01-05 00:00:00.000 event 4711 run 16 of 17'."""

MARKS = (ARCHIVED, EVENTS_ARCHIVED)
"""The names of all rows of the archive in `toc_meta`."""

AHEAD_MS = 86_400_000
"""How far a client's clock may have been ahead when the client made a job. This bound limits the ids that an
archive run reads (ids contain their creation time). A job with a later id is neither archived nor purged."""

_TRIES_MAX = 10
_VALUE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3})( event (\d{1,19}))? run (\d{1,18}) of (\d{1,18})"
    r"(, not moved yet)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """The archive of the jobs, or of the events, of one database.

    until_ms: jobs that ended before it are archived and verified. Of events: the time of the nightly cutoff.
    run: the number of the run that reached `until_ms`; 0: no run has. begun: the number of the latest run.
    files_moved: False if toc 0.1 was interrupted before it moved the files of `run` to their final folder.
    event_id: events with a lower id are archived and verified; None: this is the status of jobs.
    """

    until_ms: int
    run: int
    begun: int
    files_moved: bool = True
    event_id: int | None = None

    @property
    def mark(self) -> str:
        """The name of its row in `toc_meta`."""
        return ARCHIVED if self.event_id is None else EVENTS_ARCHIVED

    @property
    def position(self) -> int:
        """The number that the table of the archive has too: a time in ms for jobs, an id for events."""
        return self.until_ms if self.event_id is None else self.event_id

    def covers_ended_job(self, job_id: int, ended_ms: int) -> bool:
        """Whether an ended job is certainly in the archive."""
        return ended_ms < self.until_ms and created_ms_of(job_id) <= ended_ms + AHEAD_MS

    def covers_event(self, event_id: int, event_ms: int) -> bool:
        """Whether an event is certainly in the archive.

        The time counts too: if the numbers of events began anew, a new event has the id of an archived one.
        """
        return self.event_id is not None and event_id < self.event_id and event_ms < self.until_ms

    def __str__(self) -> str:
        event = "" if self.event_id is None else f" event {self.event_id}"
        text = f"{sql_time_of_ms(self.until_ms)}{event} run {self.run} of {self.begun}"
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


def read_archive_status(database: Database, mark: str = ARCHIVED) -> ArchiveStatus | None:
    """Reads the row `mark` of `toc_meta`; None: no archive was ever begun.

    Raises StoreUnavailable, and SchemaMismatch if the text of the row is invalid.
    """
    column = database.meta.c
    query = select(column.value).where(column.name == mark)
    value = database.scalar(query)
    if value is None:
        return None
    status = _parse_status(value)
    if status is None or status.mark != mark:
        text = f"{mark} in toc_meta is {value!r}, which toc cannot have written"
        raise SchemaMismatch(f"database {database.index}: {text}")
    return status


def _parse_status(value: str) -> ArchiveStatus | None:
    found = _VALUE.fullmatch(value)
    if found is None:
        return None
    time_text, _, event, run, begun, not_moved = found.groups()
    try:
        until_ms = ms_of_sql_time(time_text)
    except ValueError:  # no such day
        return None
    event_id = None if event is None else int(event)
    return ArchiveStatus(until_ms, int(run), int(begun), not not_moved, event_id)


def begin_archive_run(database: Database, mark: str = ARCHIVED) -> ArchiveStatus:
    """Begins a run of the archive: `advance_archived_until` of earlier runs then changes nothing.

    Raises SchemaMismatch if files of toc 0.1 are not in their final folder yet.
    """
    for _ in range(_TRIES_MAX):
        before = read_archive_status(database, mark)
        if before is None:
            mine = ArchiveStatus(0, 0, 1, event_id=None if mark == ARCHIVED else 0)
            with suppress(IntegrityError):  # another run was faster
                database.execute(insert(database.meta), {"name": mark, "value": str(mine)})
                return mine
        elif not before.files_moved:
            raise SchemaMismatch(
                f"database {database.index}: {mark} in toc_meta is '{before}': the archive of toc 0.1 "
                f"was interrupted, and the files of its run {before.run} are still in _staging. Move these "
                "files, then correct the row (docs/how-to/upgrade.md)"
            )
        else:
            mine = replace(before, begun=before.begun + 1)
            if _compare_and_set(database, before, mine):
                return mine
    raise AssertionError(
        f"database {database.index}: the row {mark} of toc_meta was not written: other processes"
        f" changed it before each of {_TRIES_MAX} tries"
    )


def advance_archived_until(
    database: Database, mine: ArchiveStatus, until_ms: int, event_id: int | None = None
) -> ArchiveStatus | None:
    """Advances `until_ms` for the run that began with `mine`. None: another run has begun since.

    event_id: of the status of events, not lower than before. The change is one statement. If `until_ms` is
    not later than that of the row, nothing is changed, and the result is None.
    """
    then = ArchiveStatus(until_ms, mine.begun, mine.begun, event_id=event_id)
    # Read the row again: the answer of the first try may have been lost, and the statement repeated.
    if _compare_and_set(database, mine, then) or read_archive_status(database, mine.mark) == then:
        return then
    return None


def _compare_and_set(database: Database, before: ArchiveStatus, after: ArchiveStatus) -> bool:
    column = database.meta.c
    change = update(database.meta).where(column.name == before.mark, column.value == str(before))
    if after.run != before.run:
        # The text begins with the time `until_ms`, so texts compare like times.
        change = change.where(column.value < sql_time_of_ms(after.until_ms))
    return bool(database.execute(change.values(value=str(after))))
