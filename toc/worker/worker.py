"""The worker behind the sink: how much it takes, what it claims, what becomes of each id."""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from toc.domain.job import Job
from toc.domain.limits import attribute_of
from toc.domain.policy import UNHANDLED_MS
from toc.errors import NotFound, SchemaMismatch, StoreUnavailable, is_away
from toc.handlers.registry import HandlerSpec, Registry
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.seldom import Seldom
from toc.runtime.service import stop_all
from toc.runtime.settings import WorkerSettings
from toc.runtime.sink import Batch
from toc.store.catalogue import Catalogue
from toc.store.claims import Claims, Kind, Outcome, Seen
from toc.store.databases import Databases
from toc.timer.slots import Entry, Slots
from toc.worker.acks import Acks
from toc.worker.fate import Fate, fate_of
from toc.worker.judge import judge
from toc.worker.pool import HandlerPool
from toc.worker.room import Room
from toc.worker.run import Ended, Run
from toc.worker.settle import Settler
from toc.worker.suspects import ALONE, LOST_LEASE, Suspect, SuspectLane

log = logging.getLogger(__name__)

PUT_BACK_MS_MIN = 1000  # a row that is not ours is not looked at again sooner (clocks may disagree)
LAST_RESORT_S = 60.0  # the next try of a job whose verdict or retry policy cannot be read
DOWN_S = 3.0  # a database that did not answer is not asked for this long

_fired = cache(metrics.FIRED.labels)
_TIMER_STAGE = metrics.STAGE.labels("timer")
_DATABASE_STAGE = metrics.STAGE.labels("database")
_QUEUE_STAGE = metrics.STAGE.labels("queue")
_HANDLER_STAGE = metrics.STAGE.labels("handler")


class Worker:
    """Runs the handlers of a registry. Implements `runtime.sink.Sink`.

    `name` identifies the process ("host:pid"); each claim's token adds a random incarnation and a
    number, so that no token ever stands for two claims. `restart_wanted` is called when too many
    handlers are stuck. `slots` is None where there is no timer. `near_ms` (horizon + slack): what is
    due later than that from now is not put back into Redis; the loader brings it in its time (I6).
    """

    def __init__(
        self,
        name: str,
        databases: Databases,
        catalogue: Catalogue,
        slots: Slots | None,
        slots_of: Callable[[str], int],
        topic_of: Callable[[str], str],
        near_ms: int,
        registry: Registry,
        clock: Clock,
        rng: random.Random,
        settings: WorkerSettings,
        restart_wanted: Callable[[], None],
    ) -> None:
        self._databases, self._catalogue = databases, catalogue
        self._near_ms = near_ms
        self._topic_of = topic_of
        self._registry, self._clock, self._rng, self._settings = registry, clock, rng, settings
        self.identity = f"{name[:60]}:{rng.getrandbits(48):012x}"
        """This process, unlike any before and after it: what its tokens and its cluster member begin with."""
        self._sequence = itertools.count(1)
        self._specs = {catalogue.number(spec.biz_type): spec for spec in registry}
        allowance_ms = round(settings.lease_allowance_s * 1000)
        every = registry.takes_all
        self._claims = Claims(
            databases,
            {no: round(spec.timeout_s * 1000) + allowance_ms for no, spec in self._specs.items()},
            None if every is None else round(every.timeout_s * 1000) + allowance_ms,
        )
        self._room = Room(
            clock,
            len(databases.all),
            least=settings.concurrency,
            most=settings.queue_max,
        )
        self._held = False
        self._stopping = False
        self._down_until_s: dict[int, float] = {}
        self._seldom = Seldom(log)
        self._pool = HandlerPool(
            clock,
            self._may_start,
            self._finish,
            restart_wanted,
            threads=settings.concurrency,
            async_tasks=settings.async_concurrency,
            stuck_max=settings.stuck_max,
        )
        self._acks = Acks(
            slots, slots_of, clock, batch_max=settings.settle_max, queue_max=settings.queue_max
        )
        self._settlers = [
            Settler(
                database,
                self._claims,
                self._acks,
                self._released,
                self._back_in_time,
                clock,
                batch_max=settings.settle_max,
                wait_ms=settings.settle_wait_ms,
            )
            for database in databases
        ]
        self._suspects = SuspectLane(self, clock)

    # ---- life

    def start(self) -> None:
        self._pool.start()
        self._acks.start()
        for settler in self._settlers:
            settler.start()
        self._suspects.start()

    def stop(self, timeout_s: float) -> bool:
        """Gives back what has not started, waits for what runs, settles it. True when all is settled.

        The caller has stopped whoever offers. What still runs after `timeout_s` is left to its lease.
        """
        self._stopping = True  # from here on `_may_start` gives queued jobs back
        self._suspects.stop()
        self._pool.drain()
        deadline_s = self._clock.monotonic_s() + timeout_s
        while self.in_flight and self._clock.monotonic_s() < deadline_s:
            self._clock.sleep_s(0.02)
        clean = self.in_flight == 0
        if not clean:
            log.warning("%d jobs are left to their leases", self.in_flight)
        self._pool.close()
        flush_s = self._clock.monotonic_s() + 2.0
        while any(s.pending for s in self._settlers) and self._clock.monotonic_s() < flush_s:
            self._clock.sleep_s(0.02)
        stop_all(self._settlers, 5.0)
        self._acks.stop(5.0)
        return clean

    def on_room(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when there is room again after `take_room` said that there is none."""
        self._room.on_room(listener)

    @property
    def in_flight(self) -> int:
        """Jobs claimed and not settled."""
        return self._room.in_flight

    @property
    def quiet(self) -> bool:
        """Nothing runs but handlers that hang, and no offer is under way.

        What only waits to be settled has run: a process that dies now takes no start with it.
        """
        # In this order: what moves on between two looks (reserved, in flight, ended) is seen twice or
        # taken for running, never overlooked.
        busy = self._room.reserved
        busy += self._room.in_flight
        ended = sum(settler.pending for settler in self._settlers)
        return busy <= ended + self._pool.stuck

    @property
    def stuck(self) -> int:
        return self._pool.stuck

    def stuck_beside(self, job_id: int) -> bool:
        """Whether a handler of another job hangs."""
        return not self._pool.stuck_jobs <= {job_id}

    @property
    def types(self) -> Sequence[int] | None:
        """The type numbers that this worker handles; None: all."""
        return None if self._registry.takes_all else list(self._specs)

    # ---- the sink

    def take_room(self, database: int, wanted: int) -> int:
        """Reserves room: as much as can be claimed such that none waits long for a thread (I8)."""
        if self._stopping or self._held or self._is_down(database):
            return 0
        taken = self._room.take(database, wanted, waiting=self._pool.waiting)
        if taken and self._held:
            # Held since the look above: `quiet` may have been asked before the reservation.
            self._room.give(database, taken)
            return 0
        return taken

    def give_room(self, database: int, taken: int) -> None:
        self._room.give(database, taken)

    def offer(self, database: int, batch: Batch) -> int:
        """Claims ids and queues those that are ours. Raises StoreUnavailable after putting them back."""
        if self._is_down(database):
            self._put_back_all(batch)
            return 0
        try:
            return self._claim(database, batch)
        except Exception as error:
            if isinstance(error, SchemaMismatch) or is_away(error):
                self._down_until_s[database] = self._clock.monotonic_s() + DOWN_S
                self._put_back_all(batch)
                raise
            # A table that is broken must not cost the other shards of the batch their time.
            log.exception("claiming %d shards of database %d failed", len(batch.ids), database)
            return sum(
                self._claim_alone(database, replace(batch, ids={shard: ids}))
                for shard, ids in batch.ids.items()
            )

    def _claim(self, database: int, batch: Batch) -> int:
        token = f"{self.identity}:{next(self._sequence)}"
        asked_s = self._clock.monotonic_s()
        seen = self._claims.claim(self._databases[database], batch.ids, token, batch.time_ms)
        return self._sort_out(database, batch, seen, token, asked_s)

    def _claim_alone(self, database: int, batch: Batch) -> int:
        """One shard of a batch; its ids stay out, and come back, when it cannot be claimed."""
        try:
            return self._claim(database, batch)
        except Exception as error:
            if is_away(error):
                raise
            log.exception("claiming shard %s failed", *batch.ids)
            metrics.SERVICE_ERRORS.labels("toc-worker").inc()
            return 0

    def _sort_out(
        self, database: int, batch: Batch, seen: Mapping[int, Seen], token: str, asked_s: float
    ) -> int:
        """Acts on every id by its fate; returns how many are to be run."""
        gone: list[int] = []
        later: list[Entry] = []
        runs: list[Run] = []
        now_ms = batch.time_ms or 0
        for shard, job_id in (
            (shard, job_id) for shard, ids in batch.ids.items() for job_id in ids
        ):
            row = seen.get(job_id)
            spec = None if row is None else self._spec(row.type_no)
            fate = fate_of(row, token, now_ms, handled=spec is not None)
            if row is None or row.due_ms is None or fate is Fate.FORGET:
                gone.append(job_id)
            elif fate is Fate.RUN and spec is not None:
                run = self._run_of(row, spec, batch.found_s, asked_s, database, token)
                run.found_ms = batch.time_ms
                runs.append(run)
            elif fate is Fate.SUSPECT:
                # Its reminder stays out and comes back when its stay is over.
                self._suspects.add(
                    Suspect(database, shard, job_id, row.type_no, row.attempts, row.token or "")
                )
            elif fate is Fate.UNHANDLED:
                self._warn_unhandled(row.type_no)
                later.append(Entry(now_ms + UNHANDLED_MS, job_id))
            else:
                due_ms = row.due_ms if row.due_ms > now_ms else now_ms + PUT_BACK_MS_MIN
                later.append(self._back_in_time(now_ms, due_ms, job_id))
        self._start(database, runs, rescued=not batch.popped)
        if batch.popped:
            self._acks.tell(batch.topic, gone, later)
        return len(runs)

    def _start(self, database: int, runs: Sequence[Run], *, rescued: bool) -> None:
        """Queues claimed jobs for the handlers."""
        self._room.enter(database, len(runs))
        metrics.JOBS_IN_FLIGHT.set(self.in_flight)
        if rescued:
            metrics.RESCUED.inc(len(runs))
        if self._stopping:  # an offer that was under way: nobody will run these here
            for run in runs:
                self._end(run, Outcome(run.job.job_id, run.token, Kind.GIVE_BACK))
            return
        for run in runs:
            self._pool.submit(run)

    def _run_of(
        self,
        row: Seen,
        spec: HandlerSpec,
        found_s: float,
        asked_s: float,
        database: int,
        token: str,
    ) -> Run:
        biz_type = self._type_name(row.type_no)
        attribute: dict[str, Any] = {}
        try:
            attribute = attribute_of(row.attribute)
        except (ValueError, RecursionError) as error:
            # Written by other hands. This job alone fails, and says why; its batch goes on.
            spec = replace(spec, function=_unreadable(error), is_async=False)
        job = Job(
            row.job_id, row.biz_id, biz_type, row.status, row.action_ms,
            attribute, row.due_ms, row.attempts, row.token, row.dedup_key,
        )  # fmt: skip
        lease_end_s = found_s + spec.timeout_s + self._settings.lease_allowance_s
        topic = self._topic_of(biz_type)
        assert row.claimed_ms is not None  # noqa: S101 - its claim has set it
        return Run(
            job,
            spec,
            topic,
            database,
            token,
            row.claimed_ms,
            lease_end_s,
            asked_s=asked_s,
            queued_s=self._clock.monotonic_s(),
        )

    # ---- what the pool asks and tells

    def _may_start(self, run: Run) -> bool:
        """Immediately before the handler: enough of the lease left, by our own clock (I3)."""
        now_s = self._clock.monotonic_s()
        needed_s = run.spec.timeout_s + self._settings.lease_margin_s
        if self._stopping or now_s + needed_s > run.lease_end_s:
            self._end(run, Outcome(run.job.job_id, run.token, Kind.GIVE_BACK))
            return False
        waited_s = now_s - run.queued_s
        if waited_s > self._settings.queue_wait_s:
            # Claimed too much: jobs wait here that another node could run.
            self._room.narrow()
        run.started_s = now_s
        _fired(run.job.biz_type).inc()
        if run.job.attempts == 1:
            metrics.LATENESS.observe(run.late_s(now_s))
            if run.found_ms is not None:
                _TIMER_STAGE.observe(max(0.0, (run.found_ms - run.job.action_ms) / 1000))
        _DATABASE_STAGE.observe(run.queued_s - run.asked_s)
        _QUEUE_STAGE.observe(waited_s)
        return True

    def _finish(self, run: Run, result: object) -> None:
        now_s = self._clock.monotonic_s()
        now_ms = run.now_ms(now_s)
        _HANDLER_STAGE.observe(now_s - run.started_s)
        try:
            outcome = judge(run, result, now_ms, self._rng.uniform(-1, 1))
        except Exception as error:
            # A verdict that cannot be read (a timedelta out of range, say) must not cost the thread.
            log.exception("the verdict of job %d makes no sense", run.job.job_id)
            again_ms = now_ms + round(LAST_RESORT_S * 1000)
            outcome = Outcome(
                run.job.job_id, run.token, Kind.RETRY, due_ms=again_ms, error=str(error)
            )
        self._end(run, outcome)

    def _end(self, run: Run, outcome: Outcome) -> None:
        self._settlers[run.database].put(Ended(run, outcome))

    def _released(self, database: int, runs: list[Run]) -> None:
        for run in runs:
            if run.settled is not None:
                run.settled.set()
        self._room.leave(database, len(runs))
        metrics.JOBS_IN_FLIGHT.set(self.in_flight)

    # ---- suspects

    def max_attempts(self, suspect: Suspect) -> int:
        spec = self._spec(suspect.type_no)
        return spec.max_attempts if spec is not None else suspect.attempts + 1

    def hold(self, on: bool) -> None:
        """Takes nothing new while on."""
        self._held = on

    def bury(self, suspect: Suspect) -> None:
        """Ends a job that has lost its last lease."""
        database = self._databases[suspect.database]
        if self._claims.bury_lost(
            database, suspect.shard, suspect.job_id, suspect.token, LOST_LEASE, self.identity
        ):
            log.warning("job %d is dead: %s", suspect.job_id, LOST_LEASE)
            biz_type = self._type_name(suspect.type_no)
            metrics.ENDED.labels(biz_type, Kind.BURY.value).inc()
            self._acks.tell(self._topic_of(biz_type), [suspect.job_id], [])

    def take_over(self, suspect: Suspect, done: threading.Event, *, alone: bool) -> Run | None:
        """Claims a job whose lease is over and queues it; None when somebody else has it."""
        spec = self._spec(suspect.type_no)
        if spec is None:
            return None
        asked_s = self._clock.monotonic_s()
        token = f"{self.identity}:{next(self._sequence)}{ALONE if alone else ''}"
        database = self._databases[suspect.database]
        row = self._claims.take_over(database, suspect.shard, suspect.job_id, suspect.token, token)
        if row is None:
            return None
        metrics.TAKEN_OVER.inc()
        run = self._run_of(row, spec, asked_s, asked_s, suspect.database, token)
        run.settled = done
        self._start(suspect.database, [run], rescued=False)
        return run

    # ---- small things

    def _is_down(self, database: int) -> bool:
        return self._clock.monotonic_s() < self._down_until_s.get(database, 0.0)

    def _back_in_time(self, now_ms: int, due_ms: int, job_id: int) -> Entry:
        """How a reminder goes back: at its due time, or not at all while that is far."""
        far = due_ms > now_ms + self._near_ms
        return Entry(None if far else due_ms, job_id)

    def _spec(self, type_no: int) -> HandlerSpec | None:
        return self._specs.get(type_no) or self._registry.takes_all

    def _type_name(self, type_no: int) -> str:
        try:
            return self._catalogue.name(type_no)
        except (NotFound, StoreUnavailable):  # a new type, while the catalogue's database is away
            return f"#{type_no}"

    def _warn_unhandled(self, type_no: int) -> None:
        metrics.UNHANDLED.inc()
        text = "no handler here for jobs of type %s: they wait for another node"
        self._seldom.warning(type_no, text, self._type_name(type_no))

    def _put_back_all(self, batch: Batch) -> None:
        # Due as they were. This process does not pop for this database for a while, but perhaps the way
        # to it is only closed from here: then a deputy sees that they are late.
        if batch.popped and batch.time_ms is not None:
            ids = [job_id for ids in batch.ids.values() for job_id in ids]
            self._acks.tell(batch.topic, [], [Entry(batch.time_ms, job_id) for job_id in ids])


def _unreadable(error: Exception) -> Callable[[Job], None]:
    """A handler for a job whose attribute is not JSON."""

    def fail(job: Job) -> None:
        del job
        raise ValueError(f"the attribute is not JSON: {error}")

    return fail
