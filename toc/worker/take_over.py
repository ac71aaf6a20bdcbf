"""The changes of a suspect's row: the take-over, the burial, and ":alone" at the end of the token."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from toc.domain.claim_tokens import ALONE, remove_alone_mark
from toc.handlers.registry import HandlerSpec
from toc.runtime import metrics
from toc.runtime.service import Inbox
from toc.store.claims import Outcome, OutcomeKind
from toc.store.databases import Database
from toc.worker.acks import Ack
from toc.worker.context import WorkerContext
from toc.worker.job_run import JobRun, RunMaker
from toc.worker.limited_batch import BatchStarts
from toc.worker.row_corrections import ChangeAloneMark, GiveBackJobs, RowCorrection

log = logging.getLogger(__name__)

LOST_LEASE = (
    "lease lost: in its last attempt the worker died, or the handler did not return in time"
)


@dataclass(slots=True)
class SuspectJob:
    """A running row under `token` whose lease was over.

    `tries`: how often the process did not become quiet for this job. `lost`: the job has lost its last lease,
    and is buried when it is processed again. `is_refused`: the last try found the limit of its type used up.
    """

    shard: int
    job_id: int
    type_no: int
    attempts: int
    token: str
    tries: int = 0
    lost: bool = False
    is_refused: bool = False


class TakeOver:
    """The changes of suspects' rows in one database. Taken-over jobs go to the run stage."""

    def __init__(
        self,
        database: Database,
        context: WorkerContext,
        runs: Inbox[JobRun],
        acks: Inbox[Sequence[Ack]],
        corrections: Inbox[RowCorrection],
    ) -> None:
        self._database, self._context = database, context
        self._claims, self._handlers = context.claims, context.handlers
        self._runs, self._acks, self._corrections = runs, acks, corrections

    def take_over_suspect(
        self, suspect: SuspectJob, done: threading.Event, *, alone: bool
    ) -> JobRun | None:
        """Takes a suspect over. Returns its run; None if it was not taken over.

        It is not taken over if this worker has no handler of its type, if its type is paused or its limit
        is used up, if another process was faster, or if another transaction has locked the row.
        `alone`: the caller holds the process, and the new token ends in ":alone". If this lease is lost too,
        the ending shows that no other job ran here meanwhile.
        `done` is set when the run is settled. When the answer is lost, `done` is set after the job was given
        back; when the database refuses, at once.
        """
        spec = self._handlers.handler_spec_of(suspect.type_no)
        suspect.is_refused = False
        if spec is None or self._context.process.gate.is_closed(spec.biz_type):
            return None
        token = self._context.new_claim_token() + (ALONE if alone else "")
        limits = self._context.process.limits
        if limits is None or limits.terms_of(spec.biz_type) is None:
            return self._take_over(suspect, spec, token, done)
        starts = BatchStarts(self._context, limits, self._database, token)
        try:
            if not starts.admit_suspect(
                suspect.shard, suspect.job_id, spec.biz_type, suspect.token
            ):
                suspect.is_refused = True
                return None
            run = self._take_over(suspect, spec, token, done)
            if run is not None:
                starts.note_runs([run])
            return run
        finally:
            starts.return_unused()

    def _take_over(
        self, suspect: SuspectJob, spec: HandlerSpec, token: str, done: threading.Event
    ) -> JobRun | None:
        asked = self._context.read_clocks()
        job_id, seen, sent = suspect.job_id, suspect.token, threading.Event()
        try:
            row = self._claims.take_over_job(
                self._database, suspect.shard, job_id, seen, token, sent.set
            )
        except Exception:
            if sent.is_set():
                # The take-over may be committed, but nobody runs the job: the attempt must not count.
                lost = Outcome(job_id, token, OutcomeKind.GIVE_BACK, 0, "the answer was lost", seen)
                give_back = GiveBackJobs("", [lost], written=done)
                self._corrections.enqueue(give_back)  # guard: give-back-take-over
            else:  # the database refused the take-over: there is nothing to give back
                done.set()
            raise
        if row is None:
            return None
        metrics.TAKEN_OVER.inc()
        maker = RunMaker(self._context, self._database, token, asked.monotonic_s, asked)
        run = maker.make_run(row, spec)
        run.settled, run.previous_token = done, seen
        self._context.permits.add_jobs_in_flight(self._database.index, 1, permits=0)
        self._runs.enqueue(run)
        return run

    def change_alone_mark(
        self, suspect: SuspectJob, run: JobRun, *, alone: bool
    ) -> threading.Event:
        """Sets or removes ":alone" in the token of a run. The event is set when the row has the token."""
        unmarked = remove_alone_mark(run.token)
        tokens = (unmarked, run.token) if alone else (run.token, unmarked)
        change = ChangeAloneMark(suspect.shard, suspect.job_id, *tokens)
        self._corrections.enqueue(change)
        return change.written

    def end_job_as_dead(self, suspect: SuspectJob) -> None:
        """Makes a job dead that has lost the lease of its last attempt."""
        if self._claims.bury_expired_job(
            self._database, suspect.shard, suspect.job_id, suspect.token, LOST_LEASE,
            self._context.identity,
        ):  # fmt: skip
            log.warning("job %d is dead: %s", suspect.job_id, LOST_LEASE)
            biz_type = self._handlers.type_name(suspect.type_no, self._database)
            metrics.ENDED.labels(biz_type, OutcomeKind.BURY.value).inc()
            topic = self._context.process.settings.topic_of_biz_type(biz_type)
            self._acks.enqueue([Ack(topic, suspect.job_id, None)])

    def count_attempts_left(self, suspect: SuspectJob) -> int:
        """How many attempts `max_attempts` still allows; negative: the job has had extra attempts."""
        spec = self._handlers.handler_spec_of(suspect.type_no)
        return 1 if spec is None else spec.max_attempts - suspect.attempts
