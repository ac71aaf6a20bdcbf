"""The settle stage: writes outcomes to the database, and only then hands them to the ack stage.

Each database has its own settler, so that a database that does not answer delays no other. Permits bound the
queue; the permits come back when the outcomes are written.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence

from toc.domain.text_escaping import escape_to_one_line
from toc.errors import is_away
from toc.handlers.current_job import log_fields_of_job
from toc.runtime import metrics
from toc.runtime.job_ends import job_ends
from toc.runtime.service import Inbox, Service
from toc.store.claims import OutcomeKind
from toc.store.databases import Database
from toc.worker.acks import Ack
from toc.worker.context import WorkerContext
from toc.worker.job_run import FinishedRun
from toc.worker.occurrence_settle import OccurrenceSettle
from toc.worker.row_corrections import CorrectionQueue

log = logging.getLogger(__name__)

IDLE_S = 1.0
AGAIN_S = 1.0  # an outcome that could not be written is tried again then, until its lease ends
_ENDED = (OutcomeKind.DONE, OutcomeKind.DROP, OutcomeKind.BURY)


class Settler(Service):
    """Settles the runs of one database."""

    def __init__(
        self,
        database: Database,
        context: WorkerContext,
        acks: Inbox[Sequence[Ack]],
        occurrences: OccurrenceSettle,
    ) -> None:
        super().__init__(f"toc-settler-{database.index}")
        self._database, self._context, self._acks = database, context, acks
        self._occurrences = occurrences
        self._claims, self._clock = context.claims, context.process.clock
        self._limits = context.process.limits
        settings = context.process.settings.worker
        self._batch_max, self._wait_s = settings.settle_max, settings.settle_wait_ms / 1000
        self._queue: deque[FinishedRun] = deque()
        self._batch: list[FinishedRun] = []  # taken from the queue, not settled yet
        self._failed: list[
            FinishedRun
        ] = []  # outcomes that could not be written, and are tried again
        self._failed_s = 0.0
        self.corrections = CorrectionQueue(
            database, self._claims, acks, self._clock, self._log_throttle, self.wake
        )

    def enqueue(self, ended: FinishedRun, /) -> None:
        """Queues an outcome. Any thread; never blocks."""
        self._context.permits.note_handler_ended()
        self._queue.append(ended)
        if not self._wake.is_set():
            self.wake()

    def run_once(self) -> float:
        """Settles one batch. Raises StoreUnavailable and keeps the batch if the database does not answer."""
        if not self._batch:
            self._fill_batch()
        if self._batch:
            self._settle_batch()
        return min(
            self.corrections.write_next_correction(), 0 if self._queue or self._batch else IDLE_S
        )

    def _settle_batch(self) -> None:
        failed: list[FinishedRun] = []
        try:
            held = self._settle_runs(self._batch)
        except Exception as error:
            if is_away(error):
                raise
            text = "settling %d outcomes of database %d failed; each is settled by itself now: %s"
            self._log_throttle.warning("batch", text, len(self._batch), self._database.index, error)
            held, failed = self._settle_one_by_one()
        lost = {id(ended) for ended in failed}
        batch = [ended for ended in self._batch if id(ended) not in lost]
        gone = self._keep_failed_for_retry(failed)
        self._count_outcomes(batch, held)
        for ended in [*batch, *gone]:
            if ended.run.settled is not None:
                ended.run.settled.set()
            if ended.run.admission is not None:
                ended.run.admission.job_ended(ended.outcome.job_id)
            if self._limits is not None and len(self._limits.holders):
                self._limits.job_ended(ended.outcome.job_id, ended.run.token)
        self._context.permits.remove_jobs_in_flight(self._database.index, len(batch) + len(gone))
        settled = [e for e in batch if (e.outcome.job_id, e.outcome.token) in held]
        if job_ends.is_awaited:
            job_ends.tell_ended(e.outcome.job_id for e in settled if e.outcome.kind in _ENDED)
        self._acks.enqueue([ack for ended in settled for ack in self._make_acks(ended)])

    def _settle_runs(self, batch: Sequence[FinishedRun]) -> set[tuple[int, str]]:
        """Writes outcomes; those that end occurrences of recurring schedules each in a transaction."""
        held: set[tuple[int, str]] = set()
        outcomes = [ended.outcome for ended in batch]
        ending = [
            each
            for each in batch
            if each.run.job.dedup_key is not None
            and self._occurrences.ends_occurrence(each.run.job, each.outcome)
        ]
        for run, outcome in ending:
            held |= self._occurrences.settle(self._database, run.job, outcome)
            outcomes.remove(outcome)
        if outcomes:
            held |= self._claims.settle_jobs(self._database, outcomes)  # guard: settle-before-ack
        return held

    def _fill_batch(self) -> None:
        if self._failed and self._clock.monotonic_s() >= self._failed_s + AGAIN_S:
            # Failed outcomes are a separate batch, because they may fail again.
            self._batch, self._failed = self._failed, []
            return
        if not self._queue:
            return
        awaited = self._queue[0].run.settled is not None  # lease recovery waits for this settle
        if len(self._queue) < self._batch_max and not (awaited or self.stopping):
            self._stopping.wait(self._wait_s)  # a larger batch makes the commit cheaper per outcome
        while self._queue and len(self._batch) < self._batch_max:
            self._batch.append(self._queue.popleft())

    def _keep_failed_for_retry(self, failed: list[FinishedRun]) -> list[FinishedRun]:
        """Ends the batch and keeps its failed outcomes for a retry, while their lease lasts.

        Returns the failed outcomes whose lease is over: these are given up.
        """
        now_s = self._clock.monotonic_s()
        if not self._failed:  # a later failure must not postpone the retry of earlier ones
            self._failed_s = now_s
        self._batch = []
        self._failed += [ended for ended in failed if now_s < ended.run.lease_end_s]
        return [ended for ended in failed if now_s >= ended.run.lease_end_s]

    def _settle_one_by_one(self) -> tuple[set[tuple[int, str]], list[FinishedRun]]:
        """Writes the batch's outcomes one by one, so that an outcome that cannot be written delays no other.

        Returns the (job_id, token) pairs that were written, and the outcomes that failed.
        """
        held: set[tuple[int, str]] = set()
        failed: list[FinishedRun] = []
        for ended in self._batch:
            try:
                held |= self._settle_runs([ended])
            except Exception as error:
                if is_away(error):
                    raise
                text = "outcome %s of job %d cannot be recorded: %s"
                job_id = ended.outcome.job_id
                self._log_throttle.warning("outcome", text, ended.outcome.kind, job_id, error)
                failed.append(ended)
        return held, failed

    def _count_outcomes(self, batch: list[FinishedRun], held: set[tuple[int, str]]) -> None:
        kinds: Counter[tuple[str, OutcomeKind]] = Counter()
        for ended in batch:
            outcome = ended.outcome
            if (outcome.job_id, outcome.token) not in held:
                metrics.STALE.inc()
                text = "outcome %s of job %d came too late: refused, as the row has another token"
                fields = log_fields_of_job(ended.run.job)
                log.warning(text, outcome.kind, outcome.job_id, extra=fields)
                continue
            kinds[ended.run.job.biz_type, outcome.kind] += 1
            if outcome.kind is OutcomeKind.BURY:
                log.warning(
                    "job %d is dead: %s",
                    outcome.job_id,
                    escape_to_one_line(outcome.error.partition("\n")[0]),
                    extra=log_fields_of_job(ended.run.job),
                )
        for (biz_type, kind), n in kinds.items():
            metrics.ENDED.labels(biz_type, kind.value).inc(n)

    def _make_acks(self, ended: FinishedRun) -> Sequence[Ack]:
        run, outcome = ended
        if outcome.kind in _ENDED:
            return (Ack(run.topic, outcome.job_id, None),)
        now_ms = run.database_now_ms(self._clock.monotonic_s())
        back = self._context.reminder_to_put_back(
            now_ms, outcome.due_ms or run.job.action_ms, outcome.job_id
        )
        return self._context.send_home(Ack(run.topic, outcome.job_id, back), run.job.biz_type)
