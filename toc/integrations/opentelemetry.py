"""Spans and metrics of OpenTelemetry around `schedule` and around runs of handlers; needs toc[otel].

    from toc.integrations import opentelemetry
    opentelemetry.instrument()

Names and attributes follow the semantic conventions for messaging: `schedule` sends a message, a run of a
handler processes it, the type is the destination. The traceparent of the span that scheduled a job is kept in
its row, so that the span of each run has a link to it. Neither spans nor metrics have the business id or the
payload. An error in here is logged: it fails no call and no job. See docs/how-to/tracing.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar
from weakref import WeakSet

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from toc.domain.run_control import TraceIds
from toc.handlers.current_job import set_span_reader
from toc.handlers.hooks import HandlerRun, Hooks, ScheduleCall
from toc.handlers.registry import registry
from toc.integrations.opentelemetry_calls import CallError, Metrics, OpenCall, error_of_run
from toc.runtime.clock import SystemClock
from toc.runtime.log_throttle import LogThrottle

log = logging.getLogger(__name__)
H = TypeVar("H", HandlerRun, ScheduleCall)

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
_STATE = "toc.opentelemetry"
_TRACEPARENT = "traceparent"
_instrumented: WeakSet[Hooks] = WeakSet()
_log_throttle = LogThrottle(log)


def instrument(
    hooks: Hooks | None = None,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Registers the hooks, and adds the ids of spans to log records.

    A second call for the same hooks changes nothing. hooks: of a center (`center.hooks`); default:
    `toc.hooks`. tracer_provider, meter_provider: default the global ones.
    """
    target = registry.hooks if hooks is None else hooks
    if target in _instrumented:
        return
    _instrumented.add(target)
    telemetry = _Telemetry(tracer_provider, meter_provider)
    target.before_schedule(_logging_errors(telemetry.begin_schedule))
    target.after_schedule(_logging_errors(telemetry.end_schedule))
    target.before_run(_logging_errors(telemetry.begin_run))
    target.after_run(_logging_errors(telemetry.end_run))
    set_span_reader(_read_active_span)


class _Telemetry:
    """The hooks. A call of `schedule_many` or of a batch handler has one span, which its jobs share."""

    def __init__(self, tracers: TracerProvider | None, meters: MeterProvider | None) -> None:
        self._tracer = get_tracer("toc", tracer_provider=tracers, schema_url=SCHEMA_URL)
        self._metrics = Metrics(meters, SCHEMA_URL)
        self._clock = SystemClock()
        self._propagator = TraceContextTextMapPropagator()

    def begin_schedule(self, call: ScheduleCall) -> None:
        given = self._span_context_of(call.trace)
        opened: OpenCall | None = call.batch.state.get(_STATE)
        if opened is None:
            opened = call.batch.state[_STATE] = self._start_schedule(call, given)
        elif given is not None:
            opened.span.add_link(given)
        opened.jobs_open += 1
        call.state[_STATE] = opened
        if call.trace is None:  # what the caller gave is kept
            carrier: dict[str, str] = {}
            self._propagator.inject(carrier, context=set_span_in_context(opened.span))
            call.trace = carrier.get(_TRACEPARENT)

    def _start_schedule(self, call: ScheduleCall, given: SpanContext | None) -> OpenCall:
        parent = contexts.get_current()
        if given is not None and not get_current_span().get_span_context().is_valid:
            parent = self._propagator.extract({_TRACEPARENT: call.trace or ""}, context=parent)
        types = call.batch.biz_types
        attributes = _attributes("schedule", "send", types[0] if len(types) == 1 else None)
        span = self._tracer.start_span(
            f"schedule {types[0]}" if len(types) == 1 else "schedule",
            context=parent,
            # The convention: PRODUCER only if links of runs go to this span.
            kind=SpanKind.PRODUCER if call.trace is None else SpanKind.CLIENT,
            attributes=attributes | _size_attribute(call.batch.size),
            links=[] if given is None else [Link(given)],
        )
        return OpenCall(span, attributes, self._clock.monotonic_s())

    def end_schedule(self, call: ScheduleCall) -> None:
        opened: OpenCall | None = call.state.pop(_STATE, None)
        if opened is None:
            return
        error = None if call.error is None else CallError.of_schedule(call.error)
        self._metrics.count_sent(call.biz_type, error)
        if call.job_id is not None and call.batch.size == 1:
            opened.span.set_attribute("messaging.message.id", str(call.job_id))
        if opened.end_job(error):
            seconds = self._clock.monotonic_s() - opened.began_s
            self._metrics.record_schedule(opened, seconds)
            opened.end_span()

    def begin_run(self, run: HandlerRun) -> None:
        job, size = run.job, run.batch.size
        origin = self._span_context_of(job.trace)
        about_job: dict[str, Any] = {
            "messaging.message.id": str(job.job_id),
            "toc.attempt": job.attempts,
        }
        opened: OpenCall | None = run.batch.state.get(_STATE)
        if opened is None:
            attributes = _attributes("process", "process", job.biz_type)
            of_link, of_span = ({}, about_job) if size == 1 else (about_job, _size_attribute(size))
            span = self._tracer.start_span(
                f"process {job.biz_type}",
                # A trace of its own: a trace of days breaks the tools, and a batch has several origins.
                context=Context(),
                kind=SpanKind.CONSUMER,
                attributes=attributes | of_span,
                links=[] if origin is None else [Link(origin, of_link)],
            )
            opened = OpenCall(span, attributes, self._clock.monotonic_s())
            opened.token = contexts.attach(set_span_in_context(span))
            run.batch.state[_STATE] = opened
        elif origin is not None:
            opened.span.add_link(origin, about_job)
        opened.jobs_open += 1
        run.state[_STATE] = opened
        ids = _ids_of_span(opened.span)
        if ids is not None:
            run.set_trace_ids(*ids)
        self._metrics.count_consumed(job.biz_type, run.lateness_s)

    def end_run(self, run: HandlerRun) -> None:
        opened: OpenCall | None = run.state.pop(_STATE, None)
        if opened is None:  # another hook has raised before this job began
            return
        if run.batch.size == 1:
            opened.set_verdict(run.result)
        if opened.end_job(error_of_run(run)):
            if opened.token is not None:
                contexts.detach(opened.token)
            self._metrics.record_run(opened, self._clock.monotonic_s() - opened.began_s)
            opened.end_span()

    def _span_context_of(self, trace: str | None) -> SpanContext | None:
        """The span of a traceparent; None: there is none, or a text of another form."""
        if trace is None:
            return None
        context = self._propagator.extract({_TRACEPARENT: trace}, context=Context())
        found = get_current_span(context).get_span_context()
        return found if found.is_valid else None


def _attributes(name: str, kind: str, biz_type: str | None) -> dict[str, Any]:
    """biz_type: None: the call is about jobs of several types."""
    attributes = {
        "messaging.system": "toc",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    return attributes if biz_type is None else attributes | {"messaging.destination.name": biz_type}


def _size_attribute(size: int) -> dict[str, Any]:
    return {} if size == 1 else {"messaging.batch.message_count": size}


def _ids_of_span(span: Span) -> TraceIds | None:
    context = span.get_span_context()
    if not context.is_valid:
        return None
    return TraceIds(f"{context.trace_id:032x}", f"{context.span_id:016x}")


def _read_active_span() -> TraceIds | None:
    return _ids_of_span(get_current_span())


def _logging_errors(hook: Callable[[H], None]) -> Callable[[H], None]:
    """The hook; its errors are logged, as those of a sampler or of a span processor."""

    @wraps(hook)
    def guarded(subject: H) -> None:
        try:
            hook(subject)
        except Exception as error:  # noqa: BLE001 - whatever the SDK's plug-ins raise
            text = "OpenTelemetry: %s failed, and toc goes on without it: %r"
            _log_throttle.warning(hook.__name__, text, hook.__name__, error)

    return guarded
