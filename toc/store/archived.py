"""How far the archive of a database is: one row of its `toc_meta`, which the purger obeys.

A run of the archive begins by putting its number there, and moves the mark on only while that number
stands: of two runs at once the later one counts, and the other can change nothing any more. So
whoever has begun may throw away what earlier runs have left unverified, however long it takes him.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from toc.domain.ids import created_ms_of, first_id_of
from toc.errors import SchemaMismatch
from toc.store.columns import ms_of_sql_time, sql_time
from toc.store.databases import Database

ARCHIVED = "archived_until"
"""The row's name. Its value: '2026-01-05 00:00:00.000 run 16 of 17'; see `Standing`."""

AHEAD_MS = 86_400_000
"""By so much may the clock of who made a job have been ahead. It bounds the walk to the archive's window
(ids say when they were made); a job of a clock further ahead is neither archived nor purged."""

_TRIES_MAX = 10
_VALUE = re.compile(
    r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) run (\d{1,18}) of (\d{1,18})(, not moved yet)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one database. `until_ms`: what ended before is in the archive, and was compared with it.

    run: the number of the run that got there, 0 if none has; begun: that of the run that began last.
    moved: False while that run's files may still be in its staging folder.
    """

    until_ms: int
    run: int
    begun: int
    moved: bool = True

    def covers(self, job_id: int, ended_ms: int) -> bool:
        """Whether an ended job is in the archive for certain."""
        return ended_ms < self.until_ms and created_ms_of(job_id) <= ended_ms + AHEAD_MS

    def __str__(self) -> str:
        text = f"{sql_time(self.until_ms)} run {self.run} of {self.begun}"
        return text if self.moved else f"{text}, not moved yet"


@dataclass(frozen=True, slots=True)
class Window:
    """Jobs that ended from `since_ms` on and before `until_ms`, by the database's clock."""

    since_ms: int
    until_ms: int

    @property
    def id_end(self) -> int:
        """Their ids are below this."""
        return first_id_of(self.until_ms + AHEAD_MS)


def standing(database: Database) -> Standing | None:
    """None: no archive was ever begun. Raises StoreUnavailable; SchemaMismatch for what is no `Standing`."""
    column = database.meta.c
    query = select(column.value).where(column.name == ARCHIVED)
    value = database.read(lambda connection: connection.scalar(query))
    if value is None:
        return None
    try:
        found = _VALUE.fullmatch(value)
        if found is not None:
            return Standing(
                ms_of_sql_time(found[1]), int(found[2]), int(found[3]), moved=not found[4]
            )
    except ValueError:  # no such day
        pass
    text = f"{ARCHIVED} in toc_meta is {value!r}, which toc cannot have written"
    raise SchemaMismatch(f"database {database.index}: {text}")


def begin(database: Database) -> Standing:
    """Begins a run. From then on no earlier run can `advance`."""
    for _ in range(_TRIES_MAX):
        before = standing(database)
        if before is not None:
            mine = replace(before, begun=before.begun + 1)
            if _swap(database, before, mine):
                return mine
        elif _make(database, mine := Standing(0, 0, 1)):
            return mine
    raise AssertionError(f"database {database.index}: {ARCHIVED} changes all the time")


def advance(database: Database, mine: Standing, until_ms: int) -> Standing | None:
    """Moves the mark on, for the run that `begin` gave `mine`. None: another run has begun since.

    What it gives is not `moved` yet. By one statement, and only forward: an earlier `until_ms` changes
    nothing and answers None too.
    """
    then = Standing(until_ms, mine.begun, mine.begun, moved=False)
    # A second look: the answer may have been lost, and the statement been repeated.
    if _swap(database, mine, then) or standing(database) == then:
        return then
    return None


def moved(database: Database, run: int) -> None:
    """Says that the files of this run are at their place. Changes nothing if a later one has got further."""
    for _ in range(_TRIES_MAX):
        now = standing(database)
        if now is None or now.run != run or now.moved:
            return
        if _swap(database, now, replace(now, moved=True)):
            return
    raise AssertionError(f"database {database.index}: {ARCHIVED} changes all the time")


def _make(database: Database, first: Standing) -> bool:
    row = {"name": ARCHIVED, "value": str(first)}
    try:
        database.read(lambda connection: connection.execute(insert(database.meta), row))
    except IntegrityError:  # another run was faster
        return False
    return True


def _swap(database: Database, before: Standing, after: Standing) -> bool:
    column = database.meta.c
    change = update(database.meta).where(column.name == ARCHIVED, column.value == str(before))
    if after.run != before.run:
        change = change.where(
            column.value < sql_time(after.until_ms)
        )  # the text begins with its time
    change = change.values(value=str(after))
    return bool(database.read(lambda connection: connection.execute(change).rowcount))
