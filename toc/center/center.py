"""TimeoutCenter: the verbs that a business calls."""

from __future__ import annotations

import os
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from sqlalchemy import Connection

from toc.center.after_commit import (
    arm_after_commit,
    connection_of_transaction,
    transaction_to_join,
)
from toc.center.bulk_schedule import BulkSchedule
from toc.center.connections import Connections
from toc.center.countdown_spec import check_countdown
from toc.center.countdowns import arrive_at, countdown_target, start_countdown
from toc.center.debounce import debounce
from toc.center.debounce_spec import check_debounce
from toc.center.each_schedule import EachSchedule
from toc.center.job_spec import CheckedJob, JobSpec, When, check_job_fields, check_job_spec
from toc.center.job_target import JobTarget
from toc.center.job_wait import check_timeout, wait_for_end
from toc.center.schedule_hooks import begin_schedule
from toc.domain.argument_checks import (
    check_actor,
    check_biz_type,
    check_dedup_key,
    check_integer,
    check_reason,
)
from toc.domain.biz_ids import check_business_id
from toc.domain.countdown import ArrivalAnswer, check_arrival_id, is_countdown_key
from toc.domain.ids import check_job_id
from toc.domain.job import Answer, DeadJob, Job, Scheduled
from toc.domain.pauses import PauseInfo, target_of
from toc.domain.retry_policies import RetryName, RetryPolicy
from toc.domain.times import action_time_to_ms
from toc.errors import (
    InvalidInput,
    PartlyScheduled,
    TocError,
)
from toc.handlers.hooks import Hooks
from toc.handlers.registry import B, E, F, M, P, PayloadFunction, Registry, registry
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.process_info import process_name
from toc.runtime.settings import Settings, load_settings
from toc.store.countdowns import CountdownReader, read_countdown
from toc.store.external_transaction import complete_in_transaction
from toc.store.jobs import ON_DUPLICATE, InsertResult, OnDuplicate
from toc.timer.reminder import Reminder

if TYPE_CHECKING:
    from toc.center.after_commit import AnySession
    from toc.center.recurring_verbs import RecurringOptions, RecurringVerbs
    from toc.center.type_verbs import TypeVerbs
    from toc.domain.recurrence import Gap
    from toc.domain.recurring import Overlap, Recurring
    from toc.handlers.typed_handler import TypedHandler

__all__ = ["JobSpec", "TimeoutCenter"]


class JobOptions(TypedDict, total=False):
    """The options of a job; type checkers read them here."""

    biz_type: str
    attribute: dict[str, Any] | None
    dedup_key: str | None
    on_duplicate: OnDuplicate
    tenant: str | None
    trace: str | None
    priority: int
    actor: str | None


class ScheduleOptions(JobOptions, total=False):
    """The options of `TimeoutCenter.schedule`."""

    session: AnySession | None
    connection: Connection | None


CountdownDuplicate = Literal["keep", "once", "error"]


class CountdownOptions(TypedDict, total=False):
    """The options of `TimeoutCenter.countdown`."""

    biz_type: str
    attribute: dict[str, Any] | None
    dedup_key: str
    on_duplicate: CountdownDuplicate
    tenant: str | None
    priority: int
    actor: str | None


class DebounceOptions(TypedDict, total=False):
    """The options of `TimeoutCenter.debounce`."""

    biz_type: str
    attribute: dict[str, Any] | None
    dedup_key: str
    tenant: str | None
    priority: int


class TimeoutCenter:
    """A client of toc. Thread-safe; connects at the first call; survives a fork.

    `settings`: default from toc.toml and TOC_… variables. `handlers`: the registry that `handler`
    fills (default: the one that `toc worker` runs). `actor`: in whose name jobs are changed (default:
    host:pid); it stands in their events.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        handlers: Registry | None = None,
        clock: Clock | None = None,
        actor: str | None = None,
    ) -> None:
        self._settings = settings
        self._actor = None if actor is None else check_actor(actor)
        self._clock = clock or SystemClock()
        self._handlers = handlers if handlers is not None else registry
        self._lock = threading.RLock()
        self._second_writer = threading.Lock()  # see `BulkSchedule.write_and_arm`
        self._state: Connections | None = None
        self._recurring: RecurringVerbs | None = None
        center = weakref.ref(self)

        def forget_connections() -> None:
            # A child process must not use its parent's sockets. It connects again at the next call.
            found = center()
            if found is not None:
                found._lock, found._state = threading.RLock(), None  # noqa: SLF001 - ourselves
                found._second_writer = threading.Lock()  # noqa: SLF001

        os.register_at_fork(after_in_child=forget_connections)

    # ---- schedule

    @overload
    def schedule(
        self,
        biz_id: int | str,
        action_time: When,
        *,
        details: Literal[False] = False,
        **options: Unpack[ScheduleOptions],
    ) -> int: ...

    @overload
    def schedule(
        self,
        biz_id: int | str,
        action_time: When,
        *,
        details: Literal[True],
        **options: Unpack[ScheduleOptions],
    ) -> Scheduled: ...

    def schedule(
        self,
        biz_id: int | str,
        action_time: When,
        *,
        biz_type: str = "default",
        attribute: dict[str, Any] | None = None,
        dedup_key: str | None = None,
        on_duplicate: OnDuplicate = "keep",
        session: AnySession | None = None,
        connection: Connection | None = None,
        tenant: str | None = None,
        trace: str | None = None,
        priority: int = 0,
        actor: str | None = None,
        details: bool = False,
    ) -> int | Scheduled:
        """Makes sure that the handler of `biz_type` acts on `biz_id` at `action_time`. Returns the job_id.

        When it has returned, the job is as durable as the database's COMMIT.

        biz_id: an integer from 0 to 2^64-1, or a text of 1 to 64 characters (an order number, a UUID) without
        control characters, and without spaces at its ends; decides the shard. The integer 42 and the text
        "42" are different businesses. tenant: whose business it is, where several share one toc: 1 to 32
        letters, digits, '-' or '_'; each tenant has business ids of its own.
        action_time: an aware datetime, or a timedelta from now by the clock of the job's database; rounded
        up to milliseconds; the past means at once.
        biz_type: a new name becomes a new type, of which a database has at most `limits.biz_types`.
        attribute: a dict that is JSON, at most `limits.attribute_bytes`; it must fit the type's schema,
        if one is declared (`toc types`). dedup_key: with a key ("" is
        one) there is one live job per (tenant, biz_id, biz_type, key); None (default): no such rule.
        on_duplicate says what happens when a live job holds the key: "keep" returns the holder's id,
        "replace" gives the holder the new time and attribute, "earliest" and "latest" do this only if the
        new time is earlier or later than the holder's, "error" raises. "once" is "keep" for ever: a job of
        the key that has ended holds it too, until retention deletes the job.

        details: True returns a `Scheduled` instead of the job_id: whether the job was inserted, replaced or
        kept, and whether a job that was kept runs already: then it does not act on this call.

        session: an ORM session (or a scoped_session: this thread's) whose transaction the job joins; it
        is timed after the commit. Its connection must reach the shard's database server, and must not
        commit each statement by itself. For an AsyncSession: `await a.run_sync(lambda s: schedule(...,
        session=s))`. connection: the same with a Core connection; call `place(job_id)` after your commit
        (else the loader or scanner finds it). On SQLite, which has one writer, other changing calls of
        this thread are refused until that transaction has ended.

        actor: in whose name a job with the key is changed (default: the client's); it stands in the event.
        trace: kept with the job as `job.trace`, 1 to 64 characters without spaces, as a W3C traceparent;
        a hook may set it too. priority: 0 (default) to 9; where due jobs of the type wait, as behind a limit,
        those of a higher priority go first, if the type is declared with a priority (`toc types`).

        Raises InvalidInput (nothing written), DuplicateJob ("error", or "replace" or "latest" of a
        running job), WrongDatabase, StoreUnavailable (may have been written: use a dedup_key to repeat it).
        """
        wanted = self._check_job(
            biz_id, action_time, biz_type=biz_type, on_duplicate=on_duplicate,
            attribute=attribute, dedup_key=dedup_key, tenant=tenant, trace=trace,
            priority=priority, actor=actor,
        )  # fmt: skip
        orm_session, joined = transaction_to_join(session, connection)
        state = self._open_connections()
        database = state.database_of_business(wanted.business)
        state.payload_checks.check_job(database, wanted)
        hooked = begin_schedule(self._handlers.hooks, [wanted])
        if hooked is not None:
            wanted = hooked.jobs[0]
        try:
            new = state.make_new_jobs(database, [wanted])
            jobs = state.jobs
            inserted = jobs.insert(new, on_duplicate, joined, actor)[0]  # guard: commit-before-arm
        except BaseException as error:
            if hooked is not None:
                hooked.fail(error)
            raise
        if inserted.written:
            state.count_scheduled(biz_type)
            to_arm = [(biz_type, Reminder(inserted.due_ms, inserted.job_id))]
            if orm_session is not None:
                arm_after_commit(orm_session, to_arm, state.arm_near_jobs)
            elif joined is None:
                state.arm_near_jobs(to_arm)
        if hooked is not None:
            hooked.end([inserted])
        return inserted.as_scheduled if details else inserted.job_id

    @overload
    def schedule_many(
        self,
        jobs: Iterable[JobSpec | tuple[int | str, When]],
        *,
        biz_type: str = "default",
        on_duplicate: OnDuplicate = "keep",
        details: Literal[False] = False,
    ) -> list[int]: ...

    @overload
    def schedule_many(
        self,
        jobs: Iterable[JobSpec | tuple[int | str, When]],
        *,
        biz_type: str = "default",
        on_duplicate: OnDuplicate = "keep",
        details: Literal[True],
    ) -> list[Scheduled]: ...

    def schedule_many(
        self,
        jobs: Iterable[JobSpec | tuple[int | str, When]],
        *,
        biz_type: str = "default",
        on_duplicate: OnDuplicate = "keep",
        details: bool = False,
    ) -> list[int] | list[Scheduled]:
        """Schedules many jobs; returns their ids in the order given (details: as in `schedule`).

        Each job is a dict with the names of `schedule`'s arguments, or a pair (biz_id, action_time);
        `biz_type` is for jobs that name none. All jobs are checked before any is written. They are written
        in transactions of up to 2,000 jobs of one database. 400 or more jobs of a database, all without a
        dedup_key, are at least two transactions, and two are written at the same time.

        A database that does not answer costs only its own jobs. Raises as `schedule` does;
        PartlyScheduled (with the ids) when some were written and others not.
        """
        wanted = self._check_jobs(jobs, biz_type, on_duplicate)
        hooked = begin_schedule(self._handlers.hooks, wanted)
        bulk = self._prepare_bulk(wanted if hooked is None else hooked.jobs, on_duplicate)
        failure: BaseException | None = None
        try:
            bulk.write_and_arm()
            bulk.raise_first_failure()
        except BaseException as error:
            failure = error
            if not isinstance(error, TocError) or not any(bulk.inserted):
                raise
            ids = [None if it is None else it.job_id for it in bulk.inserted]
            raise PartlyScheduled(ids, error) from error
        finally:
            if hooked is not None:
                hooked.end(bulk.inserted, failure)
        if details:
            return [it.as_scheduled for it in bulk.inserted if it is not None]
        return [it.job_id for it in bulk.inserted if it is not None]

    def schedule_each(
        self,
        jobs: Sequence[JobSpec | tuple[int | str, When]],
        *,
        biz_type: str = "default",
        on_duplicate: OnDuplicate = "keep",
        actor: str | None = None,
    ) -> list[Scheduled | Exception]:
        """Schedules many jobs, each for itself; returns a `Scheduled` or the error of each, in their order.

        As `schedule_many`, but a job that cannot be written (DuplicateJob, StoreUnavailable …) costs no other
        job. Raises InvalidInput, before any job is written, if one of the jobs is invalid.
        """
        if actor is not None:
            check_actor(actor)
        return self._write_checked_jobs(
            self._check_jobs(jobs, biz_type, on_duplicate), on_duplicate, actor
        )

    def place(self, *job_ids: int) -> None:
        """Times jobs that were scheduled with `connection=`, after that transaction's commit."""
        state = self._open_connections()
        for job_id in job_ids:
            state.arm_changed_job(check_job_id(job_id))

    # ---- change

    def cancel(
        self,
        job_id: int | None = None,
        *,
        biz_id: int | str | None = None,
        biz_type: str | None = "default",
        dedup_key: str | None = None,
        tenant: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> Answer:
        """Cancels a job, or all live jobs of a business id and type (and key). Final (I3).

        biz_type: "default" unless one is given, as in `schedule`; None: of all types, as in `find`.

        Returns "cancelled" (`bool(answer)` is True): no handler runs, and none will start (one may have run
        before, and failed). Otherwise the job's current status (`bool(answer)` is False): "running", "done",
        "already_cancelled", "dead"; or "unknown", perhaps with a `.hint`. `.job_id` is the job, `.attempts`
        how often it was tried. For several jobs: "cancelled" only if this call cancelled all of them.
        `reason` and `actor` (default: the client's): for the job's events.
        """
        _check_words(reason, actor)
        target = JobTarget.from_arguments(job_id, biz_id, biz_type, dedup_key, tenant)
        state = self._open_connections()
        answers = [state.jobs.cancel(found, reason, actor) for found in target.find_job_ids(state)]
        if cancelled := sum(answer.ok for answer in answers):
            state.count_cancelled(cancelled)
        # A job that was not cancelled outweighs the jobs that were.
        worst = next((it for it in answers if not it.ok), answers[0] if answers else None)
        return target.make_answer_for_no_job(state) if worst in (None, "unknown") else worst

    def reschedule(
        self,
        job_id: int | When | None = None,
        action_time: When | None = None,
        *,
        biz_id: int | str | None = None,
        biz_type: str | None = "default",
        dedup_key: str | None = None,
        tenant: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> Answer:
        """Moves a pending job to another time. By id, or by business key (one live job must match).

        Returns "rescheduled" (`bool(answer)` is True); otherwise the job's current status (`bool(answer)` is
        False). Arguments and answers are as in `cancel`. Attempts start anew.
        `reason` and `actor` (default: the client's): for the job's events.
        """
        _check_words(reason, actor)
        if isinstance(job_id, (datetime, timedelta)) and action_time is None:
            job_id, action_time = None, job_id
        if action_time is None:
            raise InvalidInput("action_time", None, "must be an aware datetime or a timedelta")
        # An invalid time is refused before any server is asked.
        action_time_to_ms(action_time, self._clock.wall_ms())
        target = JobTarget.from_arguments(job_id, biz_id, biz_type, dedup_key, tenant)
        state = self._open_connections()
        ids = target.find_job_ids(state)
        if len(ids) > 1:
            raise InvalidInput(
                "biz_id", biz_id, f"{len(ids)} live jobs match: give dedup_key or job_id"
            )
        if not ids:
            return target.make_answer_for_no_job(state)
        due_ms = action_time_to_ms(
            action_time, state.database_now_ms(state.database_of_job(ids[0]))
        )
        answer = state.jobs.reschedule(ids[0], due_ms, reason, actor)
        if answer == "unknown":
            return target.make_answer_for_no_job(state)
        if answer.ok and answer.job_id is not None:  # the answer may name a copy of that job
            state.arm_changed_job(answer.job_id, due_ms)
        return answer

    def run_now(
        self, job_id: int, *, reason: str | None = None, actor: str | None = None
    ) -> Answer:
        """Makes a pending job due now, whether it waits for its time or for a retry. Its attempts stay.

        The job runs even if its type is paused (needs an account of the role worker, web or operator).

        Returns "rescheduled" (`bool(answer)` is True); otherwise the job's current status, as `reschedule`.
        """
        _check_words(reason, actor)
        target = JobTarget.from_arguments(job_id)
        state = self._open_connections()
        now_ms = state.database_now_ms(state.database_of_job(job_id))
        answer = state.jobs.run_now(job_id, now_ms, reason, actor)
        if answer == "unknown":
            return target.make_answer_for_no_job(state)
        if answer.ok and answer.job_id is not None:  # the answer may name a copy of that job
            state.arm_changed_job(answer.job_id, now_ms)
            state.let_through_pauses(answer.job_id, now_ms, reason, actor)
        return answer

    def redrive(
        self, job_id: int, *, reason: str | None = None, actor: str | None = None
    ) -> Answer:
        """Makes a dead job pending again, due now. Returns "redriven"; "superseded"; otherwise its status."""
        _check_words(reason, actor)
        target = JobTarget.from_arguments(job_id)
        state = self._open_connections()
        now_ms = state.database_now_ms(state.database_of_job(job_id))
        answer = state.jobs.redrive(job_id, now_ms, reason, actor)
        if answer == "unknown":
            return target.make_answer_for_no_job(state)
        if answer.ok and answer.job_id is not None:  # the answer may name a copy of that job
            state.arm_changed_job(answer.job_id, now_ms)
        return answer

    def discard(
        self, job_id: int, *, reason: str | None = None, actor: str | None = None
    ) -> Answer:
        """Cancels a dead job, which can then not be redriven any more. Its dead letter is deleted.

        Returns "cancelled" (`bool(answer)` is True); otherwise the job's current status (`bool(answer)` is
        False), or "unknown". `reason` and `actor` (default: the client's): for the job's events.
        """
        _check_words(reason, actor)
        target = JobTarget.from_arguments(job_id)
        state = self._open_connections()
        answer = state.jobs.discard(job_id, reason, actor)
        return target.make_answer_for_no_job(state) if answer == "unknown" else answer

    # ---- pause

    def pause(
        self,
        biz_type: str | None = None,
        *,
        topic: str | None = None,
        everything: bool = False,
        until: datetime | timedelta | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> PauseInfo:
        """Pauses a biz_type, or a topic, or `everything`: within a second no job of it is claimed any more.

        Running handlers and leases end as usual; scheduling and cancelling go on. until: the end, or how
        long; None: until `resume`. A pause that exists gets the new end. A ramp limits the claims after the
        end (docs/how-to/pause.md). Raises InvalidInput, and StoreUnavailable if no database answers.
        """
        _check_words(reason, actor)
        target = target_of(biz_type, topic, everything=everything)
        return self._open_connections().pauses.pause(target, until, reason, actor)

    def resume(
        self,
        biz_type: str | None = None,
        *,
        topic: str | None = None,
        everything: bool = False,
        now: bool = False,
        reason: str | None = None,
        actor: str | None = None,
    ) -> PauseInfo:
        """Ends a pause: claims begin again, with a ramp. now: without a ramp; during a ramp: ends the ramp.

        Changes nothing if the pause is over already, or there never was one: the state is then "over". Raises
        InvalidInput, and StoreUnavailable if no database answers.
        """
        _check_words(reason, actor)
        target = target_of(biz_type, topic, everything=everything)
        pauses = self._open_connections().pauses
        return pauses.resume(target, with_ramp=not now, reason=reason, actor=actor)

    def pauses(self) -> list[PauseInfo]:
        """The pauses that are not over, those whose ramp goes on too. Raises StoreUnavailable."""
        return self._open_connections().pauses.list_pauses()

    # ---- countdowns

    @overload
    def countdown(
        self,
        biz_id: int | str,
        *,
        count: int,
        deadline: When,
        details: Literal[False] = False,
        **options: Unpack[CountdownOptions],
    ) -> int: ...

    @overload
    def countdown(
        self,
        biz_id: int | str,
        *,
        count: int,
        deadline: When,
        details: Literal[True],
        **options: Unpack[CountdownOptions],
    ) -> Scheduled: ...

    def countdown(
        self,
        biz_id: int | str,
        *,
        count: int,
        deadline: When,
        biz_type: str = "default",
        attribute: dict[str, Any] | None = None,
        dedup_key: str = "",
        on_duplicate: CountdownDuplicate = "keep",
        tenant: str | None = None,
        priority: int = 0,
        actor: str | None = None,
        details: bool = False,
    ) -> int | Scheduled:
        """Makes sure that the handler acts when `count` arrivals have come, at the latest at `deadline`.

        Returns the job_id. Each `arrive` with another arrival_id counts; the last one makes the job due now.
        `job.countdown` tells the handler which of both it was, and who has arrived.

        count: from 1 to `limits.countdown` (1000). deadline: as `action_time` of `schedule`. dedup_key: there
        is one live countdown per (tenant, biz_id, biz_type, key); up to 56 characters. on_duplicate: "keep"
        returns the live countdown as it is, whatever its count; "once" also one that has ended; "error"
        raises. Other arguments, `details` and errors are as in `schedule`.
        """
        fields = {
            "biz_id": biz_id, "biz_type": biz_type, "attribute": attribute, "dedup_key": dedup_key,
            "on_duplicate": on_duplicate, "tenant": tenant, "priority": priority,
        }  # fmt: skip
        job = check_countdown(self._clock.wall_ms(), self.settings.limits, deadline, count, fields)
        _check_words(None, actor)
        hooked = begin_schedule(self._handlers.hooks, [job])
        if hooked is not None:
            job = hooked.jobs[0]
        try:
            done = start_countdown(self._open_connections(), job, count, on_duplicate, actor)
        except BaseException as error:
            if hooked is not None:
                hooked.fail(error)
            raise
        if hooked is not None:
            hooked.end([done])
        return done.as_scheduled if details else done.job_id

    def arrive(
        self,
        arrival_id: str,
        *,
        job_id: int | None = None,
        biz_id: int | str | None = None,
        biz_type: str = "default",
        dedup_key: str = "",
        tenant: str | None = None,
        actor: str | None = None,
    ) -> ArrivalAnswer:
        """Counts an arrival of a countdown: that with this job_id, or with this biz_id, type and key.

        arrival_id: 1 to 64 printable ASCII characters without spaces; the same one counts once. The answer is
        true if the arrival counts: "arrived"; "completed", it was the last one, and the job is due now;
        "repeated". Otherwise the countdown has fired, has all its arrivals, or has ended, and the answer is
        the job's status; or "unknown": `countdown` was not called before. `actor` (default: the client's):
        for the event of the last arrival.
        """
        _check_words(None, actor)
        check_arrival_id(arrival_id)
        target = countdown_target(job_id, biz_id, biz_type, dedup_key, tenant)
        return arrive_at(self._open_connections(), target, arrival_id, actor)

    # ---- debounce

    @overload
    def debounce(
        self,
        biz_id: int | str,
        *,
        quiet: timedelta,
        max_wait: timedelta,
        details: Literal[False] = False,
        **options: Unpack[DebounceOptions],
    ) -> int: ...

    @overload
    def debounce(
        self,
        biz_id: int | str,
        *,
        quiet: timedelta,
        max_wait: timedelta,
        details: Literal[True],
        **options: Unpack[DebounceOptions],
    ) -> Scheduled: ...

    def debounce(
        self,
        biz_id: int | str,
        *,
        quiet: timedelta,
        max_wait: timedelta,
        biz_type: str = "default",
        attribute: dict[str, Any] | None = None,
        dedup_key: str = "",
        tenant: str | None = None,
        priority: int = 0,
        details: bool = False,
    ) -> int | Scheduled:
        """Makes sure that the handler acts once for many calls: when none has come for `quiet`.

        Returns the job_id. Each call moves the pending job to `quiet` from now, but never beyond `max_wait`
        after the call that made the job, and never back; and gives it the call's attribute. A call while the
        job runs makes another job. A job that waits for its retry gets the attribute; its time stays.

        quiet, max_wait: above 0, at most 366 days; by the clock of the job's database. dedup_key: calls are
        of one group by (tenant, biz_id, biz_type, key); up to 56 characters. Other arguments and `details`:
        as in `schedule` ("replaced": a pending job took the call, and keeps its priority). Raises
        InvalidInput, StoreUnavailable, and DuplicateJob when two jobs of the key run already.
        """
        fields = {
            "biz_id": biz_id, "biz_type": biz_type, "attribute": attribute, "dedup_key": dedup_key,
            "tenant": tenant, "priority": priority,
        }  # fmt: skip
        wanted = check_debounce(
            self._clock.wall_ms(), self.settings.limits, quiet, max_wait, fields
        )
        done = debounce(self._open_connections(), wanted)
        return done.as_scheduled if details else done.job_id

    # ---- look

    def get(self, job_id: int) -> Job | None:
        """The job as the database has it now; None when there is no such job."""
        state = self._open_connections()
        job = state.jobs.get(check_job_id(job_id))
        if job is not None and is_countdown_key(job.dedup_key):
            return replace(job, _countdown=read_countdown(state.databases, job))
        return job

    def wait(self, job_id: int, timeout: float | timedelta = 30.0) -> Job | None:
        """Waits until a job has ended; returns it, with its `result`. None: there is no such job.

        `timeout`: seconds, or a timedelta, up to `limits.wait_s` (default 60 s). When it is over, the job is
        returned as it is: `job.status.live` is True then, and `job.last_progress` may say how far it is. The
        row is read again after pauses that grow to 1 s, and at once when a worker of this process has settled
        the job. Do not wait in a handler: it keeps a thread of the worker.

        Raises InvalidInput, Overloaded (`limits.waiters` calls wait in this process), StoreUnavailable.
        """
        limits = self.settings.limits
        check_job_id(job_id)
        return wait_for_end(
            job_id, check_timeout(timeout, limits), lambda: self.get(job_id), limits.waiters
        )

    def find(
        self,
        biz_id: int | str,
        biz_type: str | None = None,
        *,
        tenant: str | None = None,
        dedup_key: str | None = None,
        limit: int | None = None,
        before: int | None = None,
    ) -> list[Job]:
        """Jobs of a business id, live and ended, newest first.

        limit: the most jobs to return, up to `limits.find` (the default). before: only jobs that were made
        before this job_id: the last one of the page before.
        """
        most = self.settings.limits.find
        limit = most if limit is None else check_integer("limit", limit, 1, most)
        if before is not None:
            check_job_id(before)
        check_dedup_key(dedup_key)
        state = self._open_connections()
        business = check_business_id(biz_id, tenant)
        type_no = None
        if biz_type is not None:
            home = state.database_of_business(business)
            type_no = state.database_metadata.types.find_number(check_biz_type(biz_type), home)
            if type_no is None:
                return []
        shard = state.shard_of_business(business)
        found = state.jobs.find(shard, business, type_no, limit, dedup_key, before)
        read = CountdownReader(state.databases)  # at the first use: there may be many
        return [
            replace(job, _countdown=read) if is_countdown_key(job.dedup_key) else job
            for job in found
        ]

    def dead(self, limit: int = 100, biz_type: str | None = None) -> list[DeadJob]:
        """Dead letters, newest first; at most `limit` (up to `limits.find`)."""
        check_integer("limit", limit, 1, self.settings.limits.find)
        if biz_type is not None:
            check_biz_type(biz_type)
        return self._open_connections().jobs.read_dead_letters(limit, biz_type)

    # ---- recurring

    @property
    def recurring(self) -> RecurringVerbs:
        """The recurring schedules: list, get, add, pause, resume, run, backfill, remove."""
        if self._recurring is None:
            # Imported here: the libraries that read rules cost 20 ms, and most clients have no schedules.
            from toc.center.recurring_verbs import RecurringVerbs  # noqa: PLC0415

            self._recurring = RecurringVerbs(lambda: self.settings, self._open_connections)
        return self._recurring

    def recur(
        self,
        name: str,
        *,
        actor: str | None = None,
        reason: str | None = None,
        **options: Unpack[RecurringOptions],
    ) -> Recurring:
        """Declares a recurring schedule, or changes it: one job for each of its nominal times.

        Give one of cron (five fields, as "0 3 * * *"), every (a timedelta, seconds, or "30s") and rrule (RFC
        5545; `start` is its DTSTART). tz: the zone of cron and rrule, default "UTC". biz_type: of the
        jobs, default `name`, which is their business id. attribute: as in `schedule`. start, end: aware
        datetimes; no job before or after; every counts from start (default 1970 UTC).

        gap: "skip" (default) leaves out wall times that daylight saving skips, "next" takes the end of
        the gap. Wall times that a clock shows twice count once. overlap: for a time at which the job
        before still lives: "skip" (default) leaves it out, "queue" makes it afterwards, "cancel-other"
        cancels the job before. catch_up: a time older than this is not made, and a job that has not begun
        by then is cancelled (default an hour, 10 s to 30 days). jitter: each job is due up to so much
        after its time (default 0, up to a day). priority: of each job, as in `schedule`.

        A change cancels the job that has not begun; what has begun goes on. The same call again changes
        nothing. Raises InvalidInput, StoreUnavailable.
        """
        return self.recurring.add(name, actor=actor, reason=reason, **options)

    # ---- types

    @property
    def types(self) -> TypeVerbs:
        """The declared types: declare, set, forget, get, list."""
        # Imported here: most clients change no types.
        from toc.center.type_verbs import TypeVerbs  # noqa: PLC0415

        return TypeVerbs(self._open_connections)

    def every(
        self,
        when: str | timedelta | float,
        *,
        tz: str = "UTC",
        name: str | None = None,
        attribute: dict[str, Any] | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        gap: Gap = "skip",
        overlap: Overlap = "skip",
        catch_up: timedelta | float | str = 3600,
        jitter: timedelta | float | str = 0,
        priority: int = 0,
    ) -> Callable[[E], E]:
        """Declares a recurring schedule that the decorated function runs; see `Registry.every`."""
        return self._handlers.every(
            when, tz=tz, name=name, attribute=attribute, start=start, end=end, gap=gap,
            overlap=overlap, catch_up=catch_up, jitter=jitter, priority=priority,
        )  # fmt: skip

    # ---- handlers

    def complete(self, job: Job, transaction: AnySession | Connection) -> bool:
        """For handlers: ends the job in the handler's own transaction, so that its effect happens once.

        True: the job is done when this transaction commits; write the effect in it. False: the job
        is done already, by an earlier run or by an earlier call in this run; write nothing. `job` is what the
        handler was given.
        `transaction`: an ORM session (or scoped_session) or a Core connection that reaches the job's
        database and does not commit each statement by itself. From here to its end the job's row is
        locked, and a claim that meets it waits: nothing slow in between.

        Raises ClaimLost when the job has been taken from this run (let it go through: nothing must be
        committed), NotFound when it has been deleted, InvalidInput, WrongDatabase, StoreUnavailable.
        """
        if job.token is None:
            raise InvalidInput("job", job, "must be a job that a handler was given")
        connection = connection_of_transaction(transaction)
        state = self._open_connections()
        return complete_in_transaction(state.databases, state.database_metadata, job, connection)

    @overload
    def handler(
        self,
        biz_type: str = "default",
        *,
        timeout: float = 30.0,
        max_attempts: int = 16,
        retry: RetryPolicy | RetryName | Sequence[float] | None = None,
        codec: str | None = None,
        batch: None = None,
        batch_wait: None = None,
    ) -> Callable[[F], F]: ...

    @overload
    def handler(
        self,
        biz_type: str = "default",
        *,
        timeout: float = 30.0,
        max_attempts: int = 16,
        retry: RetryPolicy | RetryName | Sequence[float] | None = None,
        codec: str | None = None,
        batch: int,
        batch_wait: float | None = None,
    ) -> Callable[[B], B]: ...

    @overload
    def handler(
        self,
        biz_type: str,
        *,
        payload: Callable[P, M],
        timeout: float = 30.0,
        max_attempts: int = 16,
        retry: RetryPolicy | RetryName | Sequence[float] | None = None,
        codec: str | None = None,
    ) -> Callable[[PayloadFunction[M]], TypedHandler[P, M]]: ...

    def handler(
        self,
        biz_type: str = "default",
        *,
        payload: Callable[..., Any] | None = None,
        timeout: float = 30.0,
        max_attempts: int = 16,
        retry: RetryPolicy | RetryName | Sequence[float] | None = None,
        codec: str | None = None,
        batch: int | None = None,
        batch_wait: float | None = None,
    ) -> Callable[[Any], Any]:
        """Registers a handler; see `Registry.handler`. With `payload`, its `schedule` uses this client."""
        options: dict[str, Any] = {"batch": batch, "batch_wait": batch_wait, "codec": codec}
        if payload is not None:
            options |= {"payload": payload, "client": self}
        return self._handlers.handler(
            biz_type, timeout=timeout, max_attempts=max_attempts, retry=retry, **options
        )

    @property
    def hooks(self) -> Hooks:
        """The hooks around schedule and run, of the registry of this client."""
        return self._handlers.hooks

    # ---- life

    @property
    def settings(self) -> Settings:
        """The settings in force; read at the first use. Raises SettingsError."""
        if self._settings is None:
            self._settings = load_settings()
        return self._settings

    def close(self) -> None:
        """Disconnects. The next call connects again."""
        with self._lock:
            state, self._state = self._state, None
        if state is not None:
            state.close()

    def __enter__(self) -> TimeoutCenter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- inside

    def _open_connections(self) -> Connections:
        state = self._state
        if state is None:
            with self._lock:
                state = self._state
                if state is None:
                    actor = self._actor or process_name()
                    state = self._state = Connections(
                        self.settings, self._clock, actor, self._handlers
                    )
        return state

    def _check_job(
        self,
        biz_id: object,
        action_time: object,
        *,
        biz_type: object = "default",
        on_duplicate: object = "keep",
        attribute: object = None,
        dedup_key: object = None,
        tenant: object = None,
        trace: object = None,
        priority: object = 0,
        actor: object = None,
    ) -> CheckedJob:
        self._check_on_duplicate(on_duplicate)
        if actor is not None:
            check_actor(actor)
        fields = {
            "biz_id": biz_id, "action_time": action_time, "biz_type": biz_type,
            "attribute": attribute, "dedup_key": dedup_key, "tenant": tenant, "trace": trace,
            "priority": priority,
        }  # fmt: skip
        limit = self.settings.limits.attribute_bytes
        return check_job_fields(self._clock.wall_ms(), limit, fields, "default")

    def _check_jobs(
        self,
        jobs: Iterable[JobSpec | tuple[int | str, When]],
        biz_type: str,
        on_duplicate: OnDuplicate,
    ) -> list[CheckedJob]:
        self._check_on_duplicate(on_duplicate)
        now_ms, limits = self._clock.wall_ms(), self.settings.limits
        wanted = []
        for position, job in enumerate(jobs):
            if position >= limits.schedule_many:
                rule = f"must be at most {limits.schedule_many} jobs per call"
                raise InvalidInput("jobs", f"more than {limits.schedule_many}", rule)
            wanted.append(check_job_spec(now_ms, limits.attribute_bytes, position, job, biz_type))
        if wanted:
            state = self._open_connections()
            first = state.database_of_business(wanted[0].business)
            others = (each for each in state.databases if each is not first)
            state.payload_checks.check_jobs([first, *others], wanted)
        return wanted

    def _prepare_bulk(
        self,
        wanted: Sequence[CheckedJob],
        on_duplicate: OnDuplicate,
        actor: str | None = None,
    ) -> BulkSchedule:
        state = self._open_connections()
        return BulkSchedule(state, wanted, on_duplicate, self._second_writer, actor)

    def _write_checked_jobs(
        self, wanted: Sequence[CheckedJob], on_duplicate: OnDuplicate, actor: str | None = None
    ) -> list[Scheduled | Exception]:
        """As `schedule_each`, with jobs whose arguments and payloads are checked already."""
        hooked = begin_schedule(self._handlers.hooks, wanted)
        if hooked is not None:
            wanted = hooked.jobs
        state = self._open_connections()
        by_database: dict[int, list[int]] = defaultdict(list)
        for position, job in enumerate(wanted):
            by_database[state.database_of_business(job.business).index].append(position)
        writer = EachSchedule(
            lambda part: self._prepare_bulk(part, on_duplicate, actor),
            lambda job: state.shard_of_business(job.business),
        )
        results: dict[int, InsertResult | Exception] = {}
        failure: BaseException | None = None
        try:
            for positions in by_database.values():
                written = writer.write_jobs([wanted[position] for position in positions])
                results.update(zip(positions, written, strict=True))
        except BaseException as error:
            failure = error
            raise
        finally:
            if hooked is not None:
                hooked.end([results.get(each) for each in range(len(wanted))], failure)
        found = [results[position] for position in range(len(wanted))]
        return [each if isinstance(each, Exception) else each.as_scheduled for each in found]

    @staticmethod
    def _check_on_duplicate(value: object) -> None:
        if value not in ON_DUPLICATE:
            rule = f"must be one of {', '.join(map(repr, ON_DUPLICATE))}"
            raise InvalidInput("on_duplicate", value, rule)


def _check_words(reason: object, actor: object) -> None:
    check_reason(reason)
    if actor is not None:
        check_actor(actor)
