"""TimeoutCenter: the verbs that a business calls."""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict, TypeVar

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from toc.center.arms import Arms
from toc.center.joined import after_commit
from toc.domain.ids import IdFactory, check_job_id, gene_of
from toc.domain.job import Answer, DeadJob, Job, NewJob
from toc.domain.limits import (
    attribute_json,
    check_actor,
    check_biz_id,
    check_biz_type,
    check_dedup_key,
    check_reason,
)
from toc.domain.policy import RetryPolicy
from toc.domain.routing import hash_of
from toc.domain.times import action_ms
from toc.errors import InvalidInput, PartlyScheduled, SchemaMismatch, StoreUnavailable, TocError
from toc.handlers.registry import Registry, registry
from toc.runtime import metrics
from toc.runtime.clock import Clock, ServerTime, SystemClock
from toc.runtime.process import process_name
from toc.runtime.settings import Settings, load_settings
from toc.store.admission import admit
from toc.store.catalogue import Catalogue
from toc.store.databases import Databases
from toc.store.jobs import Inserted, Jobs, OnDuplicate
from toc.store.once import once
from toc.timer.slots import Entry, Slots

When = datetime | timedelta
F = TypeVar("F", bound=Callable[..., Any])

TIME_AGE_S_MAX = 60.0
BULK_ROWS = 5000  # rows per transaction of schedule_many
STOP_S = 5.0


class JobSpec(TypedDict, total=False):
    """One job for `schedule_many`; biz_id and action_time are required."""

    biz_id: int
    action_time: When
    biz_type: str
    attribute: dict[str, Any] | None
    dedup_key: str | None


_FIELDS = JobSpec.__annotations__.keys()


class _Wanted(NamedTuple):
    """A job as a caller wants it, checked."""

    biz_id: int
    biz_type: str
    due_ms: int
    attribute: str | None  # JSON text
    dedup_key: str | None


class _Open(NamedTuple):
    """What a center holds while it is connected."""

    databases: Databases
    catalogue: Catalogue
    jobs: Jobs
    ids: IdFactory
    now: ServerTime  # the databases': what jobs' times are counted from
    time: ServerTime  # Redis': what is near by it is armed
    slots: Slots | None
    arms: Arms | None


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
        self._state: _Open | None = None
        center = weakref.ref(self)

        def forget() -> None:
            # A child must not use its parent's sockets. It opens its own at the next call.
            found = center()
            if found is not None:
                found._lock, found._state = threading.RLock(), None  # noqa: SLF001 - ourselves

        os.register_at_fork(after_in_child=forget)

    # ---- schedule

    def schedule(
        self,
        biz_id: int,
        action_time: When,
        *,
        biz_type: str = "default",
        attribute: dict[str, Any] | None = None,
        dedup_key: str | None = None,
        on_duplicate: OnDuplicate = "keep",
        session: Session | None = None,
        connection: Connection | None = None,
    ) -> int:
        """Makes sure that the handler of `biz_type` acts on `biz_id` at `action_time`. Returns the job_id.

        When it has returned, the job is as durable as the database's COMMIT.

        biz_id: 0 to 2^64-1; decides the shard. action_time: an aware datetime, or a timedelta from
        now by the databases' clock; rounded up to milliseconds; the past means at once. attribute: a
        dict that is JSON, at most `limits.attribute_bytes`. dedup_key: with a key ("" is one) there is
        one live job per (biz_id, biz_type, key); None (default): no such rule. on_duplicate says what
        happens when a live job holds the key: "keep" returns the holder's id, "replace" gives the
        holder the new time and attribute, "error" raises.

        session: an ORM session whose transaction the job joins; it is timed after the commit. Its
        connection must reach the shard's database server. connection: the same with a Core
        connection; call `place(job_id)` after your commit (else the loader or scanner finds it).

        Raises InvalidInput (nothing written), DuplicateJob ("error", or "replace" of a running
        job), WrongDatabase, StoreUnavailable (may have been written: use a dedup_key to repeat it).
        """
        self._check_duplicate(on_duplicate)
        state = self._opened()
        wanted = self._wanted(
            self._now_ms(state), biz_id, action_time, biz_type, attribute, dedup_key
        )
        new = self._new_jobs(state, [wanted])
        if session is not None and connection is not None:
            raise InvalidInput("connection", connection, "give a session or a connection, not both")
        joined = session.connection() if session is not None else connection
        inserted = state.jobs.insert(new, on_duplicate, joined)[0]
        metrics.SCHEDULED.inc(inserted.written)
        if inserted.written and state.arms is not None:
            topic = self.settings.topic_of(biz_type)
            placed = [(topic, Entry(inserted.due_ms, inserted.job_id))]
            if session is not None:
                after_commit(session, placed, state.arms.place)
            elif connection is None:
                state.arms.place(placed)
        return inserted.job_id

    def schedule_many(
        self,
        jobs: Iterable[JobSpec | tuple[int, When]],
        *,
        biz_type: str = "default",
        on_duplicate: OnDuplicate = "keep",
    ) -> list[int]:
        """Schedules many jobs; returns their ids in the order given.

        Each is a dict with the names of `schedule`'s arguments, or a pair (biz_id, action_time);
        `biz_type` is for those that name none. All are checked before any is written. One INSERT per
        shard and one transaction per database for every 5,000 jobs, one reminder per slot.

        A database that does not answer costs only its own jobs. Raises as `schedule` does;
        PartlyScheduled (with the ids) when some were written and others not.
        """
        self._check_duplicate(on_duplicate)
        state = self._opened()
        now_ms = self._now_ms(state)
        wanted = [
            self._wanted_as(now_ms, position, job, biz_type)
            for position, job in enumerate(self._bounded(jobs))
        ]
        news = self._new_jobs(state, wanted)
        ids: list[int | None] = [None] * len(news)
        failed: dict[int, TocError] = {}
        try:
            for start in range(0, len(news), BULK_ROWS):
                chunk = range(start, min(start + BULK_ROWS, len(news)))
                for position, inserted in self._insert_chunk(
                    state, news, chunk, on_duplicate, failed
                ):
                    ids[position] = inserted.job_id
            if failed:
                raise next(iter(failed.values()))
        except TocError as error:
            if all(job_id is None for job_id in ids):
                raise
            raise PartlyScheduled(ids, error) from error
        return [job_id for job_id in ids if job_id is not None]

    def place(self, *job_ids: int) -> None:
        """Times jobs that were scheduled with `connection=`, after that transaction's commit."""
        state = self._opened()
        for job_id in job_ids:
            job = self.get(job_id)
            if job is not None and job.due_ms is not None:
                self._place(state, job.biz_type, Entry(job.due_ms, job.job_id))

    # ---- change

    def cancel(
        self,
        job_id: int | None = None,
        *,
        biz_id: int | None = None,
        biz_type: str = "default",
        dedup_key: str | None = None,
        reason: str | None = None,
    ) -> Answer:
        """Cancels a job, or all live jobs of a business id and type (and key). Final (I3).

        Answers "cancelled": no handler runs, and none will start (one may have run before, and failed).
        Else what is the case: "running", "done", "already_cancelled", "dead", "unknown" (with `.job_id`,
        and in `.attempts` how often it was tried). For several jobs:
        "cancelled" only when none of them was out of reach. `reason`: for the job's events.
        """
        check_reason(reason)
        state = self._opened()
        answers = [
            state.jobs.cancel(found, reason)
            for found in self._ids_of(state, job_id, biz_id, biz_type, dedup_key)
        ]
        return self._worst(answers, "cancelled")

    def reschedule(
        self,
        job_id: int | When | None = None,
        action_time: When | None = None,
        *,
        biz_id: int | None = None,
        biz_type: str = "default",
        dedup_key: str | None = None,
        reason: str | None = None,
    ) -> Answer:
        """Moves a pending job to another time. By id, or by business key (one live job must match).

        Answers "rescheduled", or what is the case instead (see `cancel`). Attempts start anew.
        `reason`: for the job's events.
        """
        check_reason(reason)
        if isinstance(job_id, (datetime, timedelta)) and action_time is None:
            job_id, action_time = None, job_id
        state = self._opened()
        if action_time is None:
            raise InvalidInput("action_time", None, "must be an aware datetime or a timedelta")
        due_ms = action_ms(action_time, self._now_ms(state))
        ids = self._ids_of(state, job_id, biz_id, biz_type, dedup_key)  # type: ignore[arg-type]
        if len(ids) > 1:
            raise InvalidInput(
                "biz_id", biz_id, f"{len(ids)} live jobs match: give dedup_key or job_id"
            )
        if not ids:
            return Answer("unknown")
        answer = state.jobs.reschedule(ids[0], due_ms, reason)
        if answer == "rescheduled":
            self._place_again(state, ids[0], due_ms)
        return answer

    def redrive(self, job_id: int, *, reason: str | None = None) -> Answer:
        """Gives a dead job a new life, due now. "redriven", "superseded", or what is the case."""
        check_reason(reason)
        state = self._opened()
        now_ms = self._now_ms(state)
        answer = state.jobs.redrive(check_job_id(job_id), now_ms, reason)
        if answer == "redriven":
            self._place_again(state, job_id, now_ms)
        return answer

    # ---- look

    def get(self, job_id: int) -> Job | None:
        """The job as the database has it now; None when there is none."""
        return self._opened().jobs.get(check_job_id(job_id))

    def find(self, biz_id: int, biz_type: str | None = None) -> list[Job]:
        """Jobs of a business id, live and ended, newest first (at most `limits.find`)."""
        state = self._opened()
        biz_id = check_biz_id(biz_id)
        type_no = None
        if biz_type is not None:
            type_no = state.catalogue.known(check_biz_type(biz_type))
            if type_no is None:
                return []
        shard = self.settings.routing.shard(hash_of(biz_id))
        return state.jobs.find(shard, biz_id, type_no, self.settings.limits.find)

    def dead(self, limit: int = 100, biz_type: str | None = None) -> list[DeadJob]:
        """Dead letters, newest first; at most `limit` (up to `limits.find`)."""
        most = self.settings.limits.find
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= most:
            raise InvalidInput("limit", limit, f"must be an integer from 1 to {most}")
        if biz_type is not None:
            check_biz_type(biz_type)
        return self._opened().jobs.dead(limit, biz_type)

    # ---- handlers

    def once(self, job: Job, transaction: Session | Connection) -> bool:
        """For handlers: ends the job in the handler's own transaction, so that its effect happens once.

        True: the job is done when this transaction commits; write the effect in it. False: an earlier
        run has committed already, or this one has; write nothing. `job` is what the handler was given.
        `transaction`: an ORM session or a Core connection that reaches the job's database and does not
        commit by itself. From here to its end the job's row is locked, and a claim that meets it waits:
        nothing slow in between.

        Raises ClaimLost when the job has been taken from this run (let it go through: nothing must be
        committed), NotFound when it has been deleted, InvalidInput, WrongDatabase, StoreUnavailable.
        """
        if job.token is None:
            raise InvalidInput("job", job, "must be a job that a handler was given")
        connection = transaction.connection() if isinstance(transaction, Session) else transaction
        if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
            raise InvalidInput(
                "transaction", transaction, "must not commit each statement by itself"
            )
        state = self._opened()
        return once(state.databases, state.catalogue, job, connection)

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
            if state.arms is not None:
                state.arms.stop(STOP_S)
            if state.slots is not None:
                state.slots.close()
            state.databases.close()

    def __enter__(self) -> TimeoutCenter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- inside

    def _opened(self) -> _Open:
        state = self._state
        if state is None:
            with self._lock:
                state = self._state
                if state is None:
                    state = self._state = self._open()
        return state

    def _open(self) -> _Open:
        settings, clock = self.settings, self._clock
        databases = Databases.of(settings, clock)
        try:
            catalogue = Catalogue(databases)
            admit(databases, catalogue, settings.facts)
        except BaseException:
            databases.close()
            raise
        # Random, not secret: two processes should start apart.
        ids = IdFactory(clock.wall_ms, random.randrange(4096))  # noqa: S311
        actor = self._actor or process_name()
        jobs = Jobs(databases, catalogue, lambda gene: ids.draw([gene])[0], actor)
        time = ServerTime(clock)
        slots = arms = None
        if settings.has_timer:
            slots = Slots(
                settings.redis_url, settings.namespace, clock, timeout_s=settings.connect_timeout_s
            )
            near_s = settings.timer.horizon_s + settings.timer.slack_s
            arms = Arms(
                slots,
                settings.slots_of,
                time,
                clock,
                near_ms=round(near_s * 1000),
                kept_max=settings.timer.arm_retries_max,
            )
        return _Open(databases, catalogue, jobs, ids, ServerTime(clock), time, slots, arms)

    def _now_ms(self, state: _Open) -> int:
        """The databases' time, as they told it lately. Redis' is theirs until an arm tells it."""
        if not state.now.known or state.now.age_s > TIME_AGE_S_MAX:
            state.now.heard(state.databases.now_ms())
        now_ms = state.now.now_ms()
        if not state.time.known or state.time.age_s > TIME_AGE_S_MAX:
            state.time.heard(now_ms)
        return now_ms

    def _wanted(
        self,
        now_ms: int,
        biz_id: object,
        action_time: Any,
        biz_type: object,
        attribute: object,
        dedup_key: object,
    ) -> _Wanted:
        return _Wanted(
            check_biz_id(biz_id),
            check_biz_type(biz_type),
            action_ms(action_time, now_ms),
            attribute_json(attribute, self.settings.limits.attribute_bytes),
            check_dedup_key(dedup_key),
        )

    def _wanted_as(self, now_ms: int, position: int, job: object, biz_type: str) -> _Wanted:
        """What one of many says, as a pair or as a mapping of fields."""
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
            return self._wanted(
                now_ms,
                job["biz_id"],
                job["action_time"],
                job.get("biz_type", biz_type),
                job.get("attribute"),
                job.get("dedup_key"),
            )
        except InvalidInput as error:
            raise InvalidInput(f"jobs[{position}].{error.field}", error.value, error.rule) from None

    def _new_jobs(self, state: _Open, wanted: Sequence[_Wanted]) -> list[NewJob]:
        """With an id and a type's number each."""
        names = dict.fromkeys(job.biz_type for job in wanted)
        number = {name: state.catalogue.number(name) for name in names}
        ids = state.ids.draw([hash_of(job.biz_id) for job in wanted])
        return [
            NewJob(job_id, biz_id, number[biz_type], due_ms, attribute, dedup_key)
            for job_id, (biz_id, biz_type, due_ms, attribute, dedup_key) in zip(
                ids, wanted, strict=True
            )
        ]

    def _bounded(self, jobs: Iterable[object]) -> Iterable[object]:
        limit = self.settings.limits.schedule_many
        for position, job in enumerate(jobs):
            if position >= limit:
                raise InvalidInput(
                    "jobs", f"more than {limit}", f"must be at most {limit} jobs per call"
                )
            yield job

    def _insert_chunk(
        self,
        state: _Open,
        news: Sequence[NewJob],
        chunk: range,
        on_duplicate: OnDuplicate,
        failed: dict[int, TocError],
    ) -> Iterable[tuple[int, Inserted]]:
        """What was inserted, database by database. One that fails joins `failed`: not asked again."""
        routing = self.settings.routing
        by_database: dict[int, list[int]] = defaultdict(list)
        for position in chunk:
            by_database[routing.database(routing.shard(gene_of(news[position].job_id)))].append(
                position
            )
        for database in sorted(by_database.keys() - failed.keys()):
            positions = by_database[database]
            try:
                inserted = state.jobs.insert(
                    [news[position] for position in positions], on_duplicate
                )
            except (StoreUnavailable, SchemaMismatch) as error:
                failed[database] = error
                continue
            metrics.SCHEDULED.inc(sum(one.written for one in inserted))
            if state.arms is not None:
                topics = {no: self._topic_of(state, no) for no in {job.type_no for job in news}}
                state.arms.place(
                    [
                        (topics[news[position].type_no], Entry(one.due_ms, one.job_id))
                        for position, one in zip(positions, inserted, strict=True)
                        if one.written
                    ]
                )
            yield from zip(positions, inserted, strict=True)

    def _topic_of(self, state: _Open, type_no: int) -> str:
        return self.settings.topic_of(state.catalogue.name(type_no))

    def _place(self, state: _Open, biz_type: str, entry: Entry) -> None:
        if state.arms is not None:
            self._now_ms(state)
            state.arms.place([(self.settings.topic_of(biz_type), entry)])

    def _place_again(self, state: _Open, job_id: int, due_ms: int) -> None:
        """After a change by id: the type, which names the topic, is in the row."""
        job = state.jobs.get(job_id)
        if job is not None:
            self._place(state, job.biz_type, Entry(due_ms, job_id))

    def _ids_of(
        self,
        state: _Open,
        job_id: int | None,
        biz_id: int | None,
        biz_type: str,
        dedup_key: str | None,
    ) -> list[int]:
        """The job asked for: by id, or the live ones of a business key (else its newest ended one)."""
        if job_id is not None and biz_id is not None:
            raise InvalidInput("biz_id", biz_id, "give job_id or biz_id, not both")
        if job_id is not None:
            return [check_job_id(job_id)]
        if biz_id is None:
            raise InvalidInput("job_id", None, "give job_id, or biz_id and biz_type")
        biz_id = check_biz_id(biz_id)
        check_dedup_key(dedup_key)
        type_no = state.catalogue.known(check_biz_type(biz_type))
        if type_no is None:
            return []
        shard = self.settings.routing.shard(hash_of(biz_id))
        live = state.jobs.live_ids(shard, biz_id, type_no, dedup_key)
        if live:
            return live
        return [job.job_id for job in state.jobs.find(shard, biz_id, type_no, 1, dedup_key)]

    @staticmethod
    def _worst(answers: Sequence[Answer], wanted: str) -> Answer:
        if not answers:
            return Answer("unknown")
        # Something that was out of reach outweighs what was reached.
        return next((answer for answer in answers if answer != wanted), answers[0])

    @staticmethod
    def _check_duplicate(value: object) -> None:
        if value not in ("keep", "replace", "error"):
            raise InvalidInput("on_duplicate", value, "must be 'keep', 'replace' or 'error'")
