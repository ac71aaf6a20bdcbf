"""The audit trail: changes of jobs by people and after failures, written in the transaction of the change.

An event is one row in `toc_event`; its column `what` is a verb of `domain.job.TRANSITIONS`. The transitions
of successful jobs (claim, done, snooze, give_back) write no events: there would be billions. An event
"repair" with equal statuses records a repair that left the job's status unchanged, as of a reminder.

toc writes `actor`. The server writes `account`, by the column's default: the account of the connection. No
statement of toc names `account`, so that no database account needs the right to write to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Insert,
    Integer,
    String,
    Table,
    bindparam,
    case,
    insert,
    literal,
    null,
    select,
)

from toc.domain.argument_checks import REASON_CHARS_MAX
from toc.domain.job import Event, Status
from toc.store.column_types import db_now
from toc.store.compiled_statement import IDS, compile_once
from toc.store.databases import Database, execute_on_shard
from toc.store.job_rows import status_from_number
from toc.store.schema import DATABASES_CACHED, JOB
from toc.store.verb import Statement

c = JOB.c
ERROR_CHARS_MAX = 4000  # characters of the error's text in a dead letter
_EVENT_COLUMNS = (
    "event_time", "job_id", "what", "from_status", "to_status", "attempts", "claim_time", "actor",
    "reason",
)  # fmt: skip
LETTER_COLUMNS = (
    "job_id", "biz_id", "biz_text", "tenant", "type_no", "attempts", "error", "dead_time",
)  # fmt: skip
REPAIR = "repair"
"""`what` of the events of repairs. No verb of a client writes it."""


@dataclass(frozen=True, slots=True)
class TransitionEvent:
    """A transition of a job that `actor` made. `reason` is cut at `argument_checks.REASON_CHARS_MAX`.

    run_id: the run of `toc admin` or `toc reconcile` that made the transition. related_job_id: the job that
    replaces the changed job. ends_attempt: an attempt ends at this moment; its event gets the claim_time of
    the row. False for a lost lease too: nobody knows when that attempt ended.
    """

    what: str
    from_status: Status
    to_status: Status
    actor: str
    reason: str | None = None
    run_id: str | None = None
    related_job_id: int | None = None
    ends_attempt: bool = False


@dataclass(frozen=True, slots=True)
class RepairEvent:
    """A repair that does not change the status of jobs. `reasons`: by job_id.

    related_job_id: the misfit (a job in a wrong shard) that the job replaces.
    """

    reasons: Mapping[int, str]
    actor: str
    run_id: str | None = None
    related_job_id: int | None = None
    what: ClassVar[str] = REPAIR
    ends_attempt: ClassVar[bool] = False


def record_transition_events(
    connection: Connection,
    database: Database,
    shard: int,
    condition: ColumnElement[bool],
    transition: TransitionEvent,
) -> None:
    """Writes one event for each job of a shard that matches `condition`, with the attempts of its row."""
    statuses = literal(int(transition.from_status)), literal(int(transition.to_status))
    reason: ColumnElement[Any] = bindparam("reason", _cut_reason(transition.reason))
    _insert_events(connection, database, shard, condition, transition, statuses, reason)


class EventStatement:
    """Inserts the event of one job, if the verb's statement before has changed a row.

    For verbs that belong to no run and replace no job.
    """

    def __init__(self, database: Database) -> None:
        statement, dialect = _insert_event(database.event), database.engine.dialect
        self._compiled = compile_once(statement, dialect, if_changed=True)

    def bind(self, table: str, job_id: int, transition: TransitionEvent) -> Statement:
        """The INSERT of the event of a job in the job table `table`."""
        return self._compiled.bind(
            table,
            [job_id],
            what=str(transition.what),
            from_status=int(transition.from_status),
            to_status=int(transition.to_status),
            ends_attempt=int(transition.ends_attempt),
            actor=transition.actor,
            reason=_cut_reason(transition.reason),
        )


class DeadLetterStatement:
    """Writes the dead letter of one job, if the verb's statement before has changed a row."""

    def __init__(self, database: Database) -> None:
        statement, dialect = _insert_letter(database.dead), database.engine.dialect
        self._compiled = compile_once(statement, dialect, if_changed=True)

    def bind(self, table: str, job_id: int, error: str) -> Statement:
        """The REPLACE of the dead letter of a job in the job table `table`."""
        statement = self._compiled.bind(table, [job_id], error=error[:ERROR_CHARS_MAX])
        # The job may have a dead letter of an earlier death. SQLAlchemy has no REPLACE; all servers do.
        return statement._replace(text=statement.text.replace("INSERT", "REPLACE", 1))


@lru_cache(maxsize=DATABASES_CACHED)
def _insert_event(table: Table) -> Insert:
    before: list[BindParameter[Any]] = [*map(bindparam, ("what", "from_status", "to_status"))]
    after: list[BindParameter[Any]] = [*map(bindparam, ("actor", "reason"))]
    began = case((bindparam("ends_attempt", type_=Integer()) == 1, c.claim_time))
    rows = select(db_now(), c.job_id, *before, c.attempts, began, *after)
    return insert(table).from_select(_EVENT_COLUMNS, rows.where(c.job_id.in_(IDS)))


@lru_cache(maxsize=DATABASES_CACHED)
def _insert_letter(table: Table) -> Insert:
    error = bindparam("error", type_=table.c.error.type)
    rows = select(
        c.job_id, c.biz_id, c.biz_text, c.tenant, c.type_no, c.attempts, error, db_now()
    ).where(c.job_id.in_(IDS))
    return insert(table).from_select(LETTER_COLUMNS, rows)


def record_repair_events(
    connection: Connection, database: Database, shard: int, repair: RepairEvent
) -> None:
    """Writes one event "repair" for each job in `repair.reasons`, whose status is unchanged."""
    short = {job_id: _cut_reason(text) for job_id, text in repair.reasons.items()}
    texts = {job_id: literal(text, String()) for job_id, text in short.items()}
    first, *others = set(short.values())
    reason: ColumnElement[Any] = (
        case(texts, value=c.job_id) if others else bindparam("reason", first)
    )
    its, statuses = c.job_id.in_(sorted(short)), (c.status, c.status)
    _insert_events(connection, database, shard, its, repair, statuses, reason)


def _insert_events(
    connection: Connection,
    database: Database,
    shard: int,
    condition: ColumnElement[bool],
    source: TransitionEvent | RepairEvent,
    statuses: tuple[ColumnElement[int], ColumnElement[int]],
    reason: ColumnElement[Any],
) -> None:
    event = database.event.c
    columns = [*_EVENT_COLUMNS, "run_id", "related_job_id"]
    began = c.claim_time if source.ends_attempt else null()
    rows = select(
        db_now(), c.job_id, literal(source.what), *statuses, c.attempts, began, literal(source.actor), reason,
        literal(source.run_id, String()), literal(source.related_job_id, event.related_job_id.type),
    ).where(condition)  # fmt: skip
    execute_on_shard(connection, shard, insert(database.event).from_select(columns, rows))


def read_events(database: Database, job_id: int, limit: int) -> list[Event]:
    """The newest `limit` events of a job, oldest first."""
    event = database.event.c
    query = (
        select(event.event_time, event.what, event.from_status, event.to_status, event.attempts,
               event.actor, event.reason, event.account, event.run_id, event.related_job_id,
               event.claim_time)
        .where(event.job_id == job_id)
        .order_by(event.event_id.desc())
        .limit(limit)
    )  # fmt: skip
    return [
        Event(row[0], row[1], status_from_number(row[2]), status_from_number(row[3]), *row[4:])
        for row in reversed(database.select(query))
    ]


def _cut_reason(reason: str | None) -> str | None:
    return None if reason is None else reason[:REASON_CHARS_MAX]
