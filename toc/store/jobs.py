"""The verbs of clients: insert, get, find, cancel, reschedule, run_now, redrive, discard.

Each changing verb is one guarded statement: it changes a row only in the status that it expects,
and otherwise returns the status that it found. The verbs for a business id find the job ids with a plain read
and then change rows by primary key, so that no statement locks the unique index before the row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Table,
    Update,
    bindparam,
    case,
    delete,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from toc.domain.biz_ids import BusinessId
from toc.domain.ids import routing_bits_of
from toc.domain.job import ANSWER_OF_STATUS, Answer, DeadJob, Job, NewJob, Scheduled, Status
from toc.domain.routing import Routing
from toc.errors import DuplicateJob
from toc.store.column_types import DatetimeAsMillis, db_now, sql_time_of_ms, to_signed64
from toc.store.compiled_statement import IDS, compile_once
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases, execute_on_shard
from toc.store.driver_errors import is_live_duplicate, is_primary_duplicate
from toc.store.events import EventStatement, TransitionEvent, record_transition_events
from toc.store.external_transaction import join_transaction
from toc.store.job_repair import find_copy_id
from toc.store.job_rows import (
    JOB_COLUMNS,
    business_id_condition,
    dead_job_from_row,
    dead_jobs_query,
    due_or_lease_end,
    job_from_row,
    status_from_number,
)  # fmt: skip
from toc.store.pipelined_executor import BYTES_MAX
from toc.store.schema import DATABASES_CACHED, JOB, live_key_of
from toc.store.verb import Executor, Statement, StatementResult, Verb, run_statements

c = JOB.c
OnDuplicate = Literal["keep", "replace", "earliest", "latest", "error", "once"]
ON_DUPLICATE: tuple[str, ...] = get_args(OnDuplicate)
ROWS_MAX = 1000  # rows per INSERT, well below SQLite's 32,766 variables
_TRIES_MAX = 10
AlsoInsert = Callable[[Connection, Database, Sequence["InsertResult"]], None]
"""Writes other rows in the transaction that inserts jobs, by their results."""
_LIVE = [int(status) for status in Status if status.live]
_COLUMNS = "job_id, biz_id, type_no, action_time, due_time, attribute, dedup_key"


class InsertResult(NamedTuple):
    """The result of inserting one job. `job_id`: its row; with a held key, the older job's row.

    `holder`: the status of the older live job that holds the key; None: the row is new.
    """

    job_id: int
    due_ms: int
    written: bool  # False: the older job was kept
    holder: Status | None = None

    @property
    def as_scheduled(self) -> Scheduled:
        """The result for the caller of schedule()."""
        if self.holder is None:
            return Scheduled(self.job_id, "inserted")
        did: Literal["replaced", "kept"] = "replaced" if self.written else "kept"
        return Scheduled(self.job_id, did, self.holder is Status.RUNNING)


class Jobs:
    """Client verbs over all shards. `fresh_id(routing_bits)` draws a new id when an id is taken.

    `actor`: the person or program that changes the jobs; their events name it.
    """

    def __init__(
        self,
        databases: Databases,
        database_metadata: DatabaseMetadata,
        fresh_id: Callable[[int], int],
        actor: str,
    ) -> None:
        self._databases = databases
        self._database_metadata = database_metadata
        self._fresh_id = fresh_id
        self.actor = actor
        self._changes = {database.index: _ChangeStatements(database) for database in databases}

    def type_name(self, type_no: int, database: Database) -> str:
        """The name of a type number in a database. Raises NotFound."""
        return self._database_metadata.types.find_name(type_no, database)

    # ---- insert

    def insert(
        self,
        jobs: Sequence[NewJob],
        on_duplicate: OnDuplicate,
        connection: Connection | None = None,
        actor: str | None = None,
        also: AlsoInsert | None = None,
    ) -> list[InsertResult]:
        """Inserts jobs of *one* database, in one transaction: that of the caller's `connection`, if given.

        actor: in whose name a replaced job is changed; None: in that of this object. `also`: without
        `connection` only.

        Returns results in the order of `jobs`. Raises DuplicateJob for a held key with on_duplicate="error",
        or "replace" or "latest" when the holder is already running: then the call has written nothing.
        """
        _, database = self._shard_and_database(jobs[0].job_id)
        insert = _JobInsert(
            self, database, self._databases.routing, jobs, on_duplicate, actor or self.actor
        )
        if also is not None:
            return insert.insert_with(also)
        if connection is None:
            return insert.insert_in_transaction()
        with join_transaction(connection, database, self._database_metadata):
            return insert.insert_on_connection(connection)

    def insert_on_connection(
        self,
        connection: Connection,
        database: Database,
        jobs: Sequence[NewJob],
        *,
        repeated: bool = False,
    ) -> list[InsertResult]:
        """Inserts jobs in a transaction of toc's own on `database`; a job whose key is held is kept.

        repeated: an earlier try of the call may have been committed.
        """
        insert = _JobInsert(self, database, self._databases.routing, jobs, "keep", self.actor)
        return insert.insert_on_connection(connection, repeated=repeated)

    # ---- reads

    def get(self, job_id: int) -> Job | None:
        """Reads a job by its id; None: there is no such row."""
        shard, database = self._shard_and_database(job_id)
        query = select(*JOB_COLUMNS, c.result).where(c.job_id == job_id)
        rows = database.select(query, shard)
        if not rows:
            return None
        row, codecs = rows[0], self._databases.payload_codecs
        return job_from_row(row, self.type_name(row.type_no, database), codecs, row.result)

    def find(
        self,
        shard: int,
        business: BusinessId,
        type_no: int | None,
        limit: int,
        dedup_key: str | None = None,
        before_id: int | None = None,
    ) -> list[Job]:
        """Jobs of a business id, live and ended, newest first; at most `limit`. `type_no` None: all types.

        before_id: only jobs with lower ids, for the next page.
        """
        conditions = _business_conditions(business, type_no, dedup_key)
        if before_id is not None:
            conditions.append(c.job_id < before_id)
        query = (
            select(*JOB_COLUMNS, c.result).where(*conditions).order_by(c.job_id.desc()).limit(limit)
        )
        database = self._databases.database_of_shard(shard)
        rows = database.select(query, shard)
        codecs = self._databases.payload_codecs
        return [
            job_from_row(row, self.type_name(row.type_no, database), codecs, row.result)
            for row in rows
        ]

    def live_ids_of_business(
        self, shard: int, business: BusinessId, type_no: int | None, dedup_key: str | None
    ) -> list[int]:
        """The ids of all live jobs of a business id, and of a type and a key if given; oldest first."""
        query = select(c.job_id).where(
            *_business_conditions(business, type_no, dedup_key), c.status.in_(_LIVE)
        )
        pages = self._databases.database_of_shard(shard).read_pages_by_id(query, shard, ROWS_MAX)
        return [job_id for page in pages for (job_id,) in page]

    # ---- guarded verbs

    def cancel(self, job_id: int, reason: str | None = None, actor: str | None = None) -> Answer:
        """Pending -> cancelled. After "cancelled" no handler starts (I3)."""
        return self._change_job_or_copy(
            job_id,
            TransitionEvent(
                "cancel", Status.PENDING, Status.CANCELLED, actor or self.actor, reason
            ),
        )

    def reschedule(
        self, job_id: int, action_ms: int, reason: str | None = None, actor: str | None = None
    ) -> Answer:
        """Moves a pending job to another time; its attempts start anew."""
        transition = self.reschedule_transition(action_ms, reason, actor or self.actor)
        return self._change_job_or_copy(job_id, transition, action_ms)

    def run_now(
        self, job_id: int, now_ms: int, reason: str | None = None, actor: str | None = None
    ) -> Answer:
        """Makes a pending job due at `now_ms` if it is due later; its attempts stay."""
        transition = TransitionEvent(
            "run_now", Status.PENDING, Status.PENDING, actor or self.actor, reason
        )
        return self._change_job_or_copy(job_id, transition, now_ms)

    def redrive(
        self, job_id: int, action_ms: int, reason: str | None = None, actor: str | None = None
    ) -> Answer:
        """Dead -> pending at `action_ms`. "superseded" when a newer live job holds its key."""
        transition = TransitionEvent(
            "redrive", Status.DEAD, Status.PENDING, actor or self.actor, reason
        )
        try:
            return self._change_job_or_copy(job_id, transition, action_ms)
        except IntegrityError as error:
            if is_live_duplicate(error):
                return Answer("superseded", job_id)
            raise

    def discard(self, job_id: int, reason: str | None = None, actor: str | None = None) -> Answer:
        """Dead -> cancelled. After "cancelled" no redrive makes the job live again (I3)."""
        transition = TransitionEvent(
            "discard", Status.DEAD, Status.CANCELLED, actor or self.actor, reason
        )
        return self._change_job_or_copy(job_id, transition)

    def read_dead_letters(self, limit: int, biz_type: str | None = None) -> list[DeadJob]:
        """Dead letters of all databases, newest first."""
        found: list[DeadJob] = []
        for database in self._databases:
            letter = database.dead.c
            query = dead_jobs_query(database.dead)
            if biz_type is not None:
                type_no = self._database_metadata.types.find_number(biz_type, database)
                if type_no is None:
                    continue
                query = query.where(letter.type_no == type_no)
            query = query.order_by(letter.dead_time.desc(), letter.job_id.desc()).limit(limit)
            for dialect in ("mysql", "mariadb"):  # else the server may sort the whole table
                query = query.with_hint(database.dead, "FORCE INDEX (ix_dead_time)", dialect)
            for row in database.select(query):
                found.append(dead_job_from_row(row, self.type_name(row.type_no, database)))
        found.sort(key=lambda job: (job.dead_ms, job.job_id), reverse=True)
        return found[:limit]

    def reschedule_transition(
        self, action_ms: int, reason: str | None, actor: str
    ) -> TransitionEvent:
        """The transition of a pending job to another time."""
        to = f"to {sql_time_of_ms(action_ms)} UTC"
        text = to if reason is None else f"{to}: {reason}"
        return TransitionEvent("reschedule", Status.PENDING, Status.PENDING, actor, text)

    def _change_job_or_copy(
        self, job_id: int, transition: TransitionEvent, action_ms: int | None = None
    ) -> Answer:
        found = self._change_job(job_id, transition, action_ms)
        if found == "already_cancelled":
            # A repair may have replaced the job with a copy under another id: change the copy.
            copy_id = find_copy_id(self._databases, job_id)  # guard: copy-by-its-key
            if copy_id is not None:
                return self._change_job(copy_id, transition, action_ms)
        return found

    def _change_job(
        self, job_id: int, transition: TransitionEvent, action_ms: int | None
    ) -> Answer:
        shard, database = self._shard_and_database(job_id)
        changeable_again = str(ANSWER_OF_STATUS[transition.from_status])
        for _ in range(_TRIES_MAX):
            verb = self._change_verb(database, shard, job_id, transition, action_ms)
            found = database.run_verb(verb)
            if found != changeable_again:
                break  # otherwise the job's status changed between the UPDATE and the SELECT: try again
        if not found.ok and verb.tries > 1 and action_ms is not None:
            # An earlier try may have committed, and the answer was lost: then the row has this call's time.
            time_ms = database.scalar(select(c.action_time).where(c.job_id == job_id), shard)
            if time_ms == action_ms:
                return Answer(_ANSWERS[transition.what], job_id)
        return found

    def _change_verb(
        self,
        database: Database,
        shard: int,
        job_id: int,
        transition: TransitionEvent,
        action_ms: int | None,
    ) -> Verb[Answer]:
        """Makes the verb that changes a job. If the job does not change, the answer is the found status."""
        statements, table = self._changes[database.index], database.job_table_name(shard)
        changes = [
            statements.change[transition.what].bind(table, [job_id], at=action_ms),
            statements.event.bind(table, job_id, transition),
        ]
        if transition.from_status is Status.DEAD:
            changes.append(statements.delete_letter.bind(table, [job_id]))

        def make_answer(results: Sequence[StatementResult], executor: Executor) -> Answer:
            if results[0].rowcount:
                return Answer(_ANSWERS[transition.what], job_id)
            (found,) = executor.send_autocommit([statements.status.bind(table, [job_id])])
            if not found.rows:
                return Answer("unknown")
            ((status, attempts),) = found.rows
            return Answer(ANSWER_OF_STATUS[status_from_number(status)], job_id, attempts)

        return Verb(changes, (), make_answer)

    def _shard_and_database(self, job_id: int) -> tuple[int, Database]:
        shard = self._databases.routing.shard_of_hash(routing_bits_of(job_id))
        return shard, self._databases.database_of_shard(shard)

    def fresh_id_of_hash(self, routing_hash: int) -> int:
        """Draws a new id for a business id's routing hash."""
        return self._fresh_id(routing_hash)

    def fresh_id_like(self, job_id: int) -> int:
        """Draws a new id with the shard and slot of `job_id`."""
        return self._fresh_id(routing_bits_of(job_id))


def _guarded_update(from_status: Status, to_status: Status, *values: tuple[Any, Any]) -> Update:
    return (
        update(JOB)
        .where(
            c.job_id.in_(IDS),
            c.status == int(from_status),  # guard: change-status
        )
        .values(dict([(c.status, int(to_status)), (c.gmt_modified, db_now()), *values]))
    )


_NEW_TIME = bindparam("at", type_=DatetimeAsMillis())
_RESTARTED = ((c.action_time, _NEW_TIME), (c.due_time, _NEW_TIME), (c.attempts, 0))
SOONER = tuple(
    (column, case((column > _NEW_TIME, _NEW_TIME), else_=column))
    for column in (c.action_time, c.due_time)
)
_CHANGES = {
    "cancel": _guarded_update(Status.PENDING, Status.CANCELLED, (c.due_time, None)),
    "reschedule": _guarded_update(Status.PENDING, Status.PENDING, *_RESTARTED),
    "run_now": _guarded_update(Status.PENDING, Status.PENDING, *SOONER),
    "redrive": _guarded_update(Status.DEAD, Status.PENDING, *_RESTARTED),
    "discard": _guarded_update(Status.DEAD, Status.CANCELLED, (c.due_time, None)),
}
_ANSWERS = {
    "cancel": "cancelled", "reschedule": "rescheduled", "run_now": "rescheduled", "redrive": "redriven",
    "discard": "cancelled",
}  # fmt: skip
_SELECT_STATUS = select(c.status, c.attempts).where(c.job_id.in_(IDS))


@lru_cache(maxsize=DATABASES_CACHED)
def _delete_letters(dead: Table) -> Delete:
    return delete(dead).where(dead.c.job_id.in_(IDS))


class _ChangeStatements:
    """The statements of guarded changes on one database."""

    def __init__(self, database: Database) -> None:
        dialect = database.engine.dialect
        self.change = {what: compile_once(each, dialect) for what, each in _CHANGES.items()}
        self.event = EventStatement(database)
        letters = _delete_letters(database.dead)
        self.delete_letter = compile_once(letters, dialect, if_changed=True)
        self.status = compile_once(_SELECT_STATUS, dialect)


class _JobInsert:
    """Inserts jobs of one database: one statement per shard; after a duplicate, one statement per job."""

    def __init__(
        self,
        library: Jobs,
        database: Database,
        routing: Routing,
        jobs: Sequence[NewJob],
        on_duplicate: OnDuplicate,
        actor: str,
    ) -> None:
        self._library, self._database, self._actor = library, database, actor
        self._jobs, self._on_duplicate = jobs, on_duplicate
        by_shard: dict[int, list[int]] = defaultdict(list)
        for position, job in enumerate(jobs):
            by_shard[routing.shard_of_hash(routing_bits_of(job.job_id))].append(position)
        # (shard, positions in `jobs`), one INSERT each
        self._parts = [
            (shard, part)
            for shard in sorted(by_shard)
            for part in _split_into_inserts(jobs, by_shard[shard])
        ]
        # A single row needs one statement, which commits itself; changing or finding another row needs two.
        self._is_single_statement = len(jobs) == 1 and on_duplicate in ("keep", "error")
        self._may_be_committed = False
        # An earlier try of this call may have been committed: a taken id may be that of this call's own job.
        self._repeated = False

    def insert_in_transaction(self) -> list[InsertResult]:
        """Inserts the jobs in a transaction of their own."""
        # Jobs with a key are not sent as a packet: the packet fails if the key is held, which is frequent.
        if all(job.dedup_key is None for job in self._jobs):
            verb = self._insert_verb()
            inserted = self._database.run_pipelined(verb)
            if inserted is not None:
                return inserted
            self._may_be_committed = verb.tries > 0
        if self._is_single_statement:
            return self._database.run_autocommit(self._insert_once)
        return self._database.run_transaction(self._insert_once)

    def insert_with(self, also: AlsoInsert) -> list[InsertResult]:
        """Inserts the jobs and what `also` writes, in a transaction of their own."""

        def insert_both(connection: Connection) -> list[InsertResult]:
            self._repeated = self._may_be_committed
            results = self.insert_on_connection(connection)
            also(connection, self._database, results)
            self._may_be_committed = True
            return results

        return self._database.run_transaction(insert_both)

    def _insert_verb(self) -> Verb[list[InsertResult]]:
        """Makes the verb with the INSERTs of all parts, which fails if a job id is taken."""
        changes = [
            _insert_statement(self._database, shard, [self._jobs[each] for each in positions])
            for shard, positions in self._parts
        ]
        inserted = [InsertResult(job.job_id, job.action_ms, written=True) for job in self._jobs]
        return Verb(changes, (), lambda results, executor: inserted)

    def _insert_once(self, connection: Connection) -> list[InsertResult]:
        self._repeated = self._may_be_committed
        self._may_be_committed = self._may_be_committed or self._is_single_statement
        results = self.insert_on_connection(connection)
        self._may_be_committed = True
        return results

    def insert_on_connection(
        self, connection: Connection, *, repeated: bool = False
    ) -> list[InsertResult]:
        """Inserts the jobs in the connection's transaction."""
        self._repeated = self._repeated or repeated
        results: dict[int, InsertResult] = {}
        for shard, positions in self._parts:
            jobs = [self._jobs[position] for position in positions]
            if self._on_duplicate == "once":
                found = [self._insert_once_for_ever(connection, shard, job) for job in jobs]
                results.update(zip(positions, found, strict=True))
                continue
            try:
                self._insert_rows(connection, shard, jobs)
                found = [InsertResult(job.job_id, job.action_ms, written=True) for job in jobs]
            except IntegrityError:
                # Only the failed statement was rolled back; the transaction continues.
                found = [self._insert_one_job(connection, shard, job) for job in jobs]
            results.update(zip(positions, found, strict=True))
        return [results[position] for position in range(len(self._jobs))]

    def _insert_one_job(self, connection: Connection, shard: int, job: NewJob) -> InsertResult:
        for _ in range(_TRIES_MAX):
            try:
                self._insert_rows(connection, shard, [job])
            except IntegrityError as error:
                if is_live_duplicate(error):
                    found = self._handle_held_key(connection, shard, job)
                elif is_primary_duplicate(error):
                    found = self._handle_taken_id(connection, shard, job)
                else:
                    raise
                if isinstance(found, InsertResult):
                    return found
                job = found
            else:
                return InsertResult(job.job_id, job.action_ms, written=True)
        raise AssertionError(f"no row for {job} after {_TRIES_MAX} tries")

    def _insert_once_for_ever(
        self, connection: Connection, shard: int, job: NewJob
    ) -> InsertResult:
        """Inserts a job unless a live or ended job has its key.

        The row is inserted first: its entry in the unique index makes other calls with this key wait for this
        transaction. So the read that follows finds each job of the key that has ended until then.
        """
        if job.dedup_key is None:
            return self._insert_one_job(connection, shard, job)
        savepoint = connection.begin_nested()
        inserted = self._insert_one_job(connection, shard, job)
        if inserted.holder is None:
            earlier = (
                select(c.job_id, c.status, due_or_lease_end.label("due_at"))
                .where(
                    business_id_condition(job.business_id),
                    c.type_no == job.type_no,
                    c.dedup_key == job.dedup_key,
                    c.job_id != inserted.job_id,
                )
                .order_by(c.job_id)
                .limit(1)
                .with_for_update(read=True)  # it sees the rows that are committed now
            )
            row = execute_on_shard(connection, shard, earlier).first()
            if row is not None:
                savepoint.rollback()
                due_ms = job.action_ms if row.due_at is None else row.due_at
                status = status_from_number(row.status)
                return InsertResult(row.job_id, due_ms, written=False, holder=status)
        savepoint.commit()
        return inserted

    def _handle_taken_id(
        self, connection: Connection, shard: int, job: NewJob
    ) -> InsertResult | NewJob:
        if self._repeated:
            mine = select(c.job_id).where(
                c.job_id == job.job_id,
                business_id_condition(job.business_id),
                c.type_no == job.type_no,
                c.action_time == job.action_ms,
            )
            if execute_on_shard(connection, shard, mine).first():
                return InsertResult(job.job_id, job.action_ms, written=True)
        fresh_id = self._library.fresh_id_like(job.job_id)
        return job._replace(job_id=fresh_id, attribute=job.attribute_for(fresh_id))

    def _handle_held_key(
        self, connection: Connection, shard: int, job: NewJob
    ) -> InsertResult | NewJob:
        key = live_key_of(job.dedup_key or "", job.tenant, job.biz_text)
        query = (
            select(c.job_id, c.status, c.action_time, due_or_lease_end.label("due_at"))
            .where(c.biz_id == job.biz_id, c.type_no == job.type_no, c.live_key == key)
            # A locking read sees committed rows even in a caller's REPEATABLE READ.
            .with_for_update(read=True)
        )
        holder = execute_on_shard(connection, shard, query).first()
        if holder is None:  # the holder ended in between: try again
            return job
        if holder.job_id == job.job_id:
            return InsertResult(job.job_id, job.action_ms, written=True)
        is_pending = holder.status == Status.PENDING  # guard: replace-pending-seen
        if self._keeps_holder(holder.action_time, job.action_ms, is_pending=is_pending):
            status = status_from_number(holder.status)
            return InsertResult(holder.job_id, holder.due_at, written=False, holder=status)
        if self._on_duplicate != "error" and is_pending:
            change = (
                update(JOB)
                .where(
                    c.job_id == holder.job_id,
                    c.status == int(Status.PENDING),  # guard: replace-pending
                    *self._later_or_earlier_condition(job.action_ms),
                )
                .values(
                    action_time=job.action_ms,
                    due_time=job.action_ms,
                    attempts=0,  # guard: replace-keeps-status
                    attribute=job.attribute_for(holder.job_id),
                    gmt_modified=db_now(),
                    **({} if job.trace is None else {"trace": job.trace}),
                )
            )
            if not execute_on_shard(connection, shard, change).rowcount:
                return job
            move = self._library.reschedule_transition(
                job.action_ms, "replaced by schedule()", self._actor
            )
            record_transition_events(
                connection, self._database, shard, c.job_id == holder.job_id, move
            )
            return InsertResult(holder.job_id, job.action_ms, written=True, holder=Status.PENDING)
        raise DuplicateJob(
            holder.job_id,
            job.business_id.given_id,
            self._library.type_name(job.type_no, self._database),
            job.dedup_key or "",
            running=holder.status == Status.RUNNING,
        )

    def _keeps_holder(self, held_ms: int, wanted_ms: int, *, is_pending: bool) -> bool:
        """Whether the job that holds the key stays as it is."""
        if self._on_duplicate == "earliest":
            return held_ms <= wanted_ms or not is_pending  # a running job cannot act earlier
        if self._on_duplicate == "latest":
            return held_ms >= wanted_ms
        return self._on_duplicate in ("keep", "once")

    def _later_or_earlier_condition(self, wanted_ms: int) -> list[ColumnElement[bool]]:
        """The holder's time must still be worse when the row changes: it was read without a lasting lock."""
        if self._on_duplicate == "earliest":
            return [c.action_time > wanted_ms]
        if self._on_duplicate == "latest":
            return [c.action_time < wanted_ms]
        return []

    def _insert_rows(self, connection: Connection, shard: int, jobs: list[NewJob]) -> None:
        run_statements(connection, [_insert_statement(self._database, shard, jobs)])


def _insert_statement(database: Database, shard: int, jobs: Sequence[NewJob]) -> Statement:
    """An INSERT of these jobs into one shard."""
    # Text, not insert(): SQLAlchemy would use executemany and render row by row, which costs a third of
    # the speed (docs/explanation/performance.md). Only texts of callers are bound: numbers, and times that
    # toc formats, need no escaping.
    values: list[Any] = []
    rows: list[str] = []
    has_texts = any(job.biz_text or job.tenant for job in jobs)
    columns = f"{_COLUMNS}, biz_text, tenant" if has_texts else _COLUMNS
    has_traces = any(job.trace for job in jobs)
    if has_traces:
        columns += ", trace"
    has_priorities = any(job.priority for job in jobs)
    if has_priorities:
        columns += ", priority"
    mark = "?" if database.sqlite else "%s"
    for job in jobs:
        biz_id = to_signed64(job.biz_id) if database.sqlite else job.biz_id
        when = sql_time_of_ms(job.action_ms)
        attribute, key, texts = "NULL", "NULL", ""
        if database.sqlite and job.attribute is not None:
            attribute = mark
            values.append(job.attribute)
        elif job.attribute is not None:
            # An attribute is the longest text. As hex it needs no escaping, which takes six times as long.
            attribute = f"_utf8mb4 x'{job.attribute.encode().hex()}'"
        if job.dedup_key is not None:
            key = mark
            values.append(job.dedup_key)
        if has_texts:
            texts = f", {mark}, {mark}"
            values += (job.biz_text, job.tenant)
        if has_traces:
            texts += f", {mark}"
            values.append(job.trace)
        if has_priorities:
            texts += f", {job.priority:d}"
        rows.append(
            f"({job.job_id:d}, {biz_id:d}, {job.type_no:d}, '{when}', '{when}', {attribute}, {key}{texts})"
        )
    name = database.job_table_name(shard)
    text = f"INSERT INTO {name} ({columns}) VALUES {', '.join(rows)}"  # noqa: S608
    return Statement(text, tuple(values))


def _business_conditions(
    business: BusinessId, type_no: int | None, dedup_key: str | None
) -> list[ColumnElement[bool]]:
    """Conditions: the jobs of a business id, and of this type and this key where they are given."""
    conditions: list[ColumnElement[bool]] = [business_id_condition(business)]
    if type_no is not None:
        conditions.append(c.type_no == type_no)
    if dedup_key is not None:
        conditions.append(c.dedup_key == dedup_key)
    return conditions


def _split_into_inserts(jobs: Sequence[NewJob], positions: Sequence[int]) -> Iterator[list[int]]:
    """Splits positions into lists of at most ROWS_MAX rows and about BYTES_MAX bytes, one per INSERT."""
    part: list[int] = []
    size = 0
    for position in positions:
        part.append(position)
        job = jobs[position]
        # About: an attribute is sent as hex.
        size += 150 + 2 * len((job.attribute or "").encode()) + len(job.biz_text or "")
        if len(part) == ROWS_MAX or size >= BYTES_MAX:
            yield part
            part, size = [], 0
    if part:
        yield part
