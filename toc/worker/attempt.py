"""The steps immediately before and after each handler: the last check of the lease, and the outcome."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache

from toc.domain.result_document import encode_document
from toc.handlers.current_job import log_fields_of_job
from toc.handlers.hook_calls import report_failure
from toc.handlers.verdicts import Done
from toc.runtime import metrics
from toc.runtime.service import Inbox
from toc.store.claims import Outcome, OutcomeKind
from toc.worker.context import WorkerContext
from toc.worker.job_run import FinishedRun, JobRun
from toc.worker.outcome import outcome_for_giving_back, outcome_of_run, result_within_limit
from toc.worker.run_log import RunLog

log = logging.getLogger(__name__)

# Delay until the next attempt of a job whose verdict or retry policy is invalid.
LAST_RESORT_S = 60.0

FAILED = (OutcomeKind.RETRY, OutcomeKind.BURY)
"""The outcomes of attempts that have failed."""

_fired_counter = cache(metrics.FIRED.labels)
_TIMER_STAGE = metrics.STAGE.labels("timer")
_DATABASE_STAGE = metrics.STAGE.labels("database")
_QUEUE_STAGE = metrics.STAGE.labels("queue")
_HANDLER_STAGE = metrics.STAGE.labels("handler")


class AttemptHooks:
    """Starts and ends attempts for the handler pool. `settlers`: the settle stage of each database."""

    def __init__(self, context: WorkerContext, settlers: Sequence[Inbox[FinishedRun]]) -> None:
        self._context, self._settlers, self._gate = context, settlers, context.process.gate
        self._clock = context.process.clock
        self._settings = context.process.settings.worker
        self._result_bytes_max = context.process.settings.limits.result_bytes
        self._snooze_ms_min = round(self._settings.snooze_s_min * 1000)
        self._log = RunLog(self._clock, tracebacks=self._settings.tracebacks_per_minute)

    def may_start(self, run: JobRun) -> bool:
        """Whether enough of the lease is left to start the handler, by this machine's clocks (I3).

        The pool calls this method immediately before the handler. False: the job was given back.
        """
        now_s = self._clock.monotonic_s()
        # It must last until the handler ends, or until the first renewal.
        held_s = min(run.spec.timeout_s, self._settings.renew_after_s)
        needed_s = held_s + self._settings.lease_margin_s
        left_s = run.lease_left_s(now_s, self._clock.wall_ms())
        is_too_late = left_s < needed_s  # guard: enough-lease-to-start
        # A run may start again after its batch has failed; it may have lost its claim meanwhile.
        is_too_late = is_too_late or run.control.is_lost
        waited_s = now_s - run.queued_s
        is_again = run.started_s > 0  # alone, after its batch has failed
        if waited_s - run.spec.batch_wait_s > self._settings.queue_wait_s and not is_again:
            # Too many jobs were claimed: jobs wait in this process that another node could run.
            self._context.permits.halve_limit()
        is_paused = (
            self._gate.is_closed(run.job.biz_type) and not run.has_pass
        )  # guard: begin-open-types
        if self._context.permits.closed or is_too_late or is_paused:
            self._send_to_settler(run, outcome_for_giving_back(run))
            return False
        run.started_s = now_s
        _fired_counter(run.job.biz_type).inc()
        self._log.log_handler_start(run)
        if is_again:
            run.control.lateness_s = None
            return True
        if run.job.attempts == 1:
            lateness_s = run.lateness_s(now_s)
            if self._gate.is_held_back(run.job.biz_type, run.job.action_ms):
                metrics.LATENESS_PAUSED.observe(lateness_s)
            else:
                metrics.LATENESS.observe(lateness_s)
                run.control.lateness_s = lateness_s
            if run.found_ms is not None:
                _TIMER_STAGE.observe(max(0.0, (run.found_ms - run.job.action_ms) / 1000))
        _DATABASE_STAGE.observe(run.queued_s - run.asked_s)
        _QUEUE_STAGE.observe(waited_s)
        return True

    def settle_result(self, run: JobRun, result: object) -> None:
        """Settles a run whose handler has returned or raised `result`."""
        now_s = self._clock.monotonic_s()
        now_ms = run.database_now_ms(now_s)  # guard: retry-by-the-databases-time
        _HANDLER_STAGE.observe(now_s - run.started_s)
        spread = self._context.process.rng.uniform(-1, 1)
        try:
            outcome = outcome_of_run(run, result, now_ms, spread, snooze_ms_min=self._snooze_ms_min)
        except Exception as error:
            # An invalid verdict (e.g. a timedelta out of range) must not end the thread.
            text = "the verdict of job %d is invalid: the job is tried again in a minute"
            log.exception(text, run.job.job_id, extra=log_fields_of_job(run.job))
            again_ms = now_ms + round(LAST_RESORT_S * 1000)
            outcome = Outcome(
                run.job.job_id, run.token, OutcomeKind.RETRY, due_ms=again_ms, error=str(error)
            )
        self._log.log_handler_end(run, result, outcome, now_ms, now_s - run.started_s)
        if outcome.kind in FAILED and not run.control.is_lost:
            is_dead = outcome.kind is OutcomeKind.BURY
            hooks = self._context.handlers.hooks.registered
            report_failure(hooks, run.job, result, is_dead=is_dead)
        if isinstance(result, Done) or run.control.progress is not run.control.written_progress:
            outcome = outcome._replace(document=self._make_document(run, result, outcome))
        self._send_to_settler(run, outcome)

    def _make_document(self, run: JobRun, result: object, outcome: Outcome) -> str:
        """The text for the column `result`: the last progress, and the result of a job that is done."""
        text = None
        if isinstance(result, Done) and outcome.kind is OutcomeKind.DONE:
            text = result_within_limit(result.result_json, self._result_bytes_max, run.job)
        progress = run.control.progress
        return "" if text is None and progress is None else encode_document(progress, text)

    def _send_to_settler(self, run: JobRun, outcome: Outcome) -> None:
        self._settlers[run.database].enqueue(FinishedRun(run, outcome))
