"""TimeoutCenter: the verbs that a business calls."""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Required, TypedDict, overload

from sqlalchemy import Connection

from toc.center.after_commit import after_commit, connection_of_transaction, transaction_to_join
from toc.center.reminder_queue import ReminderQueue
from toc.center.targets import JobTarget
from toc.domain.biz_ids import BusinessId, check_business_id
from toc.domain.ids import IdFactory, check_job_id, gene_of
from toc.domain.job import Answer, DeadJob, Job, NewJob, Scheduled
from toc.domain.limits import (
    attribute_json,
    check_actor,
    check_biz_type,
    check_dedup_key,
    check_reason,
)
from toc.domain.policy import RetryPolicy
from toc.domain.routing import hash_of
from toc.domain.times import action_ms
from toc.errors import (
    InvalidInput,
    PartlyScheduled,
    SchemaMismatch,
    StatementFailed,
    StoreUnavailable,
    TocError,
)
from toc.handlers.registry import F, Registry, registry
from toc.runtime import metrics
from toc.runtime.clock import Clock, ServerTime, SystemClock
from toc.runtime.process import process_name
from toc.runtime.settings import Settings, load_settings
from toc.store.catalogue import Catalogue
from toc.store.databases import Database, Databases
from toc.store.external_transaction import complete
from toc.store.jobs import InsertResult, Jobs, OnDuplicate
from toc.store.schema_check import check_databases
from toc.timer.reminder import Reminder

if TYPE_CHECKING:
    from toc.center.after_commit import AnySession
    from toc.timer.reminders import Reminders

When = datetime | timedelta

TIME_AGE_S_MAX = 60.0
PAUSED_S_MAX = 1.0  # this machine was paused, or its clock was set: the databases are asked again
SLOW_S = 0.2
BULK_ROWS = 5000  # rows per transaction of schedule_many
STOP_S = 5.0


class JobSpec(TypedDict, total=False):
    """One job for `schedule_many`; biz_id and action_time are required."""

    biz_id: Required[int | str]
    action_time: Required[When]
    biz_type: str
    attribute: dict[str, Any] | None
    dedup_key: str | None
    tenant: str | None


_FIELDS = JobSpec.__annotations__.keys()


class _CheckedJob(NamedTuple):
    """The checked arguments of one job to schedule."""

    business: BusinessId
    biz_type: str
    action_time: When
    due_ms: int | None  # None: action_time is counted from the database's time
    attribute: str | None  # JSON text
    dedup_key: str | None


class _Connections(NamedTuple):
    """The connections and caches of a center while it is connected."""

    databases: Databases
    catalogue: Catalogue
    jobs: Jobs
    ids: IdFactory
    now: Mapping[int, ServerTime]  # each database's: what its jobs' times are counted from
    time: ServerTime  # Redis': what is near by it is armed
    reminder_queue: ReminderQueue | None

    @property
    def reminders(self) -> Reminders | None:
        return None if self.reminder_queue is None else self.reminder_queue.reminders


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
        self._state: _Connections | None = None
        center = weakref.ref(self)

        def forget_connections() -> None:
            # A child process must not use its parent's sockets. It connects again at the next call.
            found = center()
            if found is not None:
                found._lock, found._state = threading.RLock(), None  # noqa: SLF001 - ourselves

        os.register_at_fork(after_in_child=forget_connections)

    # ---- schedule

    @overload
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
        details: Literal[False] = False,
    ) -> int: ...

    @overload
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
        details: Literal[True],
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
        attribute: a dict that is JSON, at most `limits.attribute_bytes`. dedup_key: with a key ("" is
        one) there is one live job per (tenant, biz_id, biz_type, key); None (default): no such rule.
        on_duplicate says what happens when a live job holds the key: "keep" returns the holder's id,
        "replace" gives the holder the new time and attribute, "error" raises.

        details: True returns a `Scheduled` instead of the job_id: whether the job was inserted, replaced or
        kept, and whether the one that was kept runs already, so that it will not act on this wish.

        session: an ORM session (or a scoped_session: this thread's) whose transaction the job joins; it
        is timed after the commit. Its connection must reach the shard's database server, and must not
        commit each statement by itself. For an AsyncSession: `await a.run_sync(lambda s: schedule(...,
        session=s))`. connection: the same with a Core connection; call `place(job_id)` after your commit
        (else the loader or scanner finds it). On SQLite, which has one writer, other changing calls of
        this thread are refused until that transaction has ended.

        Raises InvalidInput (nothing written), DuplicateJob ("error", or "replace" of a running
        job), WrongDatabase, StoreUnavailable (may have been written: use a dedup_key to repeat it).
        """
        self._check_on_duplicate(on_duplicate)
        wanted = self._check_job(biz_id, action_time, biz_type, attribute, dedup_key, tenant)
        own, joined = transaction_to_join(session, connection)
        state = self._connected()
        home = self._database_of_business(state, wanted.business)
        new = self._make_new_jobs(state, home, [wanted])
        inserted = state.jobs.insert(new, on_duplicate, joined)[0]  # guard: commit-before-arm
        metrics.SCHEDULED.inc(inserted.written)
        if inserted.written and state.reminder_queue is not None:
            topic = self.settings.topic_of(biz_type)
            placed = [(topic, Reminder(inserted.due_ms, inserted.job_id))]
            if own is not None:
                after_commit(own, placed, state.reminder_queue.place)
            elif joined is None:
                state.reminder_queue.place(placed)
        return inserted.details if details else inserted.job_id

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

        Each is a dict with the names of `schedule`'s arguments, or a pair (biz_id, action_time);
        `biz_type` is for those that name none. All are checked before any is written. One INSERT per
        shard and one transaction per database for every 5,000 jobs, one reminder per slot.

        A database that does not answer costs only its own jobs. Raises as `schedule` does;
        PartlyScheduled (with the ids) when some were written and others not.
        """
        self._check_on_duplicate(on_duplicate)
        wanted = [
            self._check_spec(position, job, biz_type)
            for position, job in enumerate(self._limit_count(jobs))
        ]
        state = self._connected()
        failed: dict[int, TocError] = {}
        news = self._make_new_jobs_by_position(state, wanted, failed)
        done: list[InsertResult | None] = [None] * len(wanted)
        try:
            for start in range(0, len(wanted), BULK_ROWS):
                chunk = range(start, min(start + BULK_ROWS, len(wanted)))
                for position, inserted in self._insert_chunk(
                    state, wanted, news, chunk, on_duplicate, failed
                ):
                    done[position] = inserted
            if failed:
                raise next(iter(failed.values()))
        except TocError as error:
            if not any(done):
                raise
            ids = [None if it is None else it.job_id for it in done]
            raise PartlyScheduled(ids, error) from error
        if details:
            return [it.details for it in done if it is not None]
        return [it.job_id for it in done if it is not None]

    def place(self, *job_ids: int) -> None:
        """Times jobs that were scheduled with `connection=`, after that transaction's commit."""
        state = self._connected()
        for job_id in job_ids:
            job = self.get(job_id)
            if job is not None and job.due_ms is not None:
                self._arm_if_near(state, job.biz_type, Reminder(job.due_ms, job.job_id))

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
    ) -> Answer:
        """Cancels a job, or all live jobs of a business id and type (and key). Final (I3).

        biz_type: "default" unless one is given, as in `schedule`; None: of all types, as in `find`.

        Returns "cancelled", which is true: no handler runs, and none will start (one may have run before,
        and failed). Otherwise the job's current status, which is false: "running", "done",
        "already_cancelled", "dead"; or "unknown", perhaps with a `.hint`. `.job_id` is the job, `.attempts`
        how often it was tried. For several jobs: "cancelled" only if this call cancelled all of them.
        `reason`: for the job's events.
        """
        check_reason(reason)
        target = JobTarget.checked(job_id, biz_id, biz_type, dedup_key, tenant)
        state = self._connected()
        answers = [state.jobs.cancel(found, reason) for found in self._find_ids(state, target)]
        # Something that was out of reach outweighs what was reached.
        worst = next((it for it in answers if not it.ok), answers[0] if answers else None)
        return self._answer_unknown(state, target) if worst in (None, "unknown") else worst

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
    ) -> Answer:
        """Moves a pending job to another time. By id, or by business key (one live job must match).

        Returns "rescheduled", which is true; otherwise the job's current status, which is false. Arguments
        and answers are as in `cancel`. Attempts start anew.
        `reason`: for the job's events.
        """
        check_reason(reason)
        if isinstance(job_id, (datetime, timedelta)) and action_time is None:
            job_id, action_time = None, job_id
        if action_time is None:
            raise InvalidInput("action_time", None, "must be an aware datetime or a timedelta")
        action_ms(action_time, self._clock.wall_ms())  # refused, if it is, before anything is asked
        target = JobTarget.checked(job_id, biz_id, biz_type, dedup_key, tenant)
        state = self._connected()
        ids = self._find_ids(state, target)
        if len(ids) > 1:
            raise InvalidInput(
                "biz_id", biz_id, f"{len(ids)} live jobs match: give dedup_key or job_id"
            )
        if not ids:
            return self._answer_unknown(state, target)
        due_ms = action_ms(
            action_time, self._database_now_ms(state, self._database_of_job(state, ids[0]))
        )
        answer = state.jobs.reschedule(ids[0], due_ms, reason)
        if answer == "unknown":
            return self._answer_unknown(state, target)
        if answer.ok and answer.job_id is not None:  # perhaps a copy of that job
            self._arm_changed_job(state, answer.job_id, due_ms)
        return answer

    def redrive(self, job_id: int, *, reason: str | None = None) -> Answer:
        """Gives a dead job a new life, due now. Returns "redriven"; "superseded"; otherwise its status."""
        check_reason(reason)
        target = JobTarget.checked(job_id)
        state = self._connected()
        now_ms = self._database_now_ms(state, self._database_of_job(state, job_id))
        answer = state.jobs.redrive(job_id, now_ms, reason)
        if answer == "unknown":
            return self._answer_unknown(state, target)
        if answer.ok:
            self._arm_changed_job(state, job_id, now_ms)
        return answer

    # ---- look

    def get(self, job_id: int) -> Job | None:
        """The job as the database has it now; None when there is none."""
        return self._connected().jobs.get(check_job_id(job_id))

    def find(
        self, biz_id: int | str, biz_type: str | None = None, *, tenant: str | None = None
    ) -> list[Job]:
        """Jobs of a business id, live and ended, newest first (at most `limits.find`)."""
        state = self._connected()
        business = check_business_id(biz_id, tenant)
        shard = self.settings.routing.shard(hash_of(business.number))
        type_no = None
        if biz_type is not None:
            home = self._database_of_business(state, business)
            type_no = state.catalogue.types.find_number(check_biz_type(biz_type), home)
            if type_no is None:
                return []
        return state.jobs.find(shard, business, type_no, self.settings.limits.find)

    def dead(self, limit: int = 100, biz_type: str | None = None) -> list[DeadJob]:
        """Dead letters, newest first; at most `limit` (up to `limits.find`)."""
        most = self.settings.limits.find
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
            raise InvalidInput("limit", limit, f"must be an integer from 1 to {most}")
        if biz_type is not None:
            check_biz_type(biz_type)
        return self._connected().jobs.dead_letters(limit, biz_type)

    # ---- handlers

    def complete(self, job: Job, transaction: AnySession | Connection) -> bool:
        """For handlers: ends the job in the handler's own transaction, so that its effect happens once.

        True: the job is done when this transaction commits; write the effect in it. False: an earlier
        run has committed already, or this one has; write nothing. `job` is what the handler was given.
        `transaction`: an ORM session (or scoped_session) or a Core connection that reaches the job's
        database and does not commit each statement by itself. From here to its end the job's row is
        locked, and a claim that meets it waits: nothing slow in between.

        Raises ClaimLost when the job has been taken from this run (let it go through: nothing must be
        committed), NotFound when it has been deleted, InvalidInput, WrongDatabase, StoreUnavailable.
        """
        if job.token is None:
            raise InvalidInput("job", job, "must be a job that a handler was given")
        connection = connection_of_transaction(transaction)
        state = self._connected()
        return complete(state.databases, state.catalogue, job, connection)

    def handler(
        self,
        biz_type: str = "default",
        *,
        timeout: float = 30.0,
        max_attempts: int = 16,
        retry: RetryPolicy | Sequence[float] | None = None,
    ) -> Callable[[F], F]:
        """Registers a handler; see `Registry.handler`."""
        return self._handlers.handler(
            biz_type, timeout=timeout, max_attempts=max_attempts, retry=retry
        )

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
            if state.reminder_queue is not None:
                state.reminder_queue.close(STOP_S)
            state.catalogue.types.close()
            state.databases.close()

    def __enter__(self) -> TimeoutCenter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- inside

    def _connected(self) -> _Connections:
        state = self._state
        if state is None:
            with self._lock:
                state = self._state
                if state is None:
                    state = self._state = self._connect()
        return state

    def _connect(self) -> _Connections:
        settings, clock = self.settings, self._clock
        databases = Databases.from_settings(settings, clock)
        try:
            catalogue = Catalogue(databases)
            check_databases(databases, catalogue, settings.facts)
        except BaseException:
            databases.close()
            raise
        # Random, not secret: two processes should start apart.
        ids = IdFactory(clock.wall_ms, random.randrange(4096))  # noqa: S311
        actor = self._actor or process_name()
        jobs = Jobs(databases, catalogue, lambda gene: ids.draw([gene])[0], actor)
        time = ServerTime(clock)
        arms = None
        if settings.has_timer:
            arms = ReminderQueue(settings, time, clock)
            if "+" in settings.redis_url:  # several hosts: only redis' own parts can check the URL
                _ = arms.reminders
        now = {database.index: ServerTime(clock) for database in databases}
        return _Connections(databases, catalogue, jobs, ids, now, time, arms)

    def _database_of_business(self, state: _Connections, business: BusinessId) -> Database:
        """The database of a business id: calls for this id wait for no other database."""
        return state.databases.of_shard(self.settings.routing.shard(hash_of(business.number)))

    def _database_of_job(self, state: _Connections, job_id: int) -> Database:
        return state.databases.of_shard(self.settings.routing.shard(gene_of(job_id)))

    def _database_now_ms(self, state: _Connections, database: Database) -> int:
        """An estimate of a database's time that is never too low, from an answer within TIME_AGE_S_MAX.

        It is also taken as Redis' time until an arm has answered with that.
        """
        now = state.now[database.index]
        if not now.known or now.age_s > TIME_AGE_S_MAX or now.paused_s > PAUSED_S_MAX:
            asked_s = self._clock.monotonic_s()
            server_ms = database.now_ms()
            now.record_answer(server_ms, asked_s)
            # A slow answer makes this call's jobs late by what it took, and no others.
            now.known = now.age_s < SLOW_S
        now_ms = now.now_ms()
        if not state.time.known or state.time.age_s > TIME_AGE_S_MAX:
            state.time.record_answer(now_ms)
        return now_ms

    def _check_job(
        self,
        biz_id: object,
        action_time: Any,
        biz_type: object,
        attribute: object,
        dedup_key: object,
        tenant: object,
    ) -> _CheckedJob:
        checked_ms = action_ms(action_time, self._clock.wall_ms())
        return _CheckedJob(
            check_business_id(biz_id, tenant),
            check_biz_type(biz_type),
            action_time,
            None if isinstance(action_time, timedelta) else checked_ms,
            attribute_json(attribute, self.settings.limits.attribute_bytes),
            check_dedup_key(dedup_key),
        )

    def _check_spec(self, position: int, job: object, biz_type: str) -> _CheckedJob:
        """Checks one item of `schedule_many`, a pair or a mapping of fields. Raises InvalidInput."""
        if isinstance(job, tuple) and len(job) == 2:
            job = {"biz_id": job[0], "action_time": job[1]}
        if not isinstance(job, Mapping):
            raise InvalidInput(
                f"jobs[{position}]", job, "must be a dict or a pair (biz_id, action_time)"
            )
        unknown = job.keys() - _FIELDS
        missing = {"biz_id", "action_time"} - job.keys()
        if unknown or missing:
            name = min(map(str, unknown or missing))
            rule = "is not a field of a job" if unknown else "is missing"
            raise InvalidInput(f"jobs[{position}].{name}", job.get(name), rule)
        try:
            return self._check_job(
                job["biz_id"],
                job["action_time"],
                job.get("biz_type", biz_type),
                job.get("attribute"),
                job.get("dedup_key"),
                job.get("tenant"),
            )
        except InvalidInput as error:
            raise InvalidInput(f"jobs[{position}].{error.field}", error.value, error.rule) from None

    def _make_new_jobs(
        self, state: _Connections, database: Database, wanted: Sequence[_CheckedJob]
    ) -> list[NewJob]:
        """Jobs of one database, with an id and a type's number each. Asks this database alone."""
        now_ms = self._database_now_ms(state, database)
        names = {job.biz_type for job in wanted}
        number = state.catalogue.types.numbers_or_create(
            names, database, self.settings.limits.biz_types
        )
        ids = state.ids.draw([hash_of(job.business.number) for job in wanted])
        return [
            NewJob(
                job_id,
                job.business.number,
                number[job.biz_type],
                action_ms(job.action_time, now_ms) if job.due_ms is None else job.due_ms,
                job.attribute,
                job.dedup_key,
                job.business.text,
                job.business.tenant,
            )
            for job_id, job in zip(ids, wanted, strict=True)
        ]

    def _make_new_jobs_by_position(
        self, state: _Connections, wanted: Sequence[_CheckedJob], failed: dict[int, TocError]
    ) -> dict[int, NewJob]:
        """position -> job. Adds each database that does not answer to `failed`, and leaves its jobs out."""
        by_database: dict[int, list[int]] = defaultdict(list)
        for position, job in enumerate(wanted):
            by_database[self._database_of_business(state, job.business).index].append(position)
        news: dict[int, NewJob] = {}
        for index, positions in sorted(by_database.items()):
            jobs = [wanted[position] for position in positions]
            try:
                made = self._make_new_jobs(state, state.databases[index], jobs)
            except (StoreUnavailable, SchemaMismatch) as error:
                failed[index] = error
                continue
            news.update(zip(positions, made, strict=True))
        return news

    def _limit_count(self, jobs: Iterable[object]) -> Iterable[object]:
        limit = self.settings.limits.schedule_many
        for position, job in enumerate(jobs):
            if position >= limit:
                raise InvalidInput(
                    "jobs", f"more than {limit}", f"must be at most {limit} jobs per call"
                )
            yield job

    def _insert_chunk(
        self,
        state: _Connections,
        wanted: Sequence[_CheckedJob],
        news: Mapping[int, NewJob],
        chunk: range,
        on_duplicate: OnDuplicate,
        failed: dict[int, TocError],
    ) -> Iterable[tuple[int, InsertResult]]:
        """Inserts a chunk, database by database; yields (position, result).

        A database that fails is added to `failed`, and is not used again.
        """
        by_database: dict[int, list[int]] = defaultdict(list)
        for position in chunk:
            if position in news:
                home = self._database_of_job(state, news[position].job_id)
                by_database[home.index].append(position)
        for database in sorted(by_database.keys() - failed.keys()):
            positions = by_database[database]
            try:
                inserted = state.jobs.insert(
                    [news[position] for position in positions], on_duplicate
                )
            except (StoreUnavailable, StatementFailed, SchemaMismatch) as error:
                failed[database] = error
                continue
            metrics.SCHEDULED.inc(sum(one.written for one in inserted))
            if state.reminder_queue is not None:
                names = {wanted[position].biz_type for position in positions}
                topics = {name: self.settings.topic_of(name) for name in names}
                state.reminder_queue.place(
                    [
                        (topics[wanted[position].biz_type], Reminder(one.due_ms, one.job_id))
                        for position, one in zip(positions, inserted, strict=True)
                        if one.written
                    ]
                )
            yield from zip(positions, inserted, strict=True)

    def _arm_if_near(self, state: _Connections, biz_type: str, reminder: Reminder) -> None:
        if state.reminder_queue is not None:
            self._database_now_ms(state, self._database_of_job(state, reminder.job_id))
            state.reminder_queue.place([(self.settings.topic_of(biz_type), reminder)])

    def _arm_changed_job(self, state: _Connections, job_id: int, due_ms: int) -> None:
        """Arms a job that was changed by id: reads its row first, for the type that decides the topic."""
        job = state.jobs.get(job_id)
        if job is not None:
            self._arm_if_near(state, job.biz_type, Reminder(due_ms, job_id))

    def _find_ids(self, state: _Connections, target: JobTarget) -> list[int]:
        return target.find_ids(state.jobs, state.catalogue, state.databases)

    def _answer_unknown(self, state: _Connections, target: JobTarget) -> Answer:
        limit = self.settings.limits.find
        return target.answer_unknown(
            state.jobs, self.settings.routing, self._clock.wall_ms(), limit
        )

    @staticmethod
    def _check_on_duplicate(value: object) -> None:
        if value not in ("keep", "replace", "error"):
            raise InvalidInput("on_duplicate", value, "must be 'keep', 'replace' or 'error'")
