"""The chains of recurring schedules: the next occurrence is made when the one before has ended (ADR 46).

The row of the schedule, the row of the job and the record of the nominal time are written in one
transaction, under the lock of the schedule's row. A worker that settles the last attempt of an occurrence
makes the next one in the transaction of the settle (`continue_chain`). Ends that no worker settles (a
person cancels the job, its lease is lost for good) are found by the keeper of any node (`keep_chain`): if
both come, the second finds that the row names another job already.

Locks are always taken in this order: the row of the job, the row of the schedule, new rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection, select, update

from toc.domain.ids import routing_bits_of
from toc.domain.job import Job, NewJob, Status
from toc.domain.occurrence_keys import extra_key_of
from toc.domain.recurring import COUNTED_MAX, RecurringSchedule, next_occurrence
from toc.domain.routing import routing_hash_of
from toc.errors import InvalidInput, StoreUnavailable
from toc.store import recurring_rows
from toc.store.claims import Claims, Outcome
from toc.store.column_types import db_now
from toc.store.databases import Database, Databases, execute_on_shard
from toc.store.events import TransitionEvent, record_transition_events
from toc.store.job_rows import status_from_number
from toc.store.jobs import Jobs
from toc.store.recurring_rows import RecurringRow
from toc.store.schema import JOB

T = TypeVar("T")
c = JOB.c
TRIES_MAX = 10
# A job that is late by the catch-up is left to workers for so long: they drop it themselves, and a node
# that is about to start it is faster than the keeper.
LATE_GRACE_MS = 5000


class MadeOccurrence(NamedTuple):
    """A job that was made for a schedule. due_ms: when it is due, in ms since 1970 UTC."""

    job_id: int
    biz_type: str
    due_ms: int


class SettledOccurrence(NamedTuple):
    """The result of a settle. made: the next occurrence. fault: why this release cannot make it."""

    settled: bool
    made: MadeOccurrence | None = None
    fault: InvalidInput | None = None


class ChainJob(NamedTuple):
    """The newest occurrence of a chain, as its row says. Times in ms since 1970 UTC."""

    status: Status
    attempts: int
    action_ms: int
    modified_ms: int
    claimed_ms: int | None = None

    @property
    def has_begun(self) -> bool:
        """Whether a worker has claimed it, now or earlier."""
        return self.status is not Status.PENDING or self.attempts > 0

    @property
    def has_snoozed(self) -> bool:
        """Whether its handler has run and snoozed, which counts as no attempt: its time lies after the claim.
        The time of a job that was claimed and given back lies before."""
        return self.claimed_ms is not None and self.action_ms > self.claimed_ms


class _ChangedMeanwhileError(Exception):
    """Another transaction has changed the schedule between a read and the lock."""


class RecurringChains:
    """Makes the occurrences of schedules. `jobs`: inserts them; its actor stands in events of cancelled
    jobs. `codec_of(biz_type)`: the codec of their payloads; None: there is none. It asks no database.

    Where the type has a codec and this process lacks its keys, whatever makes a job raises SettingsError and
    writes nothing: a process with the keys goes on with the chain.
    """

    def __init__(
        self, databases: Databases, jobs: Jobs, codec_of: Callable[[str], str | None]
    ) -> None:
        self._databases, self.jobs, self._codec_of = databases, jobs, codec_of

    # ---- the end of an occurrence

    def settle_occurrence(
        self, claims: Claims, database: Database, job: Job, outcome: Outcome, now_ms: int
    ) -> SettledOccurrence:
        """Settles an outcome that ends an occurrence, and makes the next one in the same transaction.

        `now_ms`: the database's time. Raises as `Claims.settle_jobs`.
        """
        found = SettledOccurrence(settled=True)

        def make_next(connection: Connection) -> None:
            nonlocal found
            try:
                made = self.continue_chain(connection, database, job, now_ms)
                found = SettledOccurrence(settled=True, made=made)
            except InvalidInput as error:  # raised before anything is written
                found = SettledOccurrence(settled=True, fault=error)

        if not claims.settle_job_with(database, outcome, make_next):
            return SettledOccurrence(settled=False)
        return found

    def continue_chain(
        self, connection: Connection, database: Database, job: Job, now_ms: int
    ) -> MadeOccurrence | None:
        """Makes the occurrence after `job`, which has ended in the connection's transaction.

        None: the job is not the newest of its chain, the schedule is paused, or no time is left. Raises
        InvalidInput if this release cannot read the schedule. `now_ms`: the database's time.
        """
        rows = recurring_rows.select_rows(
            database, connection, tenant=job.tenant, name=str(job.biz_id), lock=True
        )
        if not rows or rows[0].job_id != job.job_id or rows[0].paused_ms is not None:
            return None
        return self.make_next(connection, database, rows[0], now_ms, now_ms)

    def make_next(
        self,
        connection: Connection,
        database: Database,
        row: RecurringRow,
        ended_ms: int,
        now_ms: int,
    ) -> MadeOccurrence | None:
        """Makes the next occurrence of a schedule, whose row is locked and has no live occurrence."""
        schedule, cursor_ms, skipped = row.schedule, row.cursor_ms, row.skipped
        for _ in range(COUNTED_MAX):
            found = next_occurrence(schedule, cursor_ms, ended_ms, now_ms)
            cursor_ms, skipped = found.cursor_ms, skipped + found.skipped
            nominal_ms = found.nominal_ms
            if nominal_ms is None or not recurring_rows.select_made_times(
                database, connection, row, [nominal_ms]
            ):
                break
            # A backfill has made a job for this time already.
        else:  # the keeper goes on from here
            nominal_ms = None
        row = row._replace(cursor_ms=cursor_ms, skipped=skipped)
        if nominal_ms is None:
            recurring_rows.update_row(database, connection, row)
            return None
        due_ms = schedule.action_ms(nominal_ms)
        new = self.new_job(schedule, row.type_no, due_ms, schedule.key_of(nominal_ms))
        (inserted,) = self.jobs.insert_on_connection(connection, database, [new])
        made = [(nominal_ms, inserted.job_id)]
        recurring_rows.insert_occurrences(database, connection, row, made, now_ms)
        row = row._replace(job_id=inserted.job_id, nominal_ms=nominal_ms, made=row.made + 1)
        recurring_rows.update_row(database, connection, row)
        return MadeOccurrence(inserted.job_id, schedule.biz_type, inserted.due_ms)

    def new_job(
        self, schedule: RecurringSchedule, type_no: int, due_ms: int, dedup_key: str
    ) -> NewJob:
        """A job of the schedule, with a fresh id, and encrypted if its type has a codec."""
        business = schedule.business
        job_id = self.jobs.fresh_id_of_hash(routing_hash_of(business.number))
        new = NewJob(
            job_id, business.number, type_no, due_ms, schedule.attribute, dedup_key, business.text,
            business.tenant, priority=schedule.priority,
        )  # fmt: skip
        codec = self._codec_of(schedule.biz_type)
        if codec is None:
            return new
        return self._databases.payload_codecs.seal_job(codec, schedule.biz_type, new)

    def new_extra_job(self, row: RecurringRow, nominal_ms: int, due_ms: int) -> NewJob:
        """A job outside the chain: of a backfill, or one that a person asked for."""
        return self.new_job(row.schedule, row.type_no, due_ms, extra_key_of(nominal_ms))

    # ---- the keeper

    def keep_chain(
        self, database: Database, seen: RecurringRow, now_ms: int
    ) -> MadeOccurrence | None:
        """Goes on with a chain that stands still; None: there is nothing to do.

        `seen`: the row as it was read. The chain stands still if its occurrence has ended and no worker
        made the next one; if the occurrence could not begin within the catch-up; or if it still lives at
        the next nominal time and the rule is "cancel-other". In both latter cases it is cancelled. Raises
        InvalidInput if this release cannot read the schedule.
        """
        if seen.paused_ms is not None or not self._may_go_on(database, seen, now_ms):
            return None

        def go_on(
            connection: Connection, row: RecurringRow | None, job: ChainJob | None
        ) -> MadeOccurrence | None:
            if row is None or row.paused_ms is not None:
                return None
            ended_ms = row.cursor_ms if job is None else job.modified_ms
            if job is not None and job.status.live:
                reason = _reason_to_cancel(row, job, now_ms)
                if reason is None:
                    return None
                self._cancel_job(connection, database, row, job, reason)
                # The time for which it is cancelled must not count as a time at which it lived.
                ended_ms = row.cursor_ms
            return self.make_next(connection, database, row, ended_ms, now_ms)

        return self.run_locked(database, seen.tenant, seen.name, go_on)

    def _may_go_on(self, database: Database, row: RecurringRow, now_ms: int) -> bool:
        """Whether a chain stands still, by plain reads: most chains do not, and need no lock."""
        job = None if row.job_id is None else self._read_job(None, database, row.job_id)
        if job is not None and job.status.live:
            return _reason_to_cancel(row, job, now_ms) is not None
        ended_ms = row.cursor_ms if job is None else job.modified_ms
        return next_occurrence(row.schedule, row.cursor_ms, ended_ms, now_ms).nominal_ms is not None

    # ---- locks

    def run_locked(
        self,
        database: Database,
        tenant: str | None,
        name: str,
        work: Callable[[Connection, RecurringRow | None, ChainJob | None], T],
    ) -> T:
        """Runs `work(connection, row, job)` in a transaction that holds the rows of a schedule and its job.

        row: None: there is no such schedule. job: None: it has no occurrence, or retention has deleted it.
        """
        for _ in range(TRIES_MAX):
            seen = recurring_rows.select_rows(database, tenant=tenant, name=name)
            seen_id = seen[0].job_id if seen else None

            def lock_and_work(connection: Connection, seen_id: int | None = seen_id) -> T:
                database.lock_sqlite_file(connection)
                # The job first, as a settle does: the other order could end in a deadlock.
                job = None if seen_id is None else self._read_job(connection, database, seen_id)
                rows = recurring_rows.select_rows(
                    database, connection, tenant=tenant, name=name, lock=True
                )
                if (rows[0].job_id if rows else None) != seen_id:
                    raise _ChangedMeanwhileError
                return work(connection, rows[0] if rows else None, job)

            try:
                return database.run_transaction(lock_and_work)
            except _ChangedMeanwhileError:
                continue
        text = f"the recurring schedule {name!r} changes all the time: try again"
        raise StoreUnavailable(database.index, TimeoutError(text))

    def _read_job(
        self, connection: Connection | None, database: Database, job_id: int
    ) -> ChainJob | None:
        """The row of an occurrence; locked if `connection` is given."""
        shard = self._shard_of(job_id)
        columns = c.status, c.attempts, c.action_time, c.gmt_modified, c.claim_time
        query = select(*columns).where(c.job_id == job_id)
        if connection is None:
            rows = database.select(query, shard)
        else:
            rows = execute_on_shard(connection, shard, query.with_for_update()).all()
        if not rows:
            return None
        status, *others = rows[0]
        return ChainJob(status_from_number(status), *others)

    # ---- cancelled occurrences

    def release_job(
        self,
        connection: Connection,
        database: Database,
        row: RecurringRow,
        job: ChainJob | None,
        reason: str,
        actor: str,
    ) -> RecurringRow:
        """Cancels the newest occurrence if it has not begun, so that its nominal time may be decided anew.

        Returns the row with its cursor before that time.
        """
        if job is None or not job.status.live or row.nominal_ms is None:
            return row
        if job.has_begun or job.has_snoozed:
            return row
        self._cancel_job(connection, database, row, job, reason, actor)
        recurring_rows.delete_occurrence(database, connection, row, row.nominal_ms)
        cursor_ms = min(row.cursor_ms, row.nominal_ms - 1)
        return row._replace(job_id=None, nominal_ms=None, cursor_ms=cursor_ms, made=row.made - 1)

    def _cancel_job(
        self,
        connection: Connection,
        database: Database,
        row: RecurringRow,
        job: ChainJob,
        reason: str,
        actor: str | None = None,
    ) -> None:
        """Cancels the newest occurrence, whose row is locked. A running one: its worker loses the claim."""
        assert row.job_id is not None  # noqa: S101 - the caller has read its row
        shard, is_it = self._shard_of(row.job_id), c.job_id == row.job_id
        change = update(JOB).where(is_it, c.status == int(job.status))
        change = change.values(status=int(Status.CANCELLED), due_time=None, gmt_modified=db_now())
        execute_on_shard(connection, shard, change)
        what = "cancel" if job.status is Status.PENDING else "drop"
        event = TransitionEvent(
            what, job.status, Status.CANCELLED, actor or self.jobs.actor, reason,
            ends_attempt=what == "drop",
        )  # fmt: skip
        record_transition_events(connection, database, shard, is_it, event)

    def _shard_of(self, job_id: int) -> int:
        return self._databases.routing.shard_of_hash(routing_bits_of(job_id))


def _reason_to_cancel(row: RecurringRow, job: ChainJob, now_ms: int) -> str | None:
    """Why the keeper must cancel a live occurrence; None: it must not."""
    schedule = row.schedule
    late_ms = now_ms - job.action_ms - schedule.catch_up_s * 1000
    if not job.has_begun and late_ms > LATE_GRACE_MS:
        return f"not begun within the catch-up of {schedule.catch_up_s} s"
    if schedule.overlap == "cancel-other":
        next_ms = schedule.recurrence.next_ms(row.cursor_ms)
        if next_ms is not None and next_ms <= now_ms:
            return "cancelled for the next occurrence of its schedule"
    return None
