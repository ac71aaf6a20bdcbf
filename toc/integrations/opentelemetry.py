"""Spans of OpenTelemetry around `schedule` and around each run of a handler; needs toc[otel].

    from toc.integrations import opentelemetry
    opentelemetry.instrument()

The traceparent of the scheduling span is kept with the job, so the span of each run knows where the job came
from. Spans show the type, the job_id and the attempt, and never the business id or the payload.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanKind,
    StatusCode,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from toc.errors import TocError
from toc.handlers.hooks import HandlerRun, Hooks, ScheduleCall
from toc.handlers.registry import registry
from toc.handlers.verdicts import Verdict

_STATE = "toc.opentelemetry"
_TRACEPARENT = "traceparent"
_instrumented: WeakSet[Hooks] = WeakSet()


def instrument(
    hooks: Hooks | None = None,
    *,
    tracer_provider: TracerProvider | None = None,
    continue_trace: bool = False,
) -> None:
    """Registers the hooks; a second call for the same hooks changes nothing.

    hooks: of a center (`center.hooks`); default: `toc.hooks`. tracer_provider: default the global one.
    continue_trace: False: a run is a trace of its own, with a link to the span that scheduled the job, as
    a job may run days later; True: the run belongs to that span's trace.
    """
    target = registry.hooks if hooks is None else hooks
    if target in _instrumented:
        return
    _instrumented.add(target)
    spans = _Spans(tracer_provider, continue_trace=continue_trace)
    target.before_schedule(spans.begin_schedule)
    target.after_schedule(spans.end_schedule)
    target.before_run(spans.begin_run)
    target.after_run(spans.end_run)


class _Spans:
    def __init__(self, provider: TracerProvider | None, *, continue_trace: bool) -> None:
        self._tracer = get_tracer("toc", tracer_provider=provider)
        self._continue_trace = continue_trace
        self._propagator = TraceContextTextMapPropagator()

    def begin_schedule(self, call: ScheduleCall) -> None:
        # Over HTTP the client's span is in the trace of the call, and the server's becomes its child.
        here = contexts.get_current()
        caller = self._propagator.extract({_TRACEPARENT: call.trace or ""}, context=here)
        span = self._tracer.start_span(
            f"schedule {call.biz_type}",
            context=caller,
            kind=SpanKind.PRODUCER,
            attributes=_attributes(call.biz_type, "send"),
        )
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, context=set_span_in_context(span))
        call.trace = carrier.get(_TRACEPARENT, call.trace)
        call.state[_STATE] = span

    def end_schedule(self, call: ScheduleCall) -> None:
        span: Span | None = call.state.pop(_STATE, None)
        if span is None:
            return
        if call.job_id is not None:
            span.set_attribute("messaging.message.id", str(call.job_id))
        if isinstance(call.error, TocError):  # its text may show the business id
            span.set_attribute("error.type", call.error.code)
            span.set_status(StatusCode.ERROR, type(call.error).__name__)
        elif call.error is not None:
            _record_error(span, call.error)
        span.end()

    def begin_run(self, run: HandlerRun) -> None:
        job = run.job
        origin = self._propagator.extract({_TRACEPARENT: job.trace or ""}, context=Context())
        scheduled = get_current_span(origin).get_span_context()
        has_origin = scheduled.is_valid
        attributes = _attributes(job.biz_type, "process")
        attributes |= {"messaging.message.id": str(job.job_id), "toc.attempt": job.attempts}
        span = self._tracer.start_span(
            f"run {job.biz_type}",
            context=origin if self._continue_trace else Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(scheduled)] if has_origin and not self._continue_trace else [],
        )
        run.state[_STATE] = span, contexts.attach(set_span_in_context(span))

    def end_run(self, run: HandlerRun) -> None:
        found = run.state.pop(_STATE, None)
        if found is None:  # another hook has raised before this span began
            return
        span, token = found
        contexts.detach(token)
        if isinstance(run.result, Verdict):
            span.set_attribute("toc.verdict", type(run.result).__name__.lower())
        elif run.error is not None:
            _record_error(span, run.error)
        span.end()


def _attributes(biz_type: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": "toc",
        "messaging.operation.type": operation,
        "messaging.destination.name": biz_type,
    }


def _record_error(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_status(StatusCode.ERROR, type(error).__name__)
