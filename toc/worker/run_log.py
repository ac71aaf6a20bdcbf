"""Log lines about handlers' runs: every failure, with its job and its next attempt."""

from __future__ import annotations

import logging
import threading
import traceback
from datetime import datetime, timedelta

from toc.domain.text_escaping import escape_to_one_line
from toc.domain.times import EPOCH, ceil_ms, datetime_of
from toc.handlers.current_job import log_fields_of_job
from toc.handlers.verdicts import Retry, Snooze, Verdict
from toc.runtime.clock import Clock
from toc.runtime.log_throttle import LogThrottle
from toc.store.claims import Outcome, OutcomeKind
from toc.worker.job_run import JobRun
from toc.worker.outcome import describe_error

log = logging.getLogger(__name__)

LOGGED_ERROR_CHARS_MAX = 500  # characters of an error's text in a line
WINDOW_S = 60.0


class RunLog:
    """Logs starts and ends of handlers. Any thread.

    `tracebacks`: how many per minute and biz_type; further failures are logged as one line.
    """

    def __init__(self, clock: Clock, *, tracebacks: int) -> None:
        self._clock, self._tracebacks = clock, tracebacks
        self._lock = threading.Lock()
        self._log_throttle = LogThrottle(log)
        # By biz_type: when the current minute began, and how many tracebacks were logged in it.
        self._given: dict[str, tuple[float, int]] = {}

    def log_handler_start(self, run: JobRun) -> None:
        """Logs that a handler is about to be called."""
        if log.isEnabledFor(logging.DEBUG):
            log.debug(
                "%s starts, attempt %d of %d",
                *_attempt_log_fields(run),
                extra=log_fields_of_job(run.job),
            )

    def log_handler_end(
        self, run: JobRun, result: object, outcome: Outcome, now_ms: int, seconds: float
    ) -> None:
        """Logs that a handler has returned or raised `result`, which became `outcome`."""
        if log.isEnabledFor(logging.DEBUG):
            text = "%s ended after %.3f s: %s"
            log.debug(
                text, _describe_run(run), seconds, outcome.kind, extra=log_fields_of_job(run.job)
            )
        if isinstance(result, BaseException) and not isinstance(result, Verdict):
            self._log_handler_failure(run, result, outcome)
        elif isinstance(result, Retry) and outcome.kind is OutcomeKind.RETRY:
            text = "%s asks in attempt %d of %d to be tried again: %s; the next attempt is at %s"
            why, at = escape_to_one_line(result.reason), _format_due_time(outcome)
            log.info(text, *_attempt_log_fields(run), why, at, extra=log_fields_of_job(run.job))
        elif isinstance(result, Snooze) and _is_snooze_in_past(result.until, now_ms):
            text = "%s snoozes until %s, which has passed: the job runs again at %s"
            key = ("snooze", run.job.biz_type)
            self._log_throttle.warning(
                key, text, _describe_run(run), result.until, _format_due_time(outcome)
            )

    def log_remote_end(self, run: JobRun, result: object, outcome: Outcome, seconds: float) -> None:
        """As `log_handler_end`, for a worker whose server decides about the next attempt."""
        if log.isEnabledFor(logging.DEBUG):
            text = "%s ended after %.3f s: %s"
            log.debug(
                text, _describe_run(run), seconds, outcome.kind, extra=log_fields_of_job(run.job)
            )
        if isinstance(result, BaseException) and not isinstance(result, Verdict):
            what = escape_to_one_line(outcome.error.partition("\n")[0])[:LOGGED_ERROR_CHARS_MAX]
            is_shown = self._may_log_traceback(run.job.biz_type)
            log.warning(
                "%s failed in attempt %d of %d: %s; the server decides when the next one is",
                *_attempt_log_fields(run), what,
                exc_info=result if is_shown and _is_traceback_encodable(result) else None,
                extra=log_fields_of_job(run.job),
            )  # fmt: skip

    def _log_handler_failure(self, run: JobRun, error: BaseException, outcome: Outcome) -> None:
        try:
            what = escape_to_one_line(f"{type(error).__name__}: {error}".rstrip(": "))[
                :LOGGED_ERROR_CHARS_MAX
            ]
        except Exception:  # noqa: BLE001 - the handler's own class cannot show itself
            what = type(error).__name__
        again = "no attempt is left, the job is dead"
        if outcome.kind is OutcomeKind.RETRY:
            again = f"the next one is at {_format_due_time(outcome)}"
        traced = error if self._may_log_traceback(run.job.biz_type) else None
        frames = ""
        if traced is not None and not _is_traceback_encodable(traced):
            traced, frames = None, "; " + escape_to_one_line(describe_error(error))
        log.warning(
            "%s failed in attempt %d of %d: %s; %s%s",
            *_attempt_log_fields(run), what, again, frames,
            exc_info=traced, extra=log_fields_of_job(run.job),
        )  # fmt: skip

    def _may_log_traceback(self, biz_type: str) -> bool:
        now_s = self._clock.monotonic_s()
        with self._lock:
            since_s, given = self._given.get(biz_type, (now_s, 0))
            if now_s - since_s >= WINDOW_S:
                since_s, given = now_s, 0
            self._given[biz_type] = since_s, given + 1
        return given < self._tracebacks


def _is_traceback_encodable(error: BaseException) -> bool:
    """Whether the error's traceback can be encoded as UTF-8: a log file refuses lone surrogates."""
    try:
        "".join(traceback.format_exception(error)).encode()
    except UnicodeEncodeError:
        return False
    return True


def _describe_run(run: JobRun) -> str:
    job = run.job
    return f"job {job.job_id} of {job.biz_type} (biz_id {job.biz_id})"


def _attempt_log_fields(run: JobRun) -> tuple[str, int, int]:
    return _describe_run(run), run.job.attempts, run.spec.max_attempts


def _format_due_time(outcome: Outcome) -> str:
    return datetime_of(outcome.due_ms).isoformat(timespec="milliseconds")


def _is_snooze_in_past(until: object, now_ms: int) -> bool:
    """Whether a Snooze asks for a moment before now."""
    if isinstance(until, datetime):
        return ceil_ms(until - EPOCH) < now_ms
    return isinstance(until, timedelta) and until < timedelta()
