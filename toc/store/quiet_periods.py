"""Debounced jobs: each call moves the job to the end of a quiet period, until a maximum (ADR 47).

A running job cannot take a later call any more, and must not hold it up either. So the jobs of a key have two
keys in the table, and a call that meets a running job writes a second one, under the other key. A call
inserts its job first, and then looks for a pending one under the other key, with a locking read: of two calls
that insert at the same time under different keys at least one sees the other one, and joins it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Update, bindparam, case, select, update

from toc.domain.countdown import QUIET_KEYS
from toc.domain.ids import routing_bits_of
from toc.domain.job import NewJob, Status
from toc.errors import DuplicateJob
from toc.store.column_types import DatetimeAsMillis, db_now
from toc.store.databases import Database, Databases, execute_on_shard
from toc.store.job_rows import status_from_number
from toc.store.jobs import InsertResult, Jobs
from toc.store.schema import JOB, live_key_of

c = JOB.c
_TRIES_MAX = 10


class QuietCall(NamedTuple):
    """A call. job: as it is inserted if none is pending; it is due at the end of the quiet period.

    key: that of the caller; the job's own is ignored. max_wait_ms: from the first call on.
    """

    job: NewJob
    key: str
    max_wait_ms: int


def debounce_job(databases: Databases, jobs: Jobs, call: QuietCall) -> InsertResult:
    """Moves the pending job of the key, or inserts one. Raises DuplicateJob if both its jobs are running.

    The time is never moved back, nor beyond the creation of the job and `max_wait_ms`. A job that has run and
    waits for its retry gets the attribute only.
    """
    shard = databases.routing.shard_of_hash(routing_bits_of(call.job.job_id))
    database = databases.database_of_shard(shard)
    may_be_committed = False  # an earlier try of this call

    def move_or_insert(connection: Connection) -> InsertResult:
        nonlocal may_be_committed
        database.lock_sqlite_file(connection)
        writer = _QuietWriter(database, shard, jobs, call, connection, may_be_committed)
        result = writer.write()
        may_be_committed = True
        return result

    return database.run_transaction(move_or_insert)


class _QuietWriter:
    """One try of a call, in its transaction."""

    def __init__(
        self, database: Database, shard: int, jobs: Jobs, call: QuietCall, connection: Connection,
        repeated: bool,
    ) -> None:  # fmt: skip
        self._database, self._shard, self._jobs = database, shard, jobs
        self._call, self._connection, self._repeated = call, connection, repeated

    def write(self) -> InsertResult:
        for _ in range(_TRIES_MAX):
            held = self._read_holders()
            mine = next((each for each in held if each.job_id == self._call.job.job_id), None)
            if self._repeated and mine is not None:  # inserted by the try whose answer was lost
                return InsertResult(mine.job_id, mine.action_time, written=True)
            pending = _choose_pending(held)
            if pending is None and len(held) == len(QUIET_KEYS):
                raise self._duplicate(held[0].job_id)
            result = self._insert(held) if pending is None else self._move(pending)
            if result is not None:
                return result
        raise AssertionError(f"no row for {self._call} after {_TRIES_MAX} tries")

    def _read_holders(self, *, locks: bool = False) -> list[Any]:
        """The live jobs of the key, under both keys of the table."""
        job, key = self._call.job, self._call.key
        keys = [live_key_of(prefix + key, job.tenant, job.biz_text) for prefix in QUIET_KEYS]
        query = select(
            c.job_id,
            c.status,
            c.claim_time,
            c.gmt_create,
            c.action_time,
            c.due_time,
            c.dedup_key,
            c.attribute,
        ).where(c.biz_id == job.biz_id, c.type_no == job.type_no, c.live_key.in_(keys))
        if locks:
            query = query.with_for_update(read=True)
        return list(execute_on_shard(self._connection, self._shard, query))

    def _move(self, holder: Any) -> InsertResult | None:
        """Moves a pending job. None: it was claimed in between."""
        job = self._call.job
        has_fired = holder.claim_time is not None
        latest_ms = holder.gmt_create + self._call.max_wait_ms
        at_ms = min(job.action_ms, latest_ms)
        statement = _JOIN_RETRY if has_fired else _MOVE
        values: dict[str, Any] = {
            "id": holder.job_id,
            "attribute": job.attribute_for(holder.job_id),
        }
        if not has_fired:
            values["at"] = at_ms
        if not execute_on_shard(self._connection, self._shard, statement, values).rowcount:
            return None
        due_ms = holder.due_time if has_fired else max(holder.action_time, at_ms)
        return InsertResult(holder.job_id, due_ms, written=True, holder=Status.PENDING)

    def _insert(self, held: Sequence[Any]) -> InsertResult | None:
        """Inserts the job under a free key. None: another call has inserted one meanwhile."""
        taken = {row.dedup_key for row in held}
        prefix = next(each for each in QUIET_KEYS if each + self._call.key not in taken)
        savepoint = self._connection.begin_nested()
        new = self._call.job._replace(dedup_key=prefix + self._call.key)
        (inserted,) = self._jobs.insert_on_connection(
            self._connection, self._database, [new], repeated=self._repeated
        )
        if inserted.holder is None:
            if (
                self._database.sqlite
            ):  # its default for the column does not follow the clock of tests
                values = {"id": inserted.job_id}
                execute_on_shard(self._connection, self._shard, _SET_CREATED, values)
            rows = self._read_holders(locks=True)
            others = [row for row in rows if row.dedup_key != new.dedup_key]
            # Ids of two calls in one millisecond may be equal: then the row may be another call's.
            content = (inserted.job_id, new.action_ms, new.attribute)
            is_mine = inserted.job_id != new.job_id or any(
                (row.job_id, row.action_time, row.attribute) == content for row in rows
            )
            if is_mine and _choose_pending(others) is None:
                savepoint.commit()
                return inserted
        savepoint.rollback()
        return None

    def _duplicate(self, job_id: int) -> DuplicateJob:
        job = self._call.job
        name = self._jobs.type_name(job.type_no, self._database)
        return DuplicateJob(job_id, job.business_id.given_id, name, self._call.key, running=True)


def _choose_pending(held: Sequence[Any]) -> Any | None:
    """The pending job that a call joins: one that has not run yet before one that waits for its retry."""
    pending = [row for row in held if status_from_number(row.status) is Status.PENDING]
    return min(pending, key=lambda row: row.claim_time is not None, default=None)


def _update_pending(*values: tuple[Any, Any], has_fired: bool) -> Update:
    return (
        update(JOB)
        .where(
            c.job_id == bindparam("id"),
            c.status == int(Status.PENDING),
            c.claim_time.is_not(None) if has_fired else c.claim_time.is_(None),
        )
        .values(dict([(c.attribute, bindparam("attribute")), (c.gmt_modified, db_now()), *values]))
    )


_SET_CREATED = update(JOB).where(c.job_id == bindparam("id")).values(gmt_create=db_now())
_AT = bindparam("at", type_=DatetimeAsMillis())
_LATER = case((c.action_time < _AT, _AT), else_=c.action_time)
_MOVE = _update_pending((c.action_time, _LATER), (c.due_time, _LATER), has_fired=False)
_JOIN_RETRY = _update_pending(has_fired=True)
