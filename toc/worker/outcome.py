"""Turns what a handler returned or raised into an outcome. Pure: time and randomness are passed in."""

from __future__ import annotations

import logging
import math
import traceback
from datetime import datetime

from toc.domain.job import Job
from toc.domain.times import EPOCH, MS_MAX, ceil_ms
from toc.handlers.current_job import log_fields_of_job
from toc.handlers.verdicts import Dead, Done, Drop, Retry, Snooze
from toc.store.claims import Outcome, OutcomeKind
from toc.store.events import ERROR_CHARS_MAX
from toc.worker.job_run import CancelledByShutdown, JobRun

log = logging.getLogger(__name__)


def outcome_of_run(
    run: JobRun, result: object, now_ms: int, spread: float, *, snooze_ms_min: int
) -> Outcome:
    """The outcome of a run. `result`: what the handler returned, or the exception it raised.

    `spread`: a random number in [-1, 1] for the retry's delay. `snooze_ms_min`: a snoozed job is due at
    least so much later than now. Snoozes count no attempts, so nothing else would stop a handler that
    always asks for a moment in the past.
    """
    job_id, token = run.job.job_id, run.token
    if run.control.is_lost:
        # The row refuses this outcome, as the claim is lost. If the take-over was undone, the row has this
        # token again: then the job must run again, whatever the handler, told to stop, has returned.
        text = "the claim was lost while the handler ran"
        return Outcome(job_id, token, OutcomeKind.RETRY, due_ms=now_ms, error=text)
    if isinstance(result, CancelledByShutdown):
        return outcome_for_giving_back(run)
    # A verdict is a BaseException as well.
    if not isinstance(result, BaseException) or isinstance(result, Done):
        return Outcome(job_id, token, OutcomeKind.DONE)
    if isinstance(result, Snooze):
        until = result.until
        ms = ceil_ms(until - EPOCH) if isinstance(until, datetime) else now_ms + ceil_ms(until)
        due_ms = min(max(ms, now_ms + snooze_ms_min), MS_MAX)
        return Outcome(job_id, token, OutcomeKind.SNOOZE, due_ms=due_ms)
    if isinstance(result, (Drop, Dead)):
        kind = OutcomeKind.DROP if isinstance(result, Drop) else OutcomeKind.BURY
        return Outcome(job_id, token, kind, error=result.reason)
    return _outcome_of_failure(run, result, now_ms, spread)


def outcome_for_giving_back(run: JobRun) -> Outcome:
    """The outcome of a run that was not started, or was cancelled by the shutdown: no attempt is counted.

    If the job was taken over, the row becomes as before the take-over (see `Outcome.previous_token`).
    """
    text = "not run to its end" if run.previous_token else ""
    return Outcome(
        run.job.job_id, run.token, OutcomeKind.GIVE_BACK,
        error=text, previous_token=run.previous_token,
    )  # fmt: skip


def _outcome_of_failure(run: JobRun, result: BaseException, now_ms: int, spread: float) -> Outcome:
    """The outcome of a failure or a Retry: another attempt, or a burial after the last one."""
    job, spec = run.job, run.spec
    asked = result if isinstance(result, Retry) else None
    error = describe_error(result) if asked is None else asked.reason
    if job.attempts >= spec.max_attempts:
        return Outcome(job.job_id, run.token, OutcomeKind.BURY, error=error)
    delay_s = None if asked is None else asked.after_s
    if delay_s is None:
        delay_s = spec.retry.delay_s(job.attempts, spread)
    due_ms = now_ms + math.ceil(delay_s * 1000)
    return Outcome(job.job_id, run.token, OutcomeKind.RETRY, due_ms=due_ms, error=error)


def result_within_limit(text: str, bytes_max: int, job: Job) -> str | None:
    """The result as JSON text; None, and an error in the log, if it is too large: the job is done anyway."""
    size = len(text.encode())
    if size <= bytes_max:
        return text
    log.error(
        "job %d of %s is done, and its result is not kept: it has %d bytes, limits.result_bytes is %d",
        job.job_id, job.biz_type, size, bytes_max, extra=log_fields_of_job(job),
    )  # fmt: skip
    return None


def describe_error(error: BaseException) -> str:
    """An exception as text for the dead letter: the message first, then the innermost lines."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = "".join(traceback.format_tb(error.__traceback__)[-5:])
    # A lone surrogate in a message must not make the dead letter unwritable.
    return f"{text}\n{frames}".encode(errors="replace").decode()[:ERROR_CHARS_MAX].strip()
