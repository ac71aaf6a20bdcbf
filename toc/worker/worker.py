"""The worker: implements the sink. Reserves room, claims offered ids, and acts on each claim's result."""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

from toc.domain.ids import gene_of
from toc.domain.job import Job
from toc.domain.limits import attribute_of
from toc.domain.policy import unhandled_ms
from toc.domain.tokens import ALONE, without_mark
from toc.errors import NotFound, SchemaMismatch, StatementFailed, StoreUnavailable, is_away
from toc.handlers.registry import HandlerSpec, Registry
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.service import stop_all
from toc.runtime.settings import WorkerSettings
from toc.runtime.sink import Batch
from toc.store.biz_types import describe_conflict
from toc.store.catalogue import Catalogue
from toc.store.claims import ClaimedRow, Claims, Outcome, OutcomeKind
from toc.store.databases import Databases
from toc.store.schema import job_table_name
from toc.timer.reminders import Reminder, Reminders
from toc.worker.acks import AckSender
from toc.worker.adaptive_limiter import AdaptiveLimiter
from toc.worker.claim_result import ClaimResult, claim_result_of
from toc.worker.corrections import ChangeAloneMark, GiveBack
from toc.worker.hold import ProcessHold
from toc.worker.lease_recovery import LOST_LEASE, LeaseRecovery, LostLease, ProcessIsHeld
from toc.worker.outcome import give_back_outcome, outcome_of
from toc.worker.pool import HandlerPool
from toc.worker.run import ClockReading, FinishedRun, Run
from toc.worker.run_log import RunLog
from toc.worker.settle import Settler

log = logging.getLogger(__name__)

# When a job is due by Redis' clock but not by the database's, its reminder is put back for so long.
PUT_BACK_MS_MIN = 1000
PUT_BACK_MS_MAX = 5000
LAST_RESORT_S = 60.0  # until the next try of a job whose verdict or retry policy is invalid
DOWN_S = 3.0  # a database that did not answer is skipped for so long
# Ids of a database that does not answer are put off for as long as it has not answered, within these bounds.
PUT_OFF_S_MIN, PUT_OFF_S_MAX = 1.0, 5.0

_fired_counter = cache(metrics.FIRED.labels)
_TIMER_STAGE = metrics.STAGE.labels("timer")
_DATABASE_STAGE = metrics.STAGE.labels("database")
_QUEUE_STAGE = metrics.STAGE.labels("queue")
_HANDLER_STAGE = metrics.STAGE.labels("handler")


class Worker:
    """Runs the handlers of a registry. Implements `runtime.sink.Sink`.

    `name` identifies the process ("host:pid"); each claim's token adds a random number of this process and
    a sequence number, so that no two claims have the same token. `restart_wanted` is called when too many
    handlers are stuck. `reminders` is None where there is no timer. `near_ms` (horizon + slack): reminders
    due later than that from now are not put back into Redis; the loader will load them (I6).
    """

    def __init__(
        self,
        name: str,
        databases: Databases,
        catalogue: Catalogue,
        reminders: Reminders | None,
        topic_of: Callable[[str], str],
        near_ms: int,
        registry: Registry,
        clock: Clock,
        rng: random.Random,
        settings: WorkerSettings,
        restart_wanted: Callable[[], None],
    ) -> None:
        self._databases, self._types = databases, catalogue.types
        self._near_ms = near_ms
        self._topic_of = topic_of
        self._registry, self._clock, self._rng, self._settings = registry, clock, rng, settings
        self.identity = f"{name[:60]}:{rng.getrandbits(48):012x}"
        """The unique name of this process; its tokens and its cluster member begin with it."""
        self._sequence = itertools.count(1)
        self._specs: dict[int, HandlerSpec] = {}
        self._version = -1  # of the types, when `_specs` was made
        self._types_lock = threading.Lock()
        self._claims = Claims(databases, {})
        self._create_types([spec.biz_type for spec in registry])
        self._refresh_types()
        self._limiter = AdaptiveLimiter(
            clock,
            len(databases.all),
            limit_min=settings.concurrency,
            limit_max=settings.queue_max,
        )
        self._hold = ProcessHold(clock)
        self._stopping = False
        self._no_answer_until_s: dict[int, float] = {}
        self._away_since_s: dict[int, float] = {}  # until a claim has been answered
        self._log_throttle = LogThrottle(log)
        self._log = RunLog(clock, tracebacks=settings.tracebacks_per_minute)
        self._pool = HandlerPool(
            clock,
            self._may_start,
            self._finish,
            restart_wanted,
            threads=settings.concurrency,
            async_tasks=settings.async_concurrency,
            stuck_max=settings.stuck_max,
        )
        self._acks = AckSender(
            reminders, clock, batch_max=settings.settle_max, queue_max=settings.queue_max
        )
        self._settlers = [
            Settler(
                database,
                self._claims,
                self._acks,
                self._on_released,
                self._put_back_entry,
                clock,
                batch_max=settings.settle_max,
                wait_ms=settings.settle_wait_ms,
            )
            for database in databases
        ]
        self._recoveries = [
            LeaseRecovery(each.index, self, self._hold, clock) for each in databases
        ]

    # ---- life

    def start(self) -> None:
        self._pool.start()
        self._acks.start()
        for settler in self._settlers:
            settler.start()
        for lane in self._recoveries:
            lane.start()

    def stop(self, timeout_s: float) -> bool:
        """Gives back jobs that have not started, waits for running ones, settles them. True: all settled.

        The caller has stopped the pollers and scanners. A handler that still runs after `timeout_s` seconds
        keeps its job until the lease ends; on the event loop it is cancelled, and its job is given back.
        """
        self._stopping = True  # from here on `_may_start` gives queued jobs back
        stop_all(self._recoveries, 10.0)
        self._pool.drain()
        deadline_s = self._clock.monotonic_s() + timeout_s
        while self.in_flight and self._clock.monotonic_s() < deadline_s:
            self._clock.sleep_s(0.02)
        self._pool.close()  # cancels what runs on the event loop, and gives it back
        flush_s = self._clock.monotonic_s() + 2.0
        while (
            not all(settler.idle for settler in self._settlers)
            and self._clock.monotonic_s() < flush_s
        ):
            self._clock.sleep_s(0.02)
        stop_all(self._settlers, 5.0)
        self._acks.stop(5.0)
        if self.in_flight:
            log.warning("%d jobs are left to their leases", self.in_flight)
        return self.in_flight == 0

    def add_room_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when there is room again after `reserve_room` said that there is none."""
        self._limiter.add_room_listener(listener)

    @property
    def in_flight(self) -> int:
        """Jobs claimed and not settled."""
        return self._limiter.in_flight

    @property
    def is_quiet(self) -> bool:
        """Whether nothing runs except stuck handlers, and no offer is under way.

        Jobs that only wait to be settled do not count: if the process dies now, it interrupts no handler.
        """
        # The order matters: a job that moves on meanwhile (reserved, in flight, ended) is counted twice or
        # as running, but never missed.
        busy = self._limiter.reserved
        busy += self._limiter.in_flight
        ended = sum(settler.pending for settler in self._settlers)
        return busy <= ended + self._pool.stuck

    @property
    def stuck(self) -> int:
        return self._pool.stuck

    def has_other_stuck_handler(self, job_id: int) -> bool:
        """Whether a handler of another job hangs."""
        return not self._pool.stuck_jobs <= {job_id}

    @property
    def types(self) -> Sequence[int] | None:
        """The type numbers that this worker handles; None: all."""
        self._refresh_types()
        return None if self._registry.takes_all else list(self._specs)

    # ---- the sink

    def reserve_room(self, database: int, wanted: int) -> int:
        """See `Sink`. Grants only so much that no job waits long for a thread (I8)."""
        if self._stopping or self._hold.is_active or self._is_down(database):
            return 0
        taken = self._limiter.reserve(database, wanted, waiting=self._pool.waiting)
        if taken and self._hold.is_active:
            # A hold began since the check above: `is_quiet` may have been read before the reservation.
            self._limiter.release(database, taken)
            return 0
        return taken

    def reserve_room_in(self, databases: Sequence[int], wanted: int) -> tuple[int, frozenset[int]]:
        """See `Sink`. A database that has not answered yet is tried by one offer at a time."""
        if self._stopping or self._hold.is_active:
            return 0, frozenset()
        well = [
            database
            for database in databases
            if not self._is_down(database)
            and not (database in self._away_since_s and self._limiter.is_reserved(database))
        ]
        taken, of = self._limiter.reserve_in_each(well, wanted, waiting=self._pool.waiting)
        if taken and self._hold.is_active:  # as in `reserve_room`
            for database in of:
                self._limiter.release(database, taken)
            return 0, frozenset()
        return taken, of

    def put_off(self, database: int, batch: Batch) -> None:
        """See `Sink`."""
        now_s = self._clock.monotonic_s()
        away_s = now_s - self._away_since_s.setdefault(database, now_s)
        put_off_s = min(PUT_OFF_S_MAX, max(PUT_OFF_S_MIN, away_s))
        self._put_back_all(batch, 0 if self._stopping else round(put_off_s * 1000))

    def release_room(self, database: int, taken: int) -> None:
        self._limiter.release(database, taken)

    def offer(self, database: int, batch: Batch) -> int:
        """Claims ids and queues the claimed jobs; returns how many. Raises StoreUnavailable, ids put back."""
        if self._is_down(database):
            self._return_to_timer(database, batch)
            return 0
        if (
            not batch.popped
        ):  # a poller goes by the id's shard; a scanner by the table that holds the row
            batch = self._without_misplaced(batch)
        if not batch.ids:
            return 0
        self._refresh_types()
        token, asked = self._new_token(), self._read_clocks()
        try:
            seen = self._claim(database, batch, token)
        except Exception as error:
            if isinstance(error, SchemaMismatch) or is_away(error):
                self._record_no_answer(database, batch, token)
                raise
            # One broken table must not delay the other shards of the batch.
            log.exception("claiming %d shards of database %d failed", len(batch.ids), database)
            return self._claim_each(database, batch, token, asked)
        return self._act_on_claim_results(database, batch, seen, token, asked)

    def _claim_each(self, database: int, batch: Batch, token: str, asked: ClockReading) -> int:
        """Claims shard by shard, under the same token: jobs committed before are seen as claimed."""
        claimed, left = 0, dict(batch.ids)
        for shard, ids in batch.ids.items():
            part = replace(batch, ids={shard: ids})
            try:
                seen = self._claim(database, part, token)
            except Exception as error:
                if isinstance(error, SchemaMismatch) or is_away(error):
                    self._record_no_answer(database, replace(batch, ids=left), token)
                    raise
                # Its ids stay in the PrepareQueue and return after their stay.
                log.exception("claiming shard %d failed", shard)
                metrics.SERVICE_ERRORS.labels("toc-worker").inc()
                self._give_back_unanswered(database, part, token)
            else:
                claimed += self._act_on_claim_results(database, part, seen, token, asked)
            del left[shard]
        return claimed

    def _record_no_answer(self, database: int, batch: Batch, token: str) -> None:
        """Records that the database does not answer. The batch may have been claimed: gives it back."""
        now_s = self._clock.monotonic_s()
        self._away_since_s.setdefault(database, now_s)
        self._no_answer_until_s[database] = now_s + DOWN_S
        self._give_back_unanswered(database, batch, token)
        self._return_to_timer(database, batch)

    def _claim(self, database: int, batch: Batch, token: str) -> dict[int, ClaimedRow]:
        seen = self._claims.claim(self._databases[database], batch.ids, token, batch.time_ms)
        if self._away_since_s:
            self._away_since_s.pop(database, None)
        return seen

    def _give_back_unanswered(self, database: int, batch: Batch, token: str) -> None:
        ids = [job_id for ids in batch.ids.values() for job_id in ids]
        self._give_back_ids(database, batch, token, ids)

    def _give_back_ids(
        self, database: int, batch: Batch, token: str, job_ids: Sequence[int]
    ) -> None:
        """Gives back those ids of a batch that the token has claimed and that are no runs yet."""
        if job_ids:
            outcomes = [Outcome(job_id, token, OutcomeKind.GIVE_BACK) for job_id in job_ids]
            due_ms = batch.time_ms if batch.popped else None
            self._settlers[database].queue_correction(GiveBack(batch.topic, outcomes, due_ms))

    def _without_misplaced(self, batch: Batch) -> Batch:
        """The batch without rows whose job_id belongs to another table.

        Such a row must not run: its outcome would be written to the other table, and it would run again
        after each lease.
        """
        routing, ids_of = self._databases.routing, {}
        for shard, ids in batch.ids.items():
            well = [job_id for job_id in ids if routing.shard(gene_of(job_id)) == shard]
            if well:
                ids_of[shard] = well
            if len(well) < len(ids):
                met = next(job_id for job_id in ids if job_id not in well)
                metrics.MISPLACED.inc(len(ids) - len(well))
                self._log_throttle.warning(
                    "misplaced",
                    "job %d lies in table %s, and its id belongs to table %s: it is not run; "
                    "`toc reconcile --repair` moves such rows to their own table",
                    met, job_table_name(shard), job_table_name(routing.shard(gene_of(met))),
                )  # fmt: skip
        return replace(batch, ids=ids_of)

    def _act_on_claim_results(
        self,
        database: int,
        batch: Batch,
        seen: Mapping[int, ClaimedRow],
        token: str,
        asked: ClockReading,
    ) -> int:
        """Acts on the claim result of each id, once; returns how many jobs are to be run."""
        gone: list[int] = []
        later: list[Reminder] = []
        runs: list[Run] = []
        bare: list[int] = []
        strange: dict[int, list[int]] = {}
        now_ms = batch.time_ms or 0
        for shard, job_id in (
            # An id that is listed twice would run twice, since both have the same token.
            (shard, job_id)
            for shard, ids in batch.ids.items()
            for job_id in dict.fromkeys(ids)  # guard: run-once
        ):
            row = seen.get(job_id)
            spec = None if row is None else self._spec_of(row.type_no)
            fate = claim_result_of(row, token, now_ms, handled=spec is not None)
            if row is None or row.due_ms is None or fate is ClaimResult.FORGET:
                gone.append(job_id)
            elif fate is ClaimResult.RUN and spec is not None:
                run = self._make_run(row, spec, batch.found_s, asked, database, token)
                run.found_ms = batch.time_ms
                runs.append(run)
            elif (
                fate is ClaimResult.RUN
            ):  # its type has lost its handler here since the claim was asked
                bare.append(job_id)
            elif fate is ClaimResult.SUSPECT:
                # Its reminder stays in the PrepareQueue and returns after its stay.
                self._recoveries[database].add(
                    LostLease(database, shard, job_id, row.type_no, row.attempts, row.token or "")
                )
            elif spec is None and self._find_unknown_type(row.type_no, database):
                strange.setdefault(shard, []).append(job_id)
            elif fate is ClaimResult.UNHANDLED:
                self._warn_unhandled(row.type_no, database)
                later.append(Reminder(now_ms + unhandled_ms(now_ms - row.due_ms), job_id))
            elif (
                row.due_ms <= now_ms
            ):  # the loader's mark is past it: its reminder must stay in Redis
                wait_ms = self._put_back_delay_ms(database, row.due_ms)
                later.append(Reminder(now_ms + wait_ms, job_id))
            else:
                later.append(self._put_back_entry(now_ms, row.due_ms, job_id))
        self._queue_runs(database, runs, rescued=not batch.popped)
        self._give_back_ids(database, batch, token, bare)
        if batch.popped:
            self._acks.send_acks(batch.topic, gone, later)
        # Jobs whose type was just learned, and has a handler, are offered again.
        return len(runs) + (self.offer(database, replace(batch, ids=strange)) if strange else 0)

    def _queue_runs(self, database: int, runs: Sequence[Run], *, rescued: bool) -> None:
        """Queues claimed jobs for the handlers."""
        self._limiter.add_in_flight(database, len(runs))
        metrics.JOBS_IN_FLIGHT.set(self.in_flight)
        if rescued:
            metrics.RESCUED.inc(len(runs))
        if self._stopping:  # the offer began before the stop: these jobs will not run here
            for run in runs:
                self._give_back(run)
            return
        for run in runs:
            self._pool.submit(run)

    def _make_run(
        self,
        row: ClaimedRow,
        spec: HandlerSpec,
        found_s: float,
        asked: ClockReading,
        database: int,
        token: str,
    ) -> Run:
        biz_type = spec.biz_type
        attribute: dict[str, Any] = {}
        try:
            attribute = attribute_of(row.attribute)
        except (ValueError, RecursionError) as error:
            # Another program wrote the attribute. Only this job fails, with a reason; the batch is run.
            spec = replace(spec, function=_failing_handler(error), is_async=False)
        job = Job(
            row.job_id, row.biz_id, biz_type, row.status, row.action_ms,
            attribute, row.due_ms, row.attempts, row.token, row.dedup_key,
        )  # fmt: skip
        lease_s = spec.timeout_s + self._settings.lease_allowance_s
        lease_end_s = found_s + lease_s  # guard: lease-from-the-question
        topic = self._topic_of(biz_type)
        assert row.claimed_ms is not None  # noqa: S101 - its claim has set it
        claimed_ms = self._databases[database].server_clock.clamp_ms(row.claimed_ms)
        return Run(
            job,
            spec,
            topic,
            database,
            token,
            claimed_ms,
            lease_end_s,
            asked_s=asked.monotonic_s,
            queued_s=self._clock.monotonic_s(),
            asked_wall_ms=asked.wall_ms,
        )

    # ---- callbacks of the pool

    def _may_start(self, run: Run) -> bool:
        """Whether enough of the lease is left to start the handler, by this machine's clocks (I3).

        The pool calls it immediately before the handler. False: the job was given back.
        """
        now_s = self._clock.monotonic_s()
        needed_s = run.spec.timeout_s + self._settings.lease_margin_s
        left_s = run.lease_left_s(now_s, self._clock.wall_ms())
        is_too_late = left_s < needed_s  # guard: enough-lease-to-start
        if self._stopping or is_too_late:
            self._give_back(run)
            return False
        waited_s = now_s - run.queued_s
        if waited_s > self._settings.queue_wait_s:
            # Too many were claimed: jobs wait here that another node could run.
            self._limiter.halve_limit()
        run.started_s = now_s
        _fired_counter(run.job.biz_type).inc()
        if run.job.attempts == 1:
            metrics.LATENESS.observe(run.late_s(now_s))
            if run.found_ms is not None:
                _TIMER_STAGE.observe(max(0.0, (run.found_ms - run.job.action_ms) / 1000))
        _DATABASE_STAGE.observe(run.queued_s - run.asked_s)
        _QUEUE_STAGE.observe(waited_s)
        self._log.log_start(run)
        return True

    def _finish(self, run: Run, result: object) -> None:
        now_s = self._clock.monotonic_s()
        now_ms = run.now_ms(now_s)  # guard: retry-by-the-databases-time
        _HANDLER_STAGE.observe(now_s - run.started_s)
        try:
            outcome = outcome_of(
                run,
                result,
                now_ms,
                self._rng.uniform(-1, 1),
                snooze_ms_min=round(self._settings.snooze_s_min * 1000),
            )
        except Exception as error:
            # An invalid verdict (e.g. a timedelta out of range) must not end the thread.
            log.exception("the verdict of job %d makes no sense", run.job.job_id)
            again_ms = now_ms + round(LAST_RESORT_S * 1000)
            outcome = Outcome(
                run.job.job_id, run.token, OutcomeKind.RETRY, due_ms=again_ms, error=str(error)
            )
        self._log.log_end(run, result, outcome, now_ms, now_s - run.started_s)
        self._queue_outcome(run, outcome)

    def _give_back(self, run: Run) -> None:
        """Gives back a job that was claimed but not started."""
        self._queue_outcome(run, give_back_outcome(run))

    def _queue_outcome(self, run: Run, outcome: Outcome) -> None:
        self._settlers[run.database].put(FinishedRun(run, outcome))

    def _on_released(self, database: int, runs: list[Run]) -> None:
        for run in runs:
            if run.settled is not None:
                run.settled.set()
        self._limiter.remove_in_flight(database, len(runs))
        metrics.JOBS_IN_FLIGHT.set(self.in_flight)

    # ---- suspects

    def max_attempts(self, suspect: LostLease) -> int:
        spec = self._spec_of(suspect.type_no)
        return spec.max_attempts if spec is not None else suspect.attempts + 1

    def lease_s(self, suspect: LostLease) -> float:
        spec = self._spec_of(suspect.type_no)
        timeout_s = spec.timeout_s if spec is not None else 0.0
        return timeout_s + self._settings.lease_allowance_s

    def database_answers(self, database: int) -> bool:
        if self._is_down(database):
            return False
        try:
            self._databases[database].now_ms()
        except Exception as error:  # noqa: BLE001 - whatever it is, it cannot be asked now
            self._log_throttle.warning(
                "suspects", "suspects of database %d wait: %s", database, error
            )
            return False
        return True

    def bury(self, suspect: LostLease) -> None:
        """Ends a job dead that has lost its last lease."""
        database = self._databases[suspect.database]
        if self._claims.bury_expired(
            database, suspect.shard, suspect.job_id, suspect.token, LOST_LEASE, self.identity
        ):
            log.warning("job %d is dead: %s", suspect.job_id, LOST_LEASE)
            biz_type = self._type_name(suspect.type_no, suspect.database)
            metrics.ENDED.labels(biz_type, OutcomeKind.BURY.value).inc()
            self._acks.send_acks(self._topic_of(biz_type), [suspect.job_id], [])

    def take_over(
        self, suspect: LostLease, done: threading.Event, *, alone: bool, holding: bool
    ) -> Run | None:
        """Claims a job whose lease is over and queues it; None when another process has it.

        `holding`: the caller holds the process. Otherwise room is reserved even if there is none, so that
        the process is not quiet meanwhile. See `lease_recovery.RecoveryWorker`.
        """
        if holding:
            return self._take_over(suspect, done, alone=alone)
        self._limiter.reserve_always(suspect.database, 1)
        try:
            if self._hold.is_active:  # looked at after the reservation, as in `reserve_room`
                raise ProcessIsHeld
            return self._take_over(suspect, done, alone=alone)
        finally:
            self._limiter.release(suspect.database, 1)

    def _take_over(self, suspect: LostLease, done: threading.Event, *, alone: bool) -> Run | None:
        spec = self._spec_of(suspect.type_no)
        if spec is None:
            return None
        asked, database = self._read_clocks(), self._databases[suspect.database]
        token, seen = self._new_token() + (ALONE if alone else ""), suspect.token
        job_id, sent = suspect.job_id, threading.Event()
        try:
            row = self._claims.take_over(database, suspect.shard, job_id, seen, token, sent.set)
        except Exception:
            if sent.is_set():
                # It may be committed, but nobody runs the job: the attempt must not count.
                lost = Outcome(job_id, token, OutcomeKind.GIVE_BACK, 0, "the answer was lost", seen)
                give_back = GiveBack("", [lost], written=done)
                self._settlers[suspect.database].queue_correction(
                    give_back
                )  # guard: give-back-take-over
            else:  # refused: there is nothing to give back
                done.set()
            raise
        if row is None:
            return None
        metrics.TAKEN_OVER.inc()
        run = self._make_run(row, spec, asked.monotonic_s, asked, suspect.database, token)
        run.settled, run.previous_token = done, seen
        self._queue_runs(suspect.database, [run], rescued=False)
        return run

    def change_alone_mark(self, suspect: LostLease, run: Run, *, alone: bool) -> threading.Event:
        unmarked = without_mark(run.token)
        tokens = (unmarked, run.token) if alone else (run.token, unmarked)
        change = ChangeAloneMark(suspect.shard, suspect.job_id, *tokens)
        self._settlers[suspect.database].queue_correction(change)
        return change.written

    def is_stuck(self, job_id: int) -> bool:
        """Whether its handler runs beyond its timeout."""
        return job_id in self._pool.stuck_jobs

    # ---- small things

    def _new_token(self) -> str:
        return f"{self.identity}:{next(self._sequence)}"

    def _is_down(self, database: int) -> bool:
        return self._clock.monotonic_s() < self._no_answer_until_s.get(database, 0.0)

    def _read_clocks(self) -> ClockReading:
        return ClockReading(self._clock.monotonic_s(), self._clock.wall_ms())

    def _put_back_delay_ms(self, database: int, due_ms: int) -> int:
        """How long to put back a reminder whose job is due by Redis' clock, but could not be claimed."""
        now_ms = self._databases[database].server_clock.now_ms()
        left_ms = 0 if now_ms is None else due_ms - now_ms
        return min(max(left_ms, PUT_BACK_MS_MIN), PUT_BACK_MS_MAX)

    def _put_back_entry(self, now_ms: int, due_ms: int, job_id: int) -> Reminder:
        """The reminder to put back: with the due time, or with None if that is beyond `near_ms`."""
        far = due_ms > now_ms + self._near_ms
        return Reminder(None if far else due_ms, job_id)

    # ---- types

    def _create_types(self, names: Sequence[str]) -> None:
        """Creates the handlers' types in each database that answers; later use creates them in the others.

        Raises StoreUnavailable when no database answers.
        """
        failed: list[StoreUnavailable | StatementFailed] = []
        asked = [database for database in self._databases if not database.is_unchecked]
        for database in asked:
            try:
                self._types.numbers_or_create(names, database)
            except (
                SchemaMismatch
            ) as error:  # one type's number is in conflict; the others were created
                log.error("%s", error)  # noqa: TRY400 - the text says all
            except (StoreUnavailable, StatementFailed) as error:
                failed.append(error)
        if failed and len(failed) == len(asked):
            raise failed[0]

    def _refresh_types(self) -> None:
        """Updates which type numbers have a handler here, if the known types have changed."""
        if self._version == self._types.known.version:
            return
        with self._types_lock:
            known = self._types.known
            specs: dict[int, HandlerSpec] = {}
            for number, name in known.names.items():
                spec = self._registry.get(name)
                if spec is not None:
                    specs[number] = replace(spec, biz_type=name)  # that of "*" too
            allowance_ms = round(self._settings.lease_allowance_s * 1000)
            lease_ms = {
                number: round(spec.timeout_s * 1000) + allowance_ms
                for number, spec in specs.items()
            }
            # The handlers are set first: each job that is claimed from now on must find its handler.
            self._specs = specs
            self._claims.set_lease_times(lease_ms)
            self._version = known.version

    def _find_unknown_type(self, type_no: int, database: int) -> bool:
        """Reads a type number that is unknown here from the row's database; True: it has a handler here."""
        if type_no in self._types.known.names or type_no in self._types.known.conflicts:
            return False
        with suppress(NotFound):
            self._types.find_name(type_no, self._databases[database])
        self._refresh_types()
        return type_no in self._specs

    def _spec_of(self, type_no: int) -> HandlerSpec | None:
        return self._specs.get(type_no)

    def _type_name(self, type_no: int, database: int) -> str:
        try:
            return self._types.find_name(type_no, self._databases[database])
        except NotFound:  # another program wrote the number
            return f"#{type_no}"

    def _warn_unhandled(self, type_no: int, database: int) -> None:
        metrics.UNHANDLED.inc()
        conflicts = self._types.known.conflicts
        if type_no in conflicts:
            text = describe_conflict(type_no, conflicts)
            self._log_throttle.warning(type_no, "%s", text)
            return
        text = "no handler here for jobs of type %s: they wait for another node"
        self._log_throttle.warning(type_no, text, self._type_name(type_no, database))

    def _return_to_timer(self, database: int, batch: Batch) -> None:
        """Returns the ids of a database that does not answer to the timer."""
        if batch.shared:  # its slots are still popped, for the other databases
            self.put_off(database, batch)
        else:
            # Their due time stays. This process does not pop for this database for a while, but perhaps
            # only this process cannot reach it: then a deputy sees that the jobs are late.
            self._put_back_all(batch, 0)

    def _put_back_all(self, batch: Batch, later_ms: int) -> None:
        if batch.popped and batch.time_ms is not None:
            due_ms = batch.time_ms + later_ms
            ids = [job_id for ids in batch.ids.values() for job_id in ids]
            self._acks.send_acks(batch.topic, [], [Reminder(due_ms, job_id) for job_id in ids])


def _failing_handler(error: Exception) -> Callable[[Job], None]:
    """A handler that fails, for a job whose attribute is not JSON."""

    def fail(job: Job) -> None:
        del job
        raise ValueError(f"the attribute is not JSON: {error}")

    return fail
