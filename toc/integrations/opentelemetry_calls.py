"""What a span and the metrics of OpenTelemetry say about one call of `schedule` or of a handler."""

from __future__ import annotations

import traceback
from contextvars import Token
from typing import Any, NamedTuple, Self

from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider, get_meter
from opentelemetry.trace import Span, StatusCode

from toc.domain.secret_masking import mask_and_cut
from toc.errors import TocError
from toc.handlers.hooks import HandlerRun
from toc.handlers.verdicts import Dead, Retry, Verdict
from toc.runtime.metrics import LATENESS_BUCKETS_S

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""The boundaries that the semantic conventions for messaging name."""


class CallError(NamedTuple):
    """Why a job of a call failed. type: the attribute `error.type`.

    exception: shown in the span, with text and traceback; None: nothing but the type may be shown.
    """

    type: str
    exception: BaseException | None

    @classmethod
    def of_schedule(cls, error: BaseException) -> Self:
        if isinstance(error, TocError):  # its text may show the business id
            return cls(error.code, None)
        return cls(_class_name(error), error)


def error_of_run(run: HandlerRun) -> CallError | None:
    """The error of a run: an exception, `toc.Retry` or `toc.Dead`; None: it did not fail."""
    if run.error is not None:
        return CallError(_class_name(run.error), run.error)
    if isinstance(run.result, (Retry, Dead)):  # the reason may show the business id
        return CallError(f"toc.{type(run.result).__name__}", None)
    return None


class OpenCall:
    """A call whose span has not ended. attributes: those that its metrics have too. token: of its context.

    jobs_open: its jobs that have begun and not ended.
    """

    def __init__(self, span: Span, attributes: dict[str, Any], began_s: float) -> None:
        self.span, self.attributes, self.began_s = span, attributes, began_s
        self.token: Token[Context] | None = None
        self.jobs_open = 0
        self.error_type: str | None = None
        self._shown: BaseException | None = None

    def end_job(self, error: CallError | None) -> bool:
        """Ends one job of the call; True: it was the last one."""
        self.jobs_open -= 1
        if error is not None:
            self.error_type = self.error_type or error.type
            if error.exception is not None and error.exception is not self._shown:
                self._shown = error.exception  # a failed batch: the same for all of its jobs
                _record_exception(self.span, error.exception)
        return self.jobs_open <= 0

    def set_verdict(self, result: object) -> None:
        if isinstance(result, Verdict):
            self.span.set_attribute("toc.verdict", type(result).__name__.lower())

    def end_span(self) -> None:
        if self.error_type is not None:
            self.span.set_attribute("error.type", self.error_type)
            self.span.set_status(StatusCode.ERROR, self.error_type)
        self.span.end()


class Metrics:
    """The instruments of the semantic conventions for messaging, and toc's own lateness."""

    def __init__(self, provider: MeterProvider | None, schema_url: str) -> None:
        meter = get_meter("toc", meter_provider=provider, schema_url=schema_url)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Number of messages producer attempted to send to the broker.",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages that were delivered to the application.",
        )
        self._schedule_s = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
        )
        self._run_s = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing operation.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S,
        )
        self._lateness_s = meter.create_histogram(
            "toc.job.lateness",
            "s",
            "First start of a job's handler minus its action time.",
            explicit_bucket_boundaries_advisory=LATENESS_BUCKETS_S,
        )

    def count_sent(self, biz_type: str, error: CallError | None) -> None:
        failed = {} if error is None else {"error.type": error.type}
        self._sent.add(1, _count_attributes("schedule", biz_type) | failed)

    def count_consumed(self, biz_type: str, lateness_s: float | None) -> None:
        attributes = _count_attributes("process", biz_type)
        self._consumed.add(1, attributes)
        if lateness_s is not None:
            self._lateness_s.record(lateness_s, attributes)

    def record_schedule(self, call: OpenCall, seconds: float) -> None:
        self._schedule_s.record(seconds, _duration_attributes(call))

    def record_run(self, call: OpenCall, seconds: float) -> None:
        self._run_s.record(seconds, _duration_attributes(call))


def _count_attributes(name: str, biz_type: str) -> dict[str, str]:
    return {
        "messaging.system": "toc",
        "messaging.operation.name": name,
        "messaging.destination.name": biz_type,
    }


def _duration_attributes(call: OpenCall) -> dict[str, Any]:
    failed = {} if call.error_type is None else {"error.type": call.error_type}
    return call.attributes | failed


def _class_name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _record_exception(span: Span, error: BaseException) -> None:
    if not span.is_recording():
        return
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - whatever the class of the exception raises
        message = ""
    # Not `record_exception`, which fails for an exception without a text.
    attributes = {
        "exception.type": _class_name(error),
        "exception.message": mask_and_cut(message),
        "exception.stacktrace": mask_and_cut("".join(traceback.format_exception(error))),
    }
    span.add_event("exception", attributes)
