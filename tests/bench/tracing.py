"""What OpenTelemetry costs: processor time of a job without hooks, and with each way of using them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import NoOpTracerProvider

from toc.bench.common import BenchContext, check_statuses_and_clear
from toc.bench.job_specs import BIZ_TYPE
from toc.center.center import TimeoutCenter
from toc.domain.job import Job, Status
from toc.errors import TocError
from toc.handlers.hooks import Hooks
from toc.handlers.registry import Registry
from toc.integrations import opentelemetry
from toc.node.node import Node

OFF = "off"
RUN_S_MAX = 120.0


class _Discard(SpanExporter):
    def export(self, spans: object) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def _instrument_sdk(hooks: Hooks, sampler: Sampler) -> None:
    tracers = TracerProvider(sampler=sampler)
    tracers.add_span_processor(BatchSpanProcessor(_Discard()))
    meters = MeterProvider([InMemoryMetricReader()])
    opentelemetry.instrument(hooks, tracer_provider=tracers, meter_provider=meters)


WAYS: dict[str, Callable[[Hooks], None]] = {
    OFF: lambda hooks: None,
    "without an SDK": lambda hooks: opentelemetry.instrument(
        hooks, tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider()
    ),
    "no span sampled": lambda hooks: _instrument_sdk(hooks, ALWAYS_OFF),
    "each span recorded": lambda hooks: _instrument_sdk(hooks, ALWAYS_ON),
}


def trace(bench: BenchContext) -> None:
    """Single calls of `schedule`, then a node of this process that runs the jobs: each way in turn."""
    jobs = max(1, bench.options.jobs // 10)
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(bench.options.rounds + 1):
        for way, instrument in WAYS.items():
            schedule_s, run_s = _measure(bench, jobs, instrument)
            found.setdefault(("schedule", way), []).append(schedule_s / jobs * 1e6)
            found.setdefault(("run", way), []).append(run_s / jobs * 1e6)
            check_statuses_and_clear(bench, "tracing", {Status.DONE: jobs})
    for (what, way), times in found.items():
        off = [None] * len(times) if way == OFF else found[what, OFF]
        pairs = list(zip(off, times, strict=True))[1:]  # the first round warms up
        bench.report.add_measurement("tracing", f"{what}, {way}", "µs", pairs)


def _measure(
    bench: BenchContext, jobs: int, instrument: Callable[[Hooks], None]
) -> tuple[float, float]:
    """Processor time of this process: for all calls of `schedule`, and from the first run to the last."""
    handlers, starts_s = Registry(), list[float]()
    instrument(handlers.hooks)

    @handlers.handler(BIZ_TYPE)
    def act(job: Job) -> None:
        starts_s.append(time.process_time())

    first = bench.reserve_biz_ids(jobs)
    with TimeoutCenter(bench.scratch.settings, handlers=handlers) as center:
        center.find(first)  # connects
        began_s = time.process_time()
        for biz_id in range(first, first + jobs):
            center.schedule(biz_id, timedelta(0), biz_type=BIZ_TYPE)
        scheduled_s = time.process_time() - began_s
    node = Node(bench.scratch.settings, handlers=handlers)
    end_s = time.monotonic() + RUN_S_MAX
    node.start()
    while len(starts_s) < jobs:
        if time.monotonic() > end_s:
            raise TocError(f"only {len(starts_s)} jobs have run within {RUN_S_MAX:g} s")
        time.sleep(0.01)
    node.stop()
    return scheduled_s, max(starts_s) - min(starts_s)
