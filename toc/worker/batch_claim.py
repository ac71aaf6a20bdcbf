"""The claim of one batch: asks the database, and sends each id on by what the claim found."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from toc.domain.ids import gene_of
from toc.domain.policy import unhandled_ms
from toc.errors import SchemaMismatch, is_away
from toc.runtime import metrics
from toc.runtime.batch import Batch
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.service import Inbox
from toc.store.claims import ClaimedRow, Outcome, OutcomeKind
from toc.store.databases import Database
from toc.store.schema import job_table_name
from toc.timer.reminders import Reminder
from toc.worker.acks import Ack, AckSender
from toc.worker.claim_result import ClaimResult, claim_result_of
from toc.worker.context import WorkerContext
from toc.worker.corrections import Correction, GiveBack
from toc.worker.run import Run, new_run
from toc.worker.take_over import LostLease

log = logging.getLogger(__name__)

# When a job is due by Redis' clock but not by the database's, its reminder is put back for so long.
PUT_BACK_MS_MIN = 1000
PUT_BACK_MS_MAX = 5000


@dataclass(frozen=True, slots=True)
class ClaimOutlets:
    """Where the ids of one database go after their claim."""

    runs: Inbox[Run]
    acks: AckSender
    suspects: Inbox[LostLease]
    corrections: Inbox[Correction]


class BatchClaim:
    """Claims one batch under one token. `permits_left`: those of the batch that no job carries on."""

    def __init__(
        self,
        context: WorkerContext,
        database: Database,
        outlets: ClaimOutlets,
        log_throttle: LogThrottle,
        batch: Batch,
    ) -> None:
        self._context, self._database, self._outlets = context, database, outlets
        self._batch, self._log_throttle = batch, log_throttle
        self._handlers, self._outages = context.handlers, context.permits.outages
        self.permits_left = batch.permits

    def run(self) -> int:
        """Claims, and returns how many jobs are to be run. Raises StoreUnavailable, ids given back."""
        batch = self._batch
        if not batch.popped:  # a poller goes by the id's shard; a scanner by the table of the row
            batch = self._without_misplaced(batch)
        if not batch.ids:
            return 0
        self._handlers.refresh()
        self._token, self._asked = self._context.new_token(), self._context.read_clocks()
        try:
            seen = self._ask(batch)
        except Exception as error:
            if isinstance(error, SchemaMismatch) or is_away(error):
                self._record_no_answer(batch)
                raise
            # One broken table must not delay the other shards of the batch.
            text = "claiming %d shards of database %d failed"
            log.exception(text, len(batch.ids), self._database.index)
            return self._claim_each(batch)
        return self._send_on(batch, seen)

    def _claim_each(self, batch: Batch) -> int:
        """Claims shard by shard, under the same token: jobs committed before are seen as claimed."""
        claimed, left = 0, dict(batch.ids)
        for shard, ids in batch.ids.items():
            part = replace(batch, ids={shard: ids})
            try:
                seen = self._ask(part)
            except Exception as error:
                if isinstance(error, SchemaMismatch) or is_away(error):
                    self._record_no_answer(replace(batch, ids=left))
                    raise
                # Its ids stay in the PrepareQueue and return after their stay.
                log.exception("claiming shard %d failed", shard)
                metrics.SERVICE_ERRORS.labels("toc-worker").inc()
                self._give_back(part.job_ids)
            else:
                claimed += self._send_on(part, seen)
            del left[shard]
        return claimed

    def _ask(self, batch: Batch) -> dict[int, ClaimedRow]:
        seen = self._context.claims.claim(self._database, batch.ids, self._token, batch.time_ms)
        self._outages.record_answer(self._database.index)
        return seen

    def _record_no_answer(self, batch: Batch) -> None:
        """Records that the database does not answer. The batch may have been claimed: gives it back."""
        self._outages.record_no_answer(self._database.index)
        self._give_back(batch.job_ids)
        self._outlets.acks.send(acks_that_return(self._context, self._database.index, batch))

    def _give_back(self, job_ids: Sequence[int]) -> None:
        """Gives back those of the ids that the token has claimed and that are no runs yet."""
        if job_ids:
            batch = self._batch
            outcomes = [Outcome(each, self._token, OutcomeKind.GIVE_BACK) for each in job_ids]
            due_ms = batch.time_ms if batch.popped else None
            self._outlets.corrections.put(GiveBack(batch.topic, outcomes, due_ms))

    def _without_misplaced(self, batch: Batch) -> Batch:
        """The batch without rows whose job_id belongs to another table.

        Such a row must not run: its outcome would be written to the other table, and it would run again
        after each lease.
        """
        routing, ids_of = self._context.process.databases.routing, {}
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

    # ---- after the answer

    def _send_on(self, batch: Batch, seen: Mapping[int, ClaimedRow]) -> int:
        """Sends each id on, once, by its claim result; returns how many jobs are to be run."""
        runs: list[Run] = []
        without_handler: list[int] = []
        acks: list[Ack] = []
        new_types: dict[int, list[int]] = {}
        for shard, job_id in (
            # An id that is listed twice would run twice, since both have the same token.
            (shard, job_id)
            for shard, ids in batch.ids.items()
            for job_id in dict.fromkeys(ids)  # guard: run-once
        ):
            row = seen.get(job_id)
            spec = None if row is None else self._handlers.spec_of(row.type_no)
            result = claim_result_of(row, self._token, batch.time_ms or 0, handled=spec is not None)
            if row is None or row.due_ms is None or result is ClaimResult.FORGET:
                acks.append(Ack(batch.topic, job_id, None))
            elif result is ClaimResult.RUN and spec is not None:
                runs.append(
                    new_run(
                        self._context, self._database, row, spec,
                        self._token, batch.found_s, self._asked,
                    )
                )  # fmt: skip
                runs[-1].found_ms = batch.time_ms
            elif result is ClaimResult.RUN:  # its type has lost its handler here since the claim
                without_handler.append(job_id)
            elif result is ClaimResult.SUSPECT:
                # Its reminder stays in the PrepareQueue and returns after its stay.
                self._outlets.suspects.put(LostLease.of_row(shard, row))
            elif spec is None and self._handlers.find_unknown_type(row.type_no, self._database):
                new_types.setdefault(shard, []).append(job_id)
            else:
                acks.append(self._put_back(batch, row, row.due_ms, result))
        self._send_runs(runs)
        self._give_back(without_handler)
        if batch.popped:  # sent before their permits come back: so these bound what is popped
            self._outlets.acks.send(acks)
        return len(runs) + (self._claim_again(new_types) if new_types else 0)

    def _claim_again(self, ids: Mapping[int, Sequence[int]]) -> int:
        """Claims jobs whose type was just learned, and has a handler, by a claim of their own."""
        batch = replace(self._batch, ids=ids, permits=self.permits_left)
        again = BatchClaim(self._context, self._database, self._outlets, self._log_throttle, batch)
        try:
            return again.run()
        finally:
            self.permits_left = again.permits_left

    def _send_runs(self, runs: Sequence[Run]) -> None:
        jobs = len(runs)
        self._context.permits.add_in_flight(self._database.index, jobs, permits=jobs)
        self.permits_left -= jobs
        if not self._batch.popped:
            metrics.RESCUED.inc(jobs)
        for run in runs:
            self._outlets.runs.put(run)

    def _put_back(self, batch: Batch, row: ClaimedRow, due_ms: int, result: ClaimResult) -> Ack:
        """The ack that puts the reminder of a job back which does not run now."""
        now_ms = batch.time_ms or 0
        if result is ClaimResult.UNHANDLED:
            self._handlers.warn_unhandled(row.type_no, self._database)
            back = Reminder(now_ms + unhandled_ms(now_ms - due_ms), row.job_id)
        elif due_ms <= now_ms:  # the loader's mark is past it: its reminder must stay in Redis
            back = Reminder(now_ms + self._put_back_delay_ms(due_ms), row.job_id)
        else:
            back = self._context.reminder_to_put_back(now_ms, due_ms, row.job_id)
        return Ack(batch.topic, row.job_id, back)

    def _put_back_delay_ms(self, due_ms: int) -> int:
        """How long to put back a reminder whose job is due by Redis' clock, but could not be claimed."""
        now_ms = self._database.server_clock.now_ms()
        left_ms = 0 if now_ms is None else due_ms - now_ms
        return min(max(left_ms, PUT_BACK_MS_MIN), PUT_BACK_MS_MAX)


def acks_that_return(context: WorkerContext, database: int, batch: Batch) -> Sequence[Ack]:
    """Returns the ids of a database that takes no jobs to the timer.

    Where their slots are still popped, for the other databases, they are due again in some seconds.
    Otherwise their due time stays. This process does not pop for this database for a while, but perhaps only
    this process cannot reach it, or stops: then other nodes see that the jobs are late.
    """
    permits = context.permits
    if not batch.popped or batch.time_ms is None:
        return ()
    later_ms = permits.outages.put_off_ms(database) if batch.shared and not permits.closed else 0
    due_ms = batch.time_ms + later_ms
    return [Ack(batch.topic, job_id, Reminder(due_ms, job_id)) for job_id in batch.job_ids]
