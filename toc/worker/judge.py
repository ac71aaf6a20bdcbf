"""From what a handler returned or raised to an outcome. Pure but for the randomness passed in."""

from __future__ import annotations

import math
import traceback
from datetime import datetime

from toc.domain.times import EPOCH, MS_MAX, ceil_ms
from toc.handlers.verdicts import Dead, Drop, Retry, Snooze
from toc.store.claims import ERROR_CHARS_MAX, Kind, Outcome
from toc.worker.run import Run


def judge(run: Run, result: object, now_ms: int, spread: float) -> Outcome:
    """`result`: what the handler returned, or the exception it raised. `spread` in [-1, 1]."""
    job, spec = run.job, run.spec
    if not isinstance(result, BaseException):  # a verdict is one as well
        return Outcome(job.job_id, run.token, Kind.DONE)
    if isinstance(result, Snooze):
        until = result.until
        ms = ceil_ms(until - EPOCH) if isinstance(until, datetime) else now_ms + ceil_ms(until)
        return Outcome(job.job_id, run.token, Kind.SNOOZE, due_ms=min(max(ms, 0), MS_MAX))
    if isinstance(result, Drop):
        return Outcome(job.job_id, run.token, Kind.DROP, error=result.reason)
    if isinstance(result, Dead):
        return Outcome(job.job_id, run.token, Kind.BURY, error=result.reason)
    error = result.reason if isinstance(result, Retry) else describe(result)
    if job.attempts >= spec.max_attempts:
        return Outcome(job.job_id, run.token, Kind.BURY, error=error)
    delay_s = (
        result.after_s if isinstance(result, Retry) else spec.retry.delay_s(job.attempts, spread)
    )
    return Outcome(
        job.job_id, run.token, Kind.RETRY, due_ms=now_ms + math.ceil(delay_s * 1000), error=error
    )


def describe(error: BaseException) -> str:
    """An exception as text for the dead letter: the message first, then the innermost lines."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = "".join(traceback.format_tb(error.__traceback__)[-5:])
    # A lone surrogate in a message must not make the dead letter unwritable.
    return f"{text}\n{frames}".encode(errors="replace").decode()[:ERROR_CHARS_MAX].strip()
