"""The claim stage of a lease server: gives due rows to waiting consumers, and claims them then (ADR 39).

A batch of ids takes these steps: read the rows; return to Redis what cannot be claimed now; give each row
that is due to a consumer that may see it; claim the rows of all consumers in one transaction; deliver them.
No row is claimed without a consumer, and a claimed row whose consumer has vanished is given back.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from toc.domain.countdown import is_countdown_key
from toc.domain.ids import routing_bits_of
from toc.domain.job import Job, Status
from toc.domain.payload_envelope import PayloadIdentity
from toc.domain.times import datetime_of
from toc.errors import SchemaMismatch, is_away
from toc.leases.demand import Reoffer
from toc.leases.expired_leases import ExpiredLeases
from toc.leases.lease_context import LeaseContext
from toc.leases.lease_limits import LeaseStarts, order_ms_of_job
from toc.leases.waiter import LeasedJob, Waiter
from toc.runtime import metrics
from toc.runtime.job_batch import JobBatch, PermitSource
from toc.runtime.payload_codecs import PayloadUnreadableError
from toc.runtime.service import Service
from toc.store.claims import ClaimedRow
from toc.store.databases import Database
from toc.store.lease_claims import ClaimForConsumer
from toc.timer.reminders import Reminder
from toc.worker.acks import Ack

log = logging.getLogger(__name__)

IDLE_S = 60.0  # may be any time, because `enqueue` wakes the thread
PUT_BACK_MS_MIN, PUT_BACK_MS_MAX = 1000, 5000  # due by Redis' clock, but not by the database's
UNREADABLE_WAIT_MS = 60_000
SCANNED = ""  # the topic of batches that a scanner has found
TAKE_OVERS_MAX = 50  # expired leases of one batch that are taken over; each needs a transaction


@dataclass(slots=True)
class _Share:
    """The rows of one batch and type for one consumer. `token`: of its lease."""

    waiter: Waiter
    biz_type: str
    token: str
    lease_ms: int
    jobs: Sequence[Job]
    reserved: int  # places of the consumer that are kept for this share
    got: list[LeasedJob] = field(default_factory=list)


class LeaseStage(Service):
    """Claims batches of one database for consumers, one after the other.

    `permits_of(topic)`: where the permits of a batch of this topic come back to.
    """

    def __init__(
        self,
        database: Database,
        context: LeaseContext,
        expired: ExpiredLeases,
        permits_of: Callable[[str], PermitSource],
        reoffers: Mapping[str, Reoffer],
    ) -> None:
        super().__init__(f"toc-leases-{database.index}")
        self._database, self._context, self._expired = database, context, expired
        self._permits_of, self._reoffers = permits_of, reoffers
        self._routing = context.process.databases.routing
        self._inbox: deque[JobBatch] = deque()

    def enqueue(self, batch: JobBatch, /) -> None:
        """Queues a batch; a batch without permits returns to Redis at once. Any thread; never blocks."""
        self._inbox.append(batch)
        if not batch.permits or self.stopping:
            self._return_queue_to_timer()
        else:
            self.wake()

    def run_once(self) -> float:
        """Handles one batch. Raises the error of its claim."""
        try:
            batch = self._inbox.popleft()
        except IndexError:
            return IDLE_S
        self._handle_batch(batch)
        return 0 if self._inbox else IDLE_S

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Ends the loop and returns the queued ids to Redis, where other replicas pop them."""
        ended = super().stop(timeout_s)
        self._return_queue_to_timer()
        return ended

    def _return_queue_to_timer(self) -> None:
        while self._inbox:
            try:
                batch = self._inbox.popleft()
            except IndexError:  # another thread was faster
                return
            self._put_back_whole(batch)
            self._return_permits(batch)
            _return_admissions(batch, ())
            if batch.answer is not None:
                batch.answer.set_answer(0)

    def _handle_batch(self, batch: JobBatch) -> None:
        one = _LeaseBatch(self._database, self._context, self._expired, self._reoffers, batch)
        permits, failure = batch.permits, None
        try:
            if self._context.outages.is_database_down(self._database.index):
                self._put_back_whole(batch)
                return
            try:
                one.distribute_rows()
            finally:
                # Before the claim: from here on the places of the consumers are reserved instead.
                self._return_permits(batch)
                permits = 0
            one.claim_rows()
        except Exception as error:
            failure = error
            if is_away(error) or isinstance(error, SchemaMismatch):
                self._context.outages.record_no_answer(self._database.index)
            if not one.has_distributed:
                self._put_back_whole(batch)
            raise
        else:
            self._context.outages.record_answer(self._database.index)
        finally:
            if permits:
                self._return_permits(batch)
            _return_admissions(batch, one.claimed_ids)
            if batch.answer is not None:
                batch.answer.set_answer(one.leased, failure)

    def _return_permits(self, batch: JobBatch) -> None:
        self._permits_of(batch.topic).return_permits(self._database.index, batch.permits)

    def _put_back_whole(self, batch: JobBatch) -> None:
        """Returns the ids of a popped batch to Redis, due as before."""
        if batch.popped and batch.time_ms is not None:
            due_ms = batch.time_ms
            self._context.acks.send_acks(
                [Ack(batch.topic, each, Reminder(due_ms, each)) for each in batch.job_ids]
            )


class _LeaseBatch:
    """One batch on its way. `leased`: how many jobs consumers got. `claimed_ids`: of the claimed ones."""

    def __init__(
        self,
        database: Database,
        context: LeaseContext,
        expired: ExpiredLeases,
        reoffers: Mapping[str, Reoffer],
        batch: JobBatch,
    ) -> None:
        self._database, self._context, self._expired = database, context, expired
        self._reoffers, self._batch = reoffers, batch
        self._routing = context.process.databases.routing
        self._shares: list[_Share] = []
        self._rows: Mapping[int, ClaimedRow] = {}
        self.leased = 0
        self.claimed_ids: set[int] = set()
        self._starts = LeaseStarts(context)
        self.has_distributed = False

    # ---- read and distribute

    def distribute_rows(self) -> None:
        """Reads the rows, and gives those that can be claimed to consumers. Raises StoreUnavailable."""
        batch, context = self._batch, self._context
        ids_by_shard = self._ids_in_their_shards(batch.ids)
        self._rows = self._read_rows(ids_by_shard)
        now_ms = self._now_ms()
        acks: list[Ack] = []
        by_type: dict[str, list[Job]] = defaultdict(list)
        for job_id in dict.fromkeys(each for ids in ids_by_shard.values() for each in ids):
            row = self._rows.get(job_id)
            if row is None or row.due_ms is None or not row.status.live:
                acks.append(Ack(batch.topic, job_id, None))
                continue
            biz_type = context.type_name_of_row(row, self._database)
            is_closed = context.process.gate.is_closed(biz_type)
            if is_closed and not batch.has_pass:  # paused since the pop
                acks.append(Ack(batch.topic, job_id, Reminder(row.due_ms, job_id)))
                continue
            ack = self._ack_of_unclaimable_row(row, row.due_ms, biz_type, now_ms)
            if ack is not None:
                acks += ack
                continue
            try:
                by_type[biz_type].append(context.job_of_row(row, biz_type))
            except PayloadUnreadableError as error:
                acks.append(self._put_back_unreadable_job(row, biz_type, error, now_ms))
        for biz_type, jobs in by_type.items():
            acks += self._distribute_jobs_of_type(biz_type, jobs, now_ms)
        self.has_distributed = True
        self._send_acks(acks)

    def _put_back_unreadable_job(
        self, row: ClaimedRow, biz_type: str, error: PayloadUnreadableError, now_ms: int
    ) -> Ack:
        """The ack of a job that no consumer gets, because its payload cannot be decrypted here."""
        biz_id = row.biz_id if row.biz_text is None else row.biz_text
        identity = PayloadIdentity(row.job_id, biz_type, biz_id, row.tenant)
        self._database.payload_codecs.warn_job_waits(identity, error)
        again_ms = now_ms + UNREADABLE_WAIT_MS
        return Ack(self._batch.topic, row.job_id, Reminder(again_ms, row.job_id))

    def _read_rows(self, ids_by_shard: dict[int, list[int]]) -> Mapping[int, ClaimedRow]:
        """Reads the rows. Leaves out shards that cannot be read: their ids return after their stay."""
        claims, database = self._context.claims, self._database
        try:
            return claims.read_rows(database, ids_by_shard)
        except Exception as error:
            if is_away(error) or isinstance(error, SchemaMismatch) or len(ids_by_shard) == 1:
                raise
        found: dict[int, ClaimedRow] = {}
        for shard, ids in list(ids_by_shard.items()):
            try:
                found |= claims.read_rows(database, {shard: ids})
            except Exception as error:
                if is_away(error):
                    raise
                log.exception("reading due jobs of pull types in shard %d failed", shard)
                metrics.SERVICE_ERRORS.labels("toc-leases").inc()
                del ids_by_shard[shard]
        return found

    def _ids_in_their_shards(self, ids: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
        """The ids without those of rows in a wrong table, which must not run (a scanner reads such rows)."""
        found: dict[int, list[int]] = {}
        for shard, some in ids.items():
            right = [i for i in some if self._routing.shard_of_hash(routing_bits_of(i)) == shard]
            metrics.MISPLACED.inc(len(some) - len(right))
            if right:
                found[shard] = right
        return found

    def _ack_of_unclaimable_row(
        self, row: ClaimedRow, due_ms: int, biz_type: str, now_ms: int
    ) -> list[Ack] | None:
        """The acks of a live row that cannot be leased now; None: it can be, or taken over."""
        topic, job_id = self._batch.topic, row.job_id
        if self._context.declared_pull_type(biz_type) is None or (
            topic and self._context.topic_of(biz_type) != topic
        ):
            # Declared otherwise meanwhile: the reminder moves to the topic of the type.
            own = self._context.topic_of(biz_type)
            if own == topic:
                return [Ack(topic, job_id, Reminder(now_ms + PUT_BACK_MS_MAX, job_id))]
            return [Ack(own, job_id, Reminder(due_ms, job_id)), Ack(topic, job_id, None)]
        if row.status is Status.RUNNING:
            until_ms = self._expired.takeable_from_ms(row, biz_type)
            if row.overdue and until_ms <= now_ms:
                return None
            back_ms = until_ms if until_ms > now_ms else now_ms + PUT_BACK_MS_MIN
            return [Ack(topic, job_id, Reminder(back_ms, job_id))]
        if due_ms > now_ms:
            back = self._context.reminder_to_put_back(now_ms, due_ms, job_id)
            return [Ack(topic, job_id, back)]
        return None

    def _distribute_jobs_of_type(
        self, biz_type: str, jobs: list[Job], now_ms: int
    ) -> Iterable[Ack]:
        """Gives jobs to consumers; returns the acks of the other jobs."""
        context, topic = self._context, self._batch.topic
        jobs = self._bury_used_up_jobs(biz_type, jobs)
        jobs.sort(key=lambda job: (order_ms_of_job(context, job), job.job_id))
        result = context.room.distribute_jobs(biz_type, jobs)
        for waiter, given in result.taken:
            lease_ms = waiter.lease_ms[biz_type]
            token = context.new_lease_token()
            self._shares.append(_Share(waiter, biz_type, token, lease_ms, given, len(given)))
        reoffer = self._reoffers.get(biz_type if topic else SCANNED)
        delay_ms = 0
        if reoffer is not None:
            delay_ms = round(reoffer.delay_s * 1000)
            reoffer.record_batch(len(result.refused), len(jobs) - len(result.refused))
        for job in result.no_place:  # the due time stays: another replica may have a consumer
            yield Ack(topic, job.job_id, Reminder(job.due_ms or now_ms, job.job_id))
        for job in result.refused:
            yield Ack(topic, job.job_id, Reminder(now_ms + delay_ms, job.job_id))

    def _bury_used_up_jobs(self, biz_type: str, jobs: list[Job]) -> list[Job]:
        """Makes jobs dead whose last lease has expired; returns the others."""
        left = []
        for job in jobs:
            if job.status is Status.RUNNING and self._expired.attempts_are_used_up(job):
                topic = self._batch.topic or self._context.topic_of(biz_type)
                self._expired.bury_job(job, topic, self._now_ms())
            else:
                left.append(job)
        return left

    # ---- claim and deliver

    def claim_rows(self) -> None:
        """Claims the distributed rows and delivers them. Raises StoreUnavailable, the jobs given back."""
        try:
            self._ask_limits()
            self._claim_pending_rows()
            self._take_over_expired_leases()
        except Exception:
            self._give_back_everything_claimed()
            raise
        finally:
            for share in self._shares:
                self._deliver_share(share)

    def _ask_limits(self) -> None:
        """Leaves out the rows that the limits of their types refuse now."""
        acks: list[Ack] = []
        topic, now_ms = self._batch.topic, self._now_ms()
        for share in self._shares:
            share.jobs, refused = self._starts.admit_jobs(
                share.biz_type, share.jobs, share.token, share.lease_ms, topic, now_ms
            )
            acks += refused
        self._send_acks(acks)

    def _claim_pending_rows(self) -> None:
        wanted = []
        for share in self._shares:
            ids: dict[int, list[int]] = defaultdict(list)
            for job in share.jobs:
                if job.status is Status.PENDING:
                    ids[self._shard_of(job.job_id)].append(job.job_id)
            if ids:
                wanted.append(ClaimForConsumer(share.token, share.lease_ms, ids))
        if not wanted:
            return
        time_ms = self._batch.time_ms
        rows = self._context.claims.claim_for_consumers(self._database, wanted, time_ms)
        acks: list[Ack] = []
        now_ms = self._now_ms()
        for share in self._shares:
            for job in share.jobs:
                if job.status is Status.PENDING:
                    acks.append(self._take_row_of_share(share, job, rows.get(job.job_id), now_ms))
        self._send_acks(acks)

    def _take_row_of_share(
        self, share: _Share, job: Job, row: ClaimedRow | None, now_ms: int
    ) -> Ack:
        """Adds a claimed row to its share. Returns the ack: the reminder is due when the lease ends."""
        topic, job_id = self._batch.topic, job.job_id
        if row is None or row.due_ms is None or not row.status.live:
            return Ack(topic, job_id, None)
        if row.status is Status.RUNNING and row.token == share.token:
            share.got.append(self._leased_job(row, share))
            return Ack(topic, job_id, Reminder(row.due_ms, job_id))
        if row.due_ms > now_ms:
            return Ack(
                topic, job_id, self._context.reminder_to_put_back(now_ms, row.due_ms, job_id)
            )
        return Ack(topic, job_id, Reminder(now_ms + self._clock_delay_ms(row.due_ms), job_id))

    def _take_over_expired_leases(self) -> None:
        """Takes over the distributed rows whose leases have expired, one in a transaction."""
        left, acks = TAKE_OVERS_MAX, list[Ack]()
        for share in self._shares:
            for job in share.jobs:
                if job.status is not Status.RUNNING:
                    continue
                row = None
                if left:
                    left -= 1
                    row = self._expired.take_over_job(
                        job, share.token, share.lease_ms, self._batch.topic
                    )
                # Not taken over: another replica was faster, or the next pop of this id tries again.
                due_ms = self._now_ms() + PUT_BACK_MS_MIN
                if row is not None and row.due_ms is not None:
                    share.got.append(self._leased_job(row, share))
                    due_ms = row.due_ms
                acks.append(Ack(self._batch.topic, job.job_id, Reminder(due_ms, job.job_id)))
        self._send_acks(acks)

    def _deliver_share(self, share: _Share) -> None:
        """Delivers a share; gives back what the consumer does not take any more."""
        self.claimed_ids.update(leased.job_id for leased in share.got)
        left = self._context.room.deliver_jobs(share.waiter, share.reserved, share.got)
        self._give_back(share, [job.job_id for job in left])
        gone = {job.job_id for job in left}
        self._starts.return_unused(
            share.token, {each.job_id for each in share.got if each.job_id not in gone}
        )
        given = len(share.got) - len(left)
        self.leased += given
        if given:
            metrics.FIRED.labels(share.biz_type).inc(given)
            now_ms = self._now_ms()
            for leased in share.got[:given]:
                if leased.attempt == 1:
                    action_ms = self._rows[leased.job_id].action_ms
                    lateness = metrics.LATENESS
                    if self._context.process.gate.is_held_back(share.biz_type, action_ms):
                        lateness = metrics.LATENESS_PAUSED
                    lateness.observe(max(0.0, (now_ms - action_ms) / 1000))

    def _give_back_everything_claimed(self) -> None:
        """After a lost answer: all rows of the batch may be claimed, and no consumer gets them."""
        for share in self._shares:
            got = {leased.job_id for leased in share.got}
            self._give_back(share, [job.job_id for job in share.jobs if job.job_id not in got])

    def _give_back(self, share: _Share, job_ids: Sequence[int]) -> None:
        topic = self._context.topic_of(share.biz_type)
        self._context.give_back(self._database, topic, share.token, job_ids, self._now_ms())

    # ---- small things

    def _leased_job(self, row: ClaimedRow, share: _Share) -> LeasedJob:
        job = self._context.job_of_row(row, share.biz_type)
        return LeasedJob(
            job.job_id, share.token, datetime_of(job.due_ms or 0), job.attempts, job.biz_id,
            job.biz_type, job.tenant, job.attribute, job.action_time,
            is_countdown_key(job.dedup_key), job.trace, job.nominal_time,
        )  # fmt: skip

    def _send_acks(self, acks: Sequence[Ack]) -> None:
        if self._batch.popped and acks:
            self._context.acks.send_acks(acks)

    def _now_ms(self) -> int:
        """The server's time that found the batch due; without Redis, the database's."""
        if self._batch.time_ms is not None:
            return self._batch.time_ms
        known = self._database.server_clock.believed_now_ms()
        return self._context.process.clock.wall_ms() if known is None else known

    def _clock_delay_ms(self, due_ms: int) -> int:
        """How long to put back a job that is due by Redis' clock, but not by the database's."""
        now_ms = self._database.server_clock.believed_now_ms()
        left_ms = 0 if now_ms is None else due_ms - now_ms
        return min(max(left_ms, PUT_BACK_MS_MIN), PUT_BACK_MS_MAX)

    def _shard_of(self, job_id: int) -> int:
        return self._routing.shard_of_hash(routing_bits_of(job_id))


def _return_admissions(batch: JobBatch, claimed: Collection[int]) -> None:
    """Returns the admissions of ids that were not claimed."""
    if batch.admissions:
        unused = Counter(each for job_id, each in batch.admissions.items() if job_id not in claimed)
        for admission, count in unused.items():
            admission.return_unused(count)
