"""The statements on `toc_mass_change`: what a mass change is about, and how far it is.

The process that makes a change writes into its row every second. So every other process sees how far it is,
can ask to stop it, and sees that it is interrupted if its process has died. Database 0 has all rows, and
keeps ROWS_MAX of them: who makes many changes loses the oldest of these, and nobody else loses any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, delete, insert, select, update

from toc.domain.mass_change import JobSelection
from toc.store.column_types import db_now
from toc.store.databases import Database

ROWS_MAX = 500
SILENT_MS = 15_000
"""A change whose process has not written for so long is interrupted."""
SIGNED_OUT = "signed_out"
"""The cause of a running change whose person has signed out: the end of that session does not stop it."""

COLUMNS = (
    "mass_change_id", "verb", "biz_type", "tenant", "selection", "rate_per_s", "chosen", "changed",
    "left_alone", "state", "cause", "stop_actor", "actor", "reason", "begin_time", "beat_time",
)  # fmt: skip


class MassChange(NamedTuple):
    """A row. Times in ms since 1970 by the clock of database 0.

    state: running, done, stopped or interrupted. chosen: the jobs that the change is about. changed: those
    that it has changed. left_alone: those that could not be changed any more when their turn came. cause: of
    an interruption, the code of the error. stop_actor: who asked to stop it. beat_ms: when its process last
    wrote how far it was.
    """

    mass_change_id: str
    verb: str
    biz_type: str
    tenant: str | None
    selection: str
    rate_per_s: int
    chosen: int
    changed: int
    left_alone: int
    state: str
    cause: str | None
    stop_actor: str | None
    actor: str
    reason: str
    begin_ms: int
    beat_ms: int

    @property
    def jobs(self) -> JobSelection:
        """Which jobs it is about."""
        return JobSelection.from_json(self.biz_type, self.tenant, self.selection)


class Beat(NamedTuple):
    """What the process of a change learns from its row. is_running: False: it must end.

    has_signed_out: the person who started it has ended the session.
    """

    is_running: bool
    stop_actor: str | None
    has_signed_out: bool


class _TooManyError(Exception):
    """So many changes run that the insert is rolled back."""


def insert_mass_change(
    database: Database, change: MassChange, running_max: int, rows_max: int = ROWS_MAX
) -> bool:
    """Writes a new row, and deletes ended ones beyond `rows_max` (see `choose_surplus`).

    False: `running_max` changes run already, and nothing was written. Raises StoreUnavailable.
    """
    table = database.mass_change

    def insert_row(connection: Connection) -> bool:
        database.lock_sqlite_file(connection)
        is_this = table.c.mass_change_id == change.mass_change_id
        if connection.execute(select(table.c.mass_change_id).where(is_this)).first():
            return True  # the answer of the first try was lost
        values = dict(zip(COLUMNS, change, strict=True))
        connection.execute(
            insert(table).values(values | {"begin_time": db_now(), "beat_time": db_now()})
        )
        # The lock makes changes that begin at the same time count each other. It comes after the insert: the
        # first two changes of all would find no row to lock.
        query = _select_newest(database).with_for_update()
        rows = [_from_row(row) for row in connection.execute(query)]
        if sum(row.state == "running" for row in rows) > running_max:
            raise _TooManyError
        old = choose_surplus(rows, len(rows) - rows_max)
        if old:
            connection.execute(delete(table).where(table.c.mass_change_id.in_(old)))
        return True

    try:
        return database.run_transaction(insert_row)
    except _TooManyError:
        return False


def choose_surplus(rows: Sequence[MassChange], surplus: int) -> list[str]:
    """The ids of `surplus` ended changes to delete, or of fewer if there are fewer. rows: newest first.

    Each is the oldest one of the tenant that has most rows, and there of the actor that has most.
    """
    ended, chosen = [row for row in rows if row.state != "running"], list[str]()
    while ended and len(chosen) < surplus:
        tenant = Counter(row.tenant for row in ended).most_common(1)[0][0]
        of_tenant = [row for row in ended if row.tenant == tenant]
        actor = Counter(row.actor for row in of_tenant).most_common(1)[0][0]
        oldest = [row for row in of_tenant if row.actor == actor][-1]
        ended.remove(oldest)
        chosen.append(oldest.mass_change_id)
    return chosen


def read_mass_changes(database: Database) -> list[MassChange]:
    """All changes that are kept, newest first. Raises StoreUnavailable."""
    return [_from_row(row) for row in database.select(_select_newest(database).limit(ROWS_MAX))]


def read_mass_change(database: Database, mass_change_id: str) -> MassChange | None:
    """One change; None: there is no such row. Raises StoreUnavailable."""
    column = database.mass_change.c.mass_change_id
    rows = database.select(_select_newest(database).where(column == mass_change_id))
    return _from_row(rows[0]) if rows else None


def ask_to_stop(database: Database, mass_change_id: str, actor: str) -> None:
    """Asks the process of a change to end it. Who asks first stands in the row. Raises StoreUnavailable."""
    its = database.mass_change.c
    database.execute(
        update(database.mass_change)
        .where(
            its.mass_change_id == mass_change_id, its.state == "running", its.stop_actor.is_(None)
        )
        .values(stop_actor=actor)
    )


def note_sign_out(database: Database, actor: str) -> None:
    """Tells the processes of a person's changes that the session is about to end. Raises StoreUnavailable."""
    its = database.mass_change.c
    database.execute(
        update(database.mass_change)
        .where(its.state == "running", its.actor == actor)
        .values(cause=SIGNED_OUT)
    )


def write_progress(database: Database, mass_change_id: str, changed: int, left_alone: int) -> Beat:
    """Writes how far a change is. Raises StoreUnavailable."""
    its = database.mass_change.c
    here = its.mass_change_id == mass_change_id
    counts = {"changed": changed, "left_alone": left_alone, "beat_time": db_now()}
    is_running = database.execute(
        update(database.mass_change).where(here, its.state == "running").values(counts)
    )
    found = database.select(select(its.stop_actor, its.cause).where(here))
    stop_actor, cause = found[0] if found else (None, None)
    return Beat(bool(is_running), stop_actor, cause == SIGNED_OUT)


def end_mass_change(
    database: Database,
    mass_change_id: str,
    state: str,
    cause: str | None,
    changed: int,
    left_alone: int,
) -> None:
    """Writes the result of a change. Raises StoreUnavailable."""
    its = database.mass_change.c
    values = {"state": state, "cause": cause, "changed": changed, "left_alone": left_alone}
    database.execute(
        update(database.mass_change)
        .where(its.mass_change_id == mass_change_id, its.state == "running")
        .values(**values, beat_time=db_now())
    )


def _select_newest(database: Database) -> Select[Any]:
    its = database.mass_change.c
    columns = (its[name] for name in COLUMNS)
    return select(*columns, db_now()).order_by(its.begin_time.desc(), its.mass_change_id)


def _from_row(row: Any) -> MassChange:
    *values, now_ms = row
    change = MassChange._make(values)
    if change.state == "running" and now_ms - change.beat_ms > SILENT_MS:
        return change._replace(state="interrupted", cause="silent")
    return change
