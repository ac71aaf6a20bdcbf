"""Countdowns: a job, and the arrivals that it waits for (ADR 47).

`toc_arrival` has a row for the countdown itself (arrival_no 0) and one for each counted arrival; each says
how many are wanted, so the newest row says how far the countdown is. The rows are in the database of the job.
Each arrival locks the row of the job first. So a claim comes before or after it, never in between: the
arrivals that a handler reads are those that were counted, and the last of them makes the job due in the same
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from sqlalchemy import Connection, bindparam, exists, insert, select, update
from sqlalchemy.exc import IntegrityError

from toc.domain.countdown import ArrivalAnswer, Countdown, is_countdown_key
from toc.domain.ids import routing_bits_of
from toc.domain.job import ANSWER_OF_STATUS, AnswerKind, Job, NewJob, Status
from toc.store.column_types import db_now
from toc.store.databases import Database, Databases, execute_on_shard
from toc.store.events import TransitionEvent, record_transition_events
from toc.store.job_rows import status_from_number
from toc.store.jobs import SOONER, InsertResult, Jobs, OnDuplicate
from toc.store.schema import JOB

c = JOB.c
_LOCK_JOB = (
    select(c.status, c.claim_time, c.dedup_key).where(c.job_id == bindparam("id")).with_for_update()
)
_MAKE_DUE = (
    update(JOB)
    .where(c.job_id == bindparam("id"), c.status == int(Status.PENDING))
    .values(dict([(c.gmt_modified, db_now()), *SOONER]))
)


class NewArrival(NamedTuple):
    """An arrival to count. now_ms: the job's due time if this is the last one. actor: for the event."""

    job_id: int
    arrival_id: str
    now_ms: int
    actor: str


def insert_countdown(
    jobs: Jobs, new: NewJob, wanted: int, on_duplicate: OnDuplicate, actor: str | None
) -> InsertResult:
    """Inserts the job and its countdown in one transaction. Raises as `Jobs.insert`."""

    def insert_zero(
        connection: Connection, database: Database, results: Sequence[InsertResult]
    ) -> None:
        for result in results:
            if result.written:
                _insert_zero(connection, database, result.job_id, wanted)

    return jobs.insert([new], on_duplicate, actor=actor, also=insert_zero)[0]


def count_arrival(databases: Databases, arrival: NewArrival) -> ArrivalAnswer:
    """Counts an arrival, unless it is counted already or the countdown has fired.

    The last arrival makes the job due in the same transaction. Raises StoreUnavailable; then the arrival may
    be counted, and a repetition with the same arrival_id is safe.
    """
    shard = databases.routing.shard_of_hash(routing_bits_of(arrival.job_id))
    database = databases.database_of_shard(shard)
    may_be_committed = False  # an earlier try of this call

    def count(connection: Connection) -> ArrivalAnswer:
        nonlocal may_be_committed
        answer = _count_in_transaction(database, shard, arrival, connection)
        if answer == "repeated" and may_be_committed:
            text = "completed" if answer.arrived >= answer.wanted else "arrived"
            answer = ArrivalAnswer(text, answer.job_id, answer.arrived, answer.wanted)
        may_be_committed = True
        return answer

    return database.run_transaction(count)


class CountdownReader:
    """Reads the countdown of a job when the job is asked for it. A copied or pickled job has none."""

    __slots__ = ("_databases",)

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def __call__(self, job: Job) -> Countdown | None:
        """See `read_countdown`."""
        return read_countdown(self._databases, job)

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        """Connections cannot be copied: the `_countdown` of the copy is None."""
        return _no_countdown, ()


def _no_countdown() -> None:
    return None


def read_countdown(databases: Databases, job: Job) -> Countdown | None:
    """How far the countdown of a job is; None: the job is no countdown, or its rows are missing."""
    if not is_countdown_key(job.dedup_key):
        return None
    shard = databases.routing.shard_of_hash(routing_bits_of(job.job_id))
    database = databases.database_of_shard(shard)
    its = database.arrival.c
    query = select(its.wanted, its.arrival_id).where(its.job_id == job.job_id)
    rows = database.select(query.order_by(its.arrival_no))
    if not rows:
        return None
    arrival_ids = tuple(row.arrival_id for row in rows[1:])
    by: Literal["arrivals", "deadline"] | None = None
    if job.status is Status.RUNNING or job.claimed_ms is not None:
        by = "arrivals" if len(arrival_ids) >= rows[0].wanted else "deadline"
    return Countdown(rows[0].wanted, arrival_ids, by)


def _count_in_transaction(
    database: Database, shard: int, arrival: NewArrival, connection: Connection
) -> ArrivalAnswer:
    database.lock_sqlite_file(connection)
    found = _answer_unless_counted(database, shard, arrival, connection)
    if found.kind is not AnswerKind.ARRIVED:
        return found
    job_id, arrived, wanted = arrival.job_id, found.arrived, found.wanted
    values = {"arrival_no": arrived, "wanted": wanted, "arrival_id": arrival.arrival_id}
    counted = insert(database.arrival).values(job_id=job_id, arrival_time=db_now(), **values)
    connection.execute(counted)
    if arrived < wanted:
        return found
    execute_on_shard(connection, shard, _MAKE_DUE, {"id": job_id, "at": arrival.now_ms})
    due = TransitionEvent(
        "run_now", Status.PENDING, Status.PENDING, arrival.actor, f"all {wanted} have arrived"
    )
    record_transition_events(connection, database, shard, c.job_id == job_id, due)
    return ArrivalAnswer("completed", job_id, arrived, wanted)


def _answer_unless_counted(
    database: Database, shard: int, arrival: NewArrival, connection: Connection
) -> ArrivalAnswer:
    """Locks the job. "arrived": count the arrival, as the number `arrived`. Otherwise the answer."""
    job_id = arrival.job_id
    row = execute_on_shard(connection, shard, _LOCK_JOB, {"id": job_id}).first()
    if row is None or not is_countdown_key(row.dedup_key):
        hint = None if row is None else f"job {job_id} is no countdown"
        return ArrivalAnswer("unknown", hint=hint)
    its, same = database.arrival.alias().c, database.arrival.c
    is_counted = exists().where(same.job_id == job_id, same.arrival_id == arrival.arrival_id)
    newest = (
        select(its.arrival_no, its.wanted, is_counted.label("is_counted"))
        .where(its.job_id == job_id)
        .order_by(its.arrival_no.desc())
        .limit(1)
    )
    found = connection.execute(newest).first()
    if found is None:
        hint = f"job {job_id} has no count of arrivals: a repair has made the job, as a copy"
        return ArrivalAnswer("unknown", hint=hint)
    arrived, wanted, is_repeated = found
    if is_repeated:
        return ArrivalAnswer("repeated", job_id, arrived, wanted)
    status = status_from_number(row.status)
    is_open = status is Status.PENDING and row.claim_time is None  # guard: arrival-before-the-claim
    if is_open and arrived < wanted:
        return ArrivalAnswer("arrived", job_id, arrived + 1, wanted)
    return ArrivalAnswer(str(ANSWER_OF_STATUS[status]), job_id, arrived, wanted)


def _insert_zero(connection: Connection, database: Database, job_id: int, wanted: int) -> None:
    """Inserts the countdown's own row; an earlier try of the call may have done it."""
    values = {"job_id": job_id, "arrival_no": 0, "wanted": wanted}
    zero = insert(database.arrival).values(arrival_id=None, arrival_time=db_now(), **values)
    with suppress(IntegrityError):  # only the statement was rolled back; the transaction goes on
        connection.execute(zero)
