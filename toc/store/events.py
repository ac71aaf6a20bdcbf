"""The audit trail: what a person or an unhappy path did to a job, written in the transaction that did it.

One row in `toc_event` per transition, named by its verb in `domain.job.TRANSITIONS`. What happy jobs
do (claim, done, snooze, give_back) leaves none: there would be billions. "repair" may also stand for no
transition: then reconciliation has put a reminder right, and the row is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    String,
    bindparam,
    case,
    func,
    insert,
    literal,
    select,
)

from toc.domain.job import Event, Status
from toc.domain.limits import REASON_CHARS_MAX
from toc.store.columns import db_now
from toc.store.databases import Database, execute_on
from toc.store.packets import Statement
from toc.store.prepared import Prepared
from toc.store.rows import status_of
from toc.store.schema import JOB

c = JOB.c


@dataclass(frozen=True, slots=True)
class Move:
    """A transition, by whom and why. `reason` is cut at `limits.REASON_CHARS_MAX`."""

    what: str
    from_status: Status
    to_status: Status
    actor: str
    reason: str | None = None


def record(
    connection: Connection,
    database: Database,
    shard: int,
    which: ColumnElement[bool],
    move: Move,
) -> None:
    """Writes one event for each job of a shard that `which` names, with its attempts as they are now."""
    statuses = literal(int(move.from_status)), literal(int(move.to_status))
    reason: ColumnElement[Any] = bindparam("reason", _short(move.reason))
    _write(connection, database, shard, which, move.what, statuses, move.actor, reason)


class Record:
    """`record` as a statement for a packet: for one job, if the statement before it has changed a row."""

    def __init__(self, database: Database) -> None:
        before: list[BindParameter[Any]] = [*map(bindparam, ("what", "from_status", "to_status"))]
        after: list[BindParameter[Any]] = [*map(bindparam, ("actor", "reason"))]
        its = c.job_id.in_(bindparam("ids", expanding=True))
        rows = select(db_now(), c.job_id, *before, c.attempts, *after).where(
            its, func.row_count() > 0
        )
        statement = insert(database.event).from_select(_columns(database), rows)
        self._prepared = Prepared(statement, database.engine.dialect)

    def on(self, table: str, job_id: int, move: Move) -> Statement:
        """The statement for a row of this table."""
        return self._prepared.on(
            table,
            [job_id],
            what=move.what,
            from_status=int(move.from_status),
            to_status=int(move.to_status),
            actor=move.actor,
            reason=_short(move.reason),
        )


def remark(
    connection: Connection,
    database: Database,
    shard: int,
    reasons: Mapping[int, str],
    what: str,
    actor: str,
) -> None:
    """Writes one event for each of some jobs of a shard whose status stays as it is. `reasons`: by job_id."""
    short = {job_id: _short(text) for job_id, text in reasons.items()}
    texts = set(short.values())
    reason: ColumnElement[Any] = (
        bindparam("reason", texts.pop())
        if len(texts) == 1
        else case(
            {job_id: literal(text, String()) for job_id, text in short.items()}, value=c.job_id
        )
    )
    which = c.job_id.in_(sorted(short))
    _write(connection, database, shard, which, what, (c.status, c.status), actor, reason)


def _write(
    connection: Connection,
    database: Database,
    shard: int,
    which: ColumnElement[bool],
    what: str,
    statuses: tuple[ColumnElement[int], ColumnElement[int]],
    actor: str,
    reason: ColumnElement[Any],
) -> None:
    rows = select(
        db_now(), c.job_id, literal(what), *statuses, c.attempts, literal(actor), reason
    ).where(which)
    execute_on(connection, shard, insert(database.event).from_select(_columns(database), rows))


def _columns(database: Database) -> list[ColumnElement[Any]]:
    event = database.event.c
    return [event.event_time, event.job_id, event.what, event.from_status, event.to_status,
            event.attempts, event.actor, event.reason]  # fmt: skip


def events_of(database: Database, job_id: int, limit: int) -> list[Event]:
    """What happened to a job, oldest first; the newest `limit` of it."""
    event = database.event.c
    query = (
        select(event.event_time, event.what, event.from_status, event.to_status, event.attempts,
               event.actor, event.reason)
        .where(event.job_id == job_id)
        .order_by(event.event_id.desc())
        .limit(limit)
    )  # fmt: skip
    rows = database.read(lambda connection: connection.execute(query).all())
    return [
        Event(row[0], row[1], status_of(row[2]), status_of(row[3]), *row[4:])
        for row in reversed(rows)
    ]


STANDS = "misfit: job "
"""So begins the reason of the `cancel` of a row that a copy stands for; the copy's id comes next."""


def successor_of(database: Database, job_id: int) -> int | None:
    """The job that stands for a cancelled one since it was repaired; None: it was simply cancelled."""
    event = database.event.c
    query = (
        select(event.reason)
        .where(event.job_id == job_id, event.what == "cancel", event.reason.startswith(STANDS))
        .order_by(event.event_id.desc())
        .limit(1)
    )
    reason = database.read(lambda connection: connection.execute(query).scalar())
    number = "" if reason is None else reason.removeprefix(STANDS).partition(" ")[0]
    return int(number) if number.isdigit() else None


def _short(reason: str | None) -> str | None:
    return None if reason is None else reason[:REASON_CHARS_MAX]
