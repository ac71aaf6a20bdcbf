"""The guarded changes that reconciliation makes to rows, and the events of its repairs of reminders.

A guarded change does nothing if a client or a worker has changed the row since reconciliation read it. The
event of a change is in the same transaction.

A *misfit* is a job whose row is in the table of a wrong shard, or whose job_id does not fit its biz_id. The
copy that replaces a misfit is found by the events of the repair: in the event of the old job `related_job_id`
is the copy, in the event of the copy it is the old job. No verb of a client writes `related_job_id`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from toc.domain.ids import ROUTING_MASK, SEQUENCE_BITS, SEQUENCE_MASK, routing_bits_of
from toc.domain.job import Status
from toc.domain.routing import routing_hash_of
from toc.store.column_types import DatetimeAsMillis, db_now, sql_time_of_ms
from toc.store.databases import Database, Databases, execute_on_shard
from toc.store.driver_errors import is_live_duplicate, is_primary_duplicate
from toc.store.events import (
    REPAIR,
    RepairEvent,
    TransitionEvent,
    record_repair_events,
    record_transition_events,
)
from toc.store.job_rows import status_from_number
from toc.store.schema import JOB, job_table_name

c = JOB.c
TRIES_MAX = 10
_LOW_BITS = ROUTING_MASK << SEQUENCE_BITS | SEQUENCE_MASK
_BY_HAND = "cancel the job, and schedule it anew"
_COPIED = (
    c.gmt_create, c.biz_id, c.biz_text, c.tenant, c.type_no, c.action_time, c.attribute, c.attempts,
    c.priority, c.claim_token, c.dedup_key, c.claim_time, c.lease_end_time, c.result, c.trace,
)  # fmt: skip
_BUSINESS_DATA = (
    "biz_id", "biz_text", "tenant", "type_no", "action_time", "attribute", "dedup_key",
)  # fmt: skip


class ShiftedJob(NamedTuple):
    """A pending job, never tried, whose due_time differed from its action_time when it was read."""

    job_id: int
    action_ms: int
    due_ms: int


class MisfitRepairResult(NamedTuple):
    """The result of repairing a misfit. `job_id`: the copy that replaces the misfit; None: nothing was
    done.

    why: the reason why nothing was done. is_over: no later repair is needed.
    """

    job_id: int | None
    type_no: int = 0
    due_ms: int = 0
    why: str = ""
    is_over: bool = False


class JobRepair:
    """Repairs job rows for reconciliation. `actor`, `run_id`: written into events.

    Raises StoreUnavailable. Thread-safe.
    """

    def __init__(self, databases: Databases, actor: str, run_id: str | None = None) -> None:
        self._databases, self._actor, self._run_id = databases, actor, run_id

    def record_reminder_repairs(self, reasons: Mapping[int, Mapping[int, str]]) -> None:
        """Writes an event "repair" for jobs whose rows did not change, in one transaction per database.

        reasons: by shard and job_id. If the answer of a COMMIT is lost, the transaction is repeated: then a
        job may have two events.
        """
        shards = sorted(reasons)
        for index, some in groupby(shards, key=self._databases.routing.database_index):
            database, mine = self._databases[index], list(some)
            database.run_transaction(partial(self._record_shard_repairs, database, mine, reasons))

    def _record_shard_repairs(
        self,
        database: Database,
        shards: Iterable[int],
        reasons: Mapping[int, Mapping[int, str]],
        connection: Connection,
    ) -> None:
        for shard in shards:
            repair = RepairEvent(reasons[shard], self._actor, self._run_id)
            record_repair_events(connection, database, shard, repair)

    def reset_due_times(self, shifted: Mapping[int, Sequence[ShiftedJob]]) -> set[tuple[int, int]]:
        """Sets due_time back to action_time, the time that the business gave.

        One transaction. `shifted`: by shard, all of one database. Returns (shard, job_id) of the changed
        jobs. A job that has changed since it was read is left as it is.
        """
        database = self._databases.database_of_shard(min(shifted))

        def reset_and_record(connection: Connection) -> set[tuple[int, int]]:
            changed = set()
            for shard in sorted(shifted):
                reasons = {}
                for job in sorted(shifted[shard]):
                    values = {"id": job.job_id, "action": job.action_ms, "due": job.due_ms}
                    if execute_on_shard(connection, shard, _RESET_DUE_TIME, values).rowcount:
                        reasons[job.job_id] = (
                            f"moved: due_time was {sql_time_of_ms(job.due_ms)} UTC"
                        )
                if reasons:
                    repair = RepairEvent(reasons, self._actor, self._run_id)
                    record_repair_events(connection, database, shard, repair)
                changed |= {(shard, job_id) for job_id in reasons}
            return changed

        return database.run_transaction(reset_and_record)

    def copy_to_right_shard(self, shard: int, job_id: int) -> MisfitRepairResult:
        """Copies a pending misfit to the shard of its biz_id, under a fitting id, and cancels the old row.

        The old row is in the table of `shard`, whatever its id says. The copy's id has the old id's time and
        sequence with the right routing bits: if the old row becomes live again, the next repair finds the
        existing copy. A job that was never tried is due at its action_time.

        The repair is one transaction, so both shards must be in one database: with two transactions, a client
        that cancelled the old row between the two commits would get "cancelled" while the copy lived on (I3).
        A misfit that belongs into another database is left to a person. `find_copy_id` finds the
        copy by the old id.
        """
        for _ in range(TRIES_MAX):
            try:
                return _MisfitRepairer(
                    self._databases, self._actor, self._run_id, shard, job_id
                ).repair_misfit()
            except IntegrityError as error:
                if is_live_duplicate(error):
                    return MisfitRepairResult(None, why="another live job holds the key of the job")
                if not is_primary_duplicate(error):
                    raise
                # Another transaction took the id after it was read: the next try finds it taken.
        raise AssertionError(f"no id for a copy of job {job_id} after {TRIES_MAX} tries")


class _MisfitRepairer:
    """Repairs one misfit job."""

    def __init__(
        self, databases: Databases, actor: str, run_id: str | None, shard: int, job_id: int
    ) -> None:
        self._databases, self._shard, self._job_id = databases, shard, job_id
        self._actor, self._run_id = actor, run_id
        self._database = databases.database_of_shard(shard)
        self._last_repair = MisfitRepairResult(None)  # the result of the last try

    def repair_misfit(self) -> MisfitRepairResult:
        return self._database.run_transaction(self._copy_and_cancel)

    def _copy_and_cancel(self, connection: Connection) -> MisfitRepairResult:
        self._database.lock_sqlite_file(connection)
        query = select(c.status, c.due_time, *_COPIED).where(c.job_id == self._job_id)
        row = execute_on_shard(connection, self._shard, query.with_for_update()).one_or_none()
        if row is None:
            return MisfitRepairResult(None, why="the row is gone", is_over=True)
        hash_ = routing_hash_of(row.biz_id)
        shard, routing_bits = self._databases.routing.shard_of_hash(hash_), hash_ & ROUTING_MASK
        nothing = self._result_without_repair(
            connection, status_from_number(row.status), shard, routing_bits
        )
        if nothing is not None:
            return nothing
        due_ms = row.due_time if row.attempts and row.due_time is not None else row.action_time
        # Before the copy: in one table, a second live row with the key would be refused.
        if not execute_on_shard(connection, self._shard, _CANCEL, {"id": self._job_id}).rowcount:
            text = "is pending and locked by this transaction, and yet its cancel changed no row"
            raise AssertionError(f"job {self._job_id} {text}")
        new_id = self._insert_copy(connection, shard, routing_bits, row, due_ms)
        words = f"misfit: job {new_id} in {job_table_name(shard)} stands for it now"
        move = TransitionEvent(
            "cancel", Status.PENDING, Status.CANCELLED, self._actor, words, self._run_id, new_id
        )
        record_transition_events(
            connection, self._database, self._shard, c.job_id == self._job_id, move
        )
        self._last_repair = MisfitRepairResult(new_id, row.type_no, due_ms)
        return self._last_repair

    def _result_without_repair(
        self, connection: Connection, status: Status, shard: int, routing_bits: int
    ) -> MisfitRepairResult | None:
        """The result when nothing is to be done, or nothing may be done; None: the repair goes on."""
        if status is Status.RUNNING:
            return MisfitRepairResult(
                None, why="the job is running: repaired when the job is pending again"
            )
        if status is not Status.PENDING:
            # This is the second try of a transaction that was committed: its answer was lost.
            made = self._last_repair.job_id
            if made is not None and has_copy_event(connection, self._database, made, self._job_id):
                return self._last_repair
            return MisfitRepairResult(None, why="the job has ended meanwhile", is_over=True)
        if routing_bits_of(self._job_id) == routing_bits and shard == self._shard:
            return MisfitRepairResult(None, why="the job fits by now", is_over=True)
        home = self._databases.database_of_shard(shard)
        if home is not self._database:
            return MisfitRepairResult(
                None, why=f"the job belongs into database {home.index}: {_BY_HAND}"
            )
        return None

    def _insert_copy(
        self, connection: Connection, shard: int, routing_bits: int, row: Row[Any], due_ms: int
    ) -> int:
        """Inserts the copy unless it exists already; returns its id."""
        words = f"misfit: stands for job {self._job_id} in {job_table_name(self._shard)}"
        for new_id in possible_copy_ids(self._job_id, routing_bits):
            query = select(*_COPIED).where(c.job_id == new_id)
            there = execute_on_shard(connection, shard, query).one_or_none()
            if there is None:
                values = {column.name: getattr(row, column.name) for column in _COPIED}
                values |= {"job_id": new_id, "status": int(Status.PENDING), "due_time": due_ms}
                execute_on_shard(
                    connection, shard, insert(JOB).values(**values, gmt_modified=db_now())
                )
            elif has_copy_event(connection, self._database, new_id, self._job_id):
                return new_id
            elif any(getattr(there, name) != getattr(row, name) for name in _BUSINESS_DATA):
                continue
            # The copy is new, or another process has made it.
            repair = RepairEvent({new_id: words}, self._actor, self._run_id, self._job_id)
            record_repair_events(connection, self._database, shard, repair)
            return new_id
        raise AssertionError(f"no free id like {self._job_id}")


_RESET_DUE_TIME = (
    update(JOB)
    .where(
        c.job_id == bindparam("id"),
        c.status == int(Status.PENDING),
        c.attempts == 0,
        # Unchanged since it was read: a reschedule by a client in between wins.
        c.action_time == bindparam("action", type_=DatetimeAsMillis()),
        c.due_time == bindparam("due", type_=DatetimeAsMillis()),
        c.due_time != c.action_time,
    )
    .values(due_time=c.action_time, gmt_modified=db_now())
)
_CANCEL = (
    update(JOB)
    .where(c.job_id == bindparam("id"), c.status == int(Status.PENDING))
    .values(status=int(Status.CANCELLED), due_time=None, gmt_modified=db_now())
)


# ---- copies


def possible_copy_ids(job_id: int, routing_bits: int) -> Iterable[int]:
    """Ids with the time of `job_id` and other routing bits: first its own sequence, then the next ones."""
    for step in range(SEQUENCE_MASK + 1):
        yield job_id & ~_LOW_BITS | routing_bits << SEQUENCE_BITS | (job_id + step) & SEQUENCE_MASK


def has_copy_event(connection: Connection, database: Database, job_id: int, old_id: int) -> bool:
    """Whether a repair has recorded the job `job_id` as the copy of the job `old_id`."""
    event = database.event.c
    its = event.job_id == job_id, event.what == REPAIR, event.related_job_id == old_id
    return connection.execute(select(event.job_id).where(*its).limit(1)).first() is not None


def find_copy_id(databases: Databases, job_id: int) -> int | None:
    """The id of the copy that replaced a cancelled job in a repair; None: it was only cancelled."""
    database = databases.database_of_shard(databases.routing.shard_of_hash(routing_bits_of(job_id)))
    event = database.event.c
    query = (
        select(event.related_job_id)
        .where(
            event.job_id == job_id,
            event.what == "cancel",
            event.related_job_id.is_not(None),
            # Equal: only the table was wrong, and the copy kept the id.
            event.related_job_id != job_id,
        )
        .order_by(event.event_id.desc())
        .limit(1)
    )
    found: int | None = database.scalar(query)
    return found
