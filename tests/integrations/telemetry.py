"""Providers of OpenTelemetry that keep what they get in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from tests.worker.waiting import wait_until
from toc.handlers.hooks import Hooks
from toc.integrations import opentelemetry


class Telemetry:
    """The spans that have ended, and the metrics."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(sampler=sampler)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader])

    def instrument(self, hooks: Hooks) -> None:
        for _ in range(2):  # the second call changes nothing
            opentelemetry.instrument(
                hooks, tracer_provider=self.tracers, meter_provider=self.meters
            )

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> Sequence[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def wait_for(self, name: str, count: int = 1) -> Sequence[ReadableSpan]:
        wait_until(lambda: len(self.named(name)) >= count, f"{count} spans {name!r}")
        return self.named(name)

    def points(self, name: str) -> dict[tuple[tuple[str, Any], ...], Any]:
        """The points of a metric, by their attributes."""
        data = self._reader.get_metrics_data()
        return {
            tuple(sorted((point.attributes or {}).items())): point
            for resource in ([] if data is None else data.resource_metrics)
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        }

    def units(self) -> dict[str, str | None]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: metric.unit
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


def attributes_of(span: ReadableSpan) -> Mapping[str, Any]:
    return dict(span.attributes or {})


def key(operation: str, biz_type: str, **more: Any) -> tuple[tuple[str, Any], ...]:
    """The key of a point."""
    attributes = {
        "messaging.system": "toc",
        "messaging.operation.name": operation,
        "messaging.destination.name": biz_type,
    }
    return tuple(sorted((attributes | more).items()))
