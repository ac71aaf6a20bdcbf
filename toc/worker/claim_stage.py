"""The claim stage: claims the batches that fetchers put, and sends each id on by the result of its claim.

Each database has claim stages of its own, so that a database that hangs delays no other database. Rows of
held types (ADR 44) that were popped from a topic of several types are not claimed: their reminders move to
the hold topic of the type.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from toc.domain.ids import routing_bits_of
from toc.domain.job import Status
from toc.domain.pauses import HOLD_TOPIC_PREFIX, hold_topic_of, parse_hold_topic
from toc.domain.priorities import priority_of_row
from toc.domain.retry_policies import unhandled_delay_ms
from toc.errors import SchemaMismatch, TimerUnavailable, is_away
from toc.runtime import metrics
from toc.runtime.job_batch import JobBatch
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.service import Inbox, Service
from toc.store.claims import ClaimedRow, Outcome, OutcomeKind
from toc.store.databases import Database
from toc.store.schema import job_table_name
from toc.timer.reminders import Reminder
from toc.worker.acks import Ack, AckSender
from toc.worker.context import WorkerContext
from toc.worker.job_run import JobRun, RunMaker
from toc.worker.limited_batch import BatchStarts
from toc.worker.row_corrections import GiveBackJobs, RowCorrection
from toc.worker.take_over import SuspectJob

log = logging.getLogger(__name__)

# Claim stages of each database: one stage works in Python while the other stage waits.
CLAIM_LANES = 2
IDLE_S = 60.0  # may be any time, because `enqueue` wakes the thread
# When a job is due by Redis' clock but not by the database's, its reminder is put back for so long.
PUT_BACK_MS_MIN = 1000
PUT_BACK_MS_MAX = 5000


@dataclass(frozen=True, slots=True)
class StagesAfterClaim:
    """The stages that receive the ids of one database after their claim."""

    runs: Inbox[JobRun]
    acks: AckSender
    suspects: Inbox[SuspectJob]
    corrections: Inbox[RowCorrection]


class ClaimStage(Service):
    """Claims batches of one database, one after the other. The permits of the batches bound the inbox."""

    def __init__(
        self, database: Database, lane: int, context: WorkerContext, outlets: StagesAfterClaim
    ) -> None:
        super().__init__(f"toc-claim-{database.index}-{lane}")
        self._database, self._context, self._outlets = database, context, outlets
        self._inbox: deque[JobBatch] = deque()

    def enqueue(self, batch: JobBatch, /) -> None:
        """Queues a batch; a batch without permits returns to the timer at once. Any thread; never blocks."""
        if not batch.permits:
            self._claim_or_put_off(batch, put_off=True)
            return
        self._inbox.append(batch)
        self.wake()
        if self.stopping:  # the thread of this stage may have ended
            self._return_queue_to_timer()

    def run_once(self) -> float:
        """Claims one batch. Raises the error of the claim if the batch was popped."""
        try:
            batch = self._inbox.popleft()
        except IndexError:
            return IDLE_S
        self._claim_or_put_off(batch)
        return 0 if self._inbox else IDLE_S

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Ends the loop and returns the queued ids to the timer, where other nodes pop them."""
        ended = super().stop(timeout_s)
        self._return_queue_to_timer()
        return ended

    def _return_queue_to_timer(self) -> None:
        while self._inbox:
            try:
                batch = self._inbox.popleft()
            except IndexError:  # another thread was faster
                return
            self._claim_or_put_off(batch, put_off=True)

    def _claim_or_put_off(self, batch: JobBatch, *, put_off: bool = False) -> None:
        """Claims a batch, or returns its ids to the timer; then returns unused permits, tells the fetcher."""
        index, permits = self._database.index, self._context.permits
        one = BatchClaim(self._context, self._database, self._outlets, self._log_throttle, batch)
        claimed, failure = 0, None
        try:
            if put_off or permits.outages.is_database_down(index):
                one.return_to_timer(batch)
            else:
                claimed = one.claim_batch()
        except Exception as error:
            failure = error
            if batch.popped:  # otherwise a fetcher waits for the answer, and logs the error
                raise
        finally:
            permits.return_permits(index, one.permits_left)
            try:
                one.return_unused_admissions()
            finally:
                # Whatever fails: a fetcher without an answer would never fetch again.
                if batch.answer is not None:
                    batch.answer.set_answer(claimed, failure)


class BatchClaim:
    """Claims one batch under one token. `permits_left`: the permits of the batch that no job has taken."""

    def __init__(
        self,
        context: WorkerContext,
        database: Database,
        outlets: StagesAfterClaim,
        log_throttle: LogThrottle,
        batch: JobBatch,
    ) -> None:
        self._context, self._database, self._outlets = context, database, outlets
        self._batch, self._log_throttle = batch, log_throttle
        self._handlers, self._outages = context.handlers, context.permits.outages
        self._gate = context.process.gate
        self._is_own_topic = batch.topic.startswith(HOLD_TOPIC_PREFIX)
        self.permits_left = batch.permits
        # Of the ids that have not become runs.
        self._admissions = dict(batch.admissions)
        self._starts: BatchStarts | None = None

    def claim_batch(self) -> int:
        """Claims the batch; returns how many jobs will run. Raises StoreUnavailable, the ids given back."""
        batch = self._batch
        if not batch.popped:  # a poller goes by the id's shard; a scanner by the table of the row
            batch = self._without_misplaced_rows(batch)
        if not batch.ids:
            return 0
        self._handlers.refresh_handlers()
        self._token, self._asked = self._context.new_claim_token(), self._context.read_clocks()
        limited = self._limited_ids(batch)
        if not limited:
            return self._claim_admitted(batch)
        limits = self._context.process.limits
        assert limits is not None  # noqa: S101 - the ids have limits
        self._starts = BatchStarts(self._context, limits, self._database, self._token)
        try:
            batch = self._without_refused_ids(batch, limited)
            return self._claim_admitted(batch) if batch.ids else 0
        finally:
            self._starts.return_unused()

    def _limited_ids(self, batch: JobBatch) -> Collection[int]:
        """The ids of the batch whose types have limits; a scanner's types are known by their admissions."""
        limits = self._context.process.limits
        if limits is None or not limits.limited_types:
            return ()
        if not batch.popped:
            return frozenset(batch.job_ids) if batch.has_pass else batch.admissions.keys()
        if not self._is_own_topic or parse_hold_topic(batch.topic)[0] not in limits.limited_types:
            return ()
        return frozenset(batch.job_ids)

    def _without_refused_ids(self, batch: JobBatch, limited: Collection[int]) -> JobBatch:
        """The batch with the ids that their limits admit; the other ids go on or back to the timer.

        Raises StoreUnavailable, the ids given back.
        """
        assert self._starts is not None  # noqa: S101 - see the caller
        try:
            split = self._starts.split_batch(batch, limited)
        except Exception:
            self._give_back_unanswered_batch(batch)
            raise
        if split.others:
            self._route_by_claim_result(replace(batch, ids=split.others), split.rows)
        if batch.popped:
            self._outlets.acks.send_acks(split.refused)
        return replace(batch, ids=split.admitted)

    def _claim_admitted(self, batch: JobBatch) -> int:
        try:
            seen = self._claim_in_database(batch)
        except Exception as error:
            if isinstance(error, SchemaMismatch) or is_away(error):
                self._give_back_unanswered_batch(batch)
                raise
            # One broken table must not delay the other shards of the batch.
            text = "claiming %d shards of database %d failed"
            log.exception(text, len(batch.ids), self._database.index)
            return self._claim_shard_by_shard(batch)
        return self._route_by_claim_result(batch, seen)

    def return_to_timer(self, batch: JobBatch) -> None:
        """Returns popped ids of the batch, which the database does not take now, to the timer.

        If this process still pops the slots of these ids for other databases, the ids are due again in some
        seconds. Otherwise the due time of the ids stays. This process does not pop for this database for a
        while, but perhaps only this process cannot reach the database, or stops: then other nodes see that
        the jobs are late.
        """
        if not batch.popped or batch.time_ms is None:
            return
        due_ms = batch.time_ms
        if batch.shared and not self._context.permits.closed:
            due_ms += self._outages.outage_delay_ms(self._database.index)
        self._outlets.acks.send_acks(
            [Ack(batch.topic, job_id, Reminder(due_ms, job_id)) for job_id in batch.job_ids]
        )

    def _claim_shard_by_shard(self, batch: JobBatch) -> int:
        """Claims shard by shard, under the same token: jobs committed before are seen as claimed."""
        claimed, left = 0, dict(batch.ids)
        for shard, ids in batch.ids.items():
            part = replace(batch, ids={shard: ids})
            try:
                seen = self._claim_in_database(part)
            except Exception as error:
                if isinstance(error, SchemaMismatch) or is_away(error):
                    self._give_back_unanswered_batch(replace(batch, ids=left))
                    raise
                # The ids of this shard stay in the PrepareQueue and return after their stay.
                log.exception("claiming shard %d failed", shard)
                metrics.SERVICE_ERRORS.labels("toc-worker").inc()
                self._give_back_jobs(part.job_ids)
            else:
                claimed += self._route_by_claim_result(part, seen)
            del left[shard]
        return claimed

    def _claim_in_database(self, batch: JobBatch) -> dict[int, ClaimedRow]:
        seen = self._context.claims.claim_jobs(
            self._database, batch.ids, self._token, batch.time_ms,
            "claim closed" if batch.has_pass else "claim" if self._is_own_topic else "leave",
        )  # fmt: skip
        self._outages.record_answer(self._database.index)
        return seen

    def _give_back_unanswered_batch(self, batch: JobBatch) -> None:
        """Records that the database does not answer; gives back the batch, which may be claimed."""
        self._outages.record_no_answer(self._database.index)
        self._give_back_jobs(batch.job_ids)
        self.return_to_timer(batch)

    def _give_back_jobs(self, job_ids: Sequence[int]) -> None:
        """Gives back the jobs that the token has claimed and that have not become runs yet."""
        if job_ids:
            batch = self._batch
            outcomes = [Outcome(each, self._token, OutcomeKind.GIVE_BACK) for each in job_ids]
            due_ms = batch.time_ms if batch.popped else None
            self._outlets.corrections.enqueue(GiveBackJobs(batch.topic, outcomes, due_ms))

    def _without_misplaced_rows(self, batch: JobBatch) -> JobBatch:
        """The batch without rows whose job_id belongs to another table.

        Such a row must not run: its outcome would be written to the other table, and it would run again
        after each lease.
        """
        routing, ids_of = self._context.process.databases.routing, {}
        for shard, ids in batch.ids.items():
            in_place = [
                job_id for job_id in ids if routing.shard_of_hash(routing_bits_of(job_id)) == shard
            ]
            if in_place:
                ids_of[shard] = in_place
            if len(in_place) < len(ids):
                first = next(job_id for job_id in ids if job_id not in in_place)
                metrics.MISPLACED.inc(len(ids) - len(in_place))
                self._log_throttle.warning(
                    "misplaced",
                    "job %d lies in table %s, and its id belongs to table %s: it is not run; "
                    "`toc reconcile --repair` moves such rows to their own table",
                    first, job_table_name(shard),
                    job_table_name(routing.shard_of_hash(routing_bits_of(first))),
                )  # fmt: skip
        return replace(batch, ids=ids_of)

    # ---- after the answer

    def _route_by_claim_result(self, batch: JobBatch, seen: Mapping[int, ClaimedRow]) -> int:
        """Sends each id once to the stage for its claim result; returns how many jobs will run."""
        maker = RunMaker(
            self._context, self._database, self._token, batch.found_s, self._asked, batch.time_ms,
            batch.topic if self._is_own_topic else "",
        )  # fmt: skip
        runs: list[JobRun] = []
        without_handler: list[int] = []
        acks: list[Ack] = []
        new_types: dict[int, list[int]] = {}
        held = self._gate.moved_types if batch.popped and not self._is_own_topic else {}
        moved: dict[str, list[Reminder]] = {}
        each_once = [
            # An id that is listed twice would run twice, since both have the same token.
            (shard, job_id)
            for shard, ids in batch.ids.items()
            for job_id in dict.fromkeys(ids)  # guard: run-once
        ]
        for shard, job_id in each_once:
            row = seen.get(job_id)
            spec = None if row is None else self._handlers.handler_spec_of(row.type_no)
            result = decide_claim_result(
                row, self._token, batch.time_ms or 0, handled=spec is not None
            )
            if row is None or row.due_ms is None or result is ClaimResult.FORGET:
                acks.append(Ack(batch.topic, job_id, None))
            elif row.type_no in held and self._is_to_move(row.due_ms, result):
                topic = self._hold_topic_of(held[row.type_no], row.priority)
                moved.setdefault(topic, []).append(Reminder(row.due_ms, job_id))
            elif result is ClaimResult.RUN and spec is not None:
                runs.append(maker.make_run(row, spec))
            elif result is ClaimResult.RUN:
                # The type has lost its handler in this process since the claim.
                without_handler.append(job_id)
            elif result is ClaimResult.SUSPECT:
                # The reminder of a suspect stays in the PrepareQueue and returns after its stay.
                suspect = SuspectJob(shard, job_id, row.type_no, row.attempts, row.token or "")
                self._outlets.suspects.enqueue(suspect)
            elif spec is None and self._handlers.look_up_unknown_type(row.type_no, self._database):
                new_types.setdefault(shard, []).append(job_id)
            else:
                ack = self._make_put_back_ack(batch, row, row.due_ms, result)
                acks += self._context.send_home(ack, "" if spec is None else spec.biz_type)
        self._send_runs_to_pool(runs)
        self._give_back_jobs(without_handler)
        acks += self._move_to_hold_topics(moved)
        if batch.popped:
            # Acks are sent before the permits come back, so that permits bound the popped ids.
            self._outlets.acks.send_acks(acks)
        return len(runs) + (self._claim_jobs_of_new_types(new_types) if new_types else 0)

    def _is_to_move(self, due_ms: int, result: ClaimResult) -> bool:
        """Whether a reminder of a held type moves to the hold topic: that topic may not be popped any more
        when a job is due that is not due now."""
        return result is not ClaimResult.RUN and due_ms <= (self._batch.time_ms or 0)

    def _claim_jobs_of_new_types(self, ids: Mapping[int, Sequence[int]]) -> int:
        """Claims, in a separate claim, jobs whose type was just looked up and has a handler."""
        batch = replace(self._batch, ids=ids, permits=self.permits_left)
        again = BatchClaim(self._context, self._database, self._outlets, self._log_throttle, batch)
        try:
            return again.claim_batch()
        finally:
            self.permits_left, self._admissions = again.permits_left, again._admissions

    def _send_runs_to_pool(self, runs: Sequence[JobRun]) -> None:
        jobs = len(runs)
        if self._starts is not None:
            self._starts.note_runs(runs)
        self._context.permits.add_jobs_in_flight(self._database.index, jobs, permits=jobs)
        self.permits_left -= jobs
        if not self._batch.popped:
            metrics.RESCUED.inc(jobs)
        for run in runs:
            if self._admissions:
                run.admission = self._admissions.pop(run.job.job_id, None)
            run.has_pass = self._batch.has_pass
            self._outlets.runs.enqueue(run)

    def _hold_topic_of(self, biz_type: str, priority: int) -> str:
        """Where the reminder of a job of a held type waits: a pull type has a topic of its own already."""
        settings = self._context.process.settings
        if biz_type in settings.pull_types.names:
            return settings.topic_of_biz_type(biz_type)
        has_priorities = priority and biz_type in self._gate.priorities
        return hold_topic_of(biz_type, priority_of_row(priority) if has_priorities else 0)

    def _move_to_hold_topics(self, moved: Mapping[str, Sequence[Reminder]]) -> list[Ack]:
        """Puts reminders into hold topics, at the due times of their rows; returns the acks of the old ones.

        A reminder that cannot be put there stays in the PrepareQueue, and returns after its stay.
        """
        acks: list[Ack] = []
        reminders = self._context.process.reminders
        for topic, some in moved.items():
            if reminders is None or topic == self._batch.topic:
                continue
            try:
                reminders.put_back(topic, some)
            except TimerUnavailable as error:
                text = "reminders of paused or limited jobs do not move to topic %s yet: %s"
                self._log_throttle.warning("move", text, topic, error)
            else:  # only now, so that no reminder is lost
                acks += [Ack(self._batch.topic, each.job_id, None) for each in some]
        return acks

    def return_unused_admissions(self) -> None:
        """Returns the admissions of ids that have not become runs."""
        if self._admissions:
            for admission, count in Counter(self._admissions.values()).items():
                admission.return_unused(count)

    def _make_put_back_ack(
        self, batch: JobBatch, row: ClaimedRow, due_ms: int, result: ClaimResult
    ) -> Ack:
        """The ack that puts back the reminder of a job that does not run now."""
        now_ms = batch.time_ms or 0
        spec = self._handlers.handler_spec_of(row.type_no)
        if spec is not None and self._gate.is_closed(spec.biz_type):  # paused since the pop
            return Ack(batch.topic, row.job_id, Reminder(due_ms, row.job_id))
        if result is ClaimResult.UNHANDLED:
            self._handlers.warn_no_handler(row.type_no, self._database)
            back = Reminder(now_ms + unhandled_delay_ms(now_ms - due_ms), row.job_id)
        # The loader's mark may be past the due_time of the row: the reminder must stay in Redis.
        elif due_ms <= now_ms:
            back = Reminder(now_ms + self._put_back_delay_ms(due_ms), row.job_id)
        elif row.status is Status.RUNNING:
            back = Reminder(due_ms, row.job_id)
        else:
            back = self._context.reminder_to_put_back(now_ms, due_ms, row.job_id)
        return Ack(batch.topic, row.job_id, back)

    def _put_back_delay_ms(self, due_ms: int) -> int:
        """How long to put back a reminder whose job is due by Redis' clock, but could not be claimed."""
        now_ms = self._database.server_clock.believed_now_ms()
        left_ms = 0 if now_ms is None else due_ms - now_ms
        return min(max(left_ms, PUT_BACK_MS_MIN), PUT_BACK_MS_MAX)


class ClaimResult(Enum):
    RUN = "mine: run it"
    FORGET = "ended or gone: ack"
    LATER = "live, its time is ahead: put back at due_ms"
    SUSPECT = "running, its lease is over: take it over alone"
    UNHANDLED = "due or lost, but no handler here: put back for a while"


def decide_claim_result(
    row: ClaimedRow | None, token: str, now_ms: int, *, handled: bool
) -> ClaimResult:
    """What to do with an id after a claim under `token`. `row`: the row that the claim read; None: no row.

    `now_ms`: the server's time that found the id due. `handled`: whether its type has a handler here. A row
    that was rescheduled, waits for a retry, or runs under a valid lease is the same case (LATER): its
    due_ms is in the future.
    """
    if row is None or row.due_ms is None or not row.status.live:
        return ClaimResult.FORGET
    if row.status is Status.RUNNING:
        if row.token == token:
            return ClaimResult.RUN
        if row.overdue:
            return ClaimResult.SUSPECT if handled else ClaimResult.UNHANDLED
        return ClaimResult.LATER
    return ClaimResult.UNHANDLED if row.due_ms <= now_ms and not handled else ClaimResult.LATER
