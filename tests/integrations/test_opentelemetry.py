"""Spans around schedule and run, with the SDK of OpenTelemetry and its exporter in memory."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.worker.conftest import MakeRig
from tests.worker.rig import NOW, Rig
from tests.worker.waiting import wait_until
from toc.domain.job import Job, Status
from toc.handlers.verdicts import Drop
from toc.integrations import opentelemetry

SCANNER = {"redis_url": "none", "scanner": {"grace_s": 0, "tick_s": 0.05}}
TYPE = "otel.close"


class Spans:
    """The spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> Sequence[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def wait_for(self, name: str, count: int = 1) -> Sequence[ReadableSpan]:
        wait_until(lambda: len(self.named(name)) >= count, f"{count} spans {name!r}")
        return self.named(name)


def make_traced_rig(make_rig: MakeRig, **options: Any) -> tuple[Rig, Spans]:
    rig, spans = make_rig(**SCANNER), Spans()
    for _ in range(2):  # the second call changes nothing
        opentelemetry.instrument(rig.center.hooks, tracer_provider=spans.provider, **options)
    return rig, spans


@pytest.mark.parametrize("continues", [False, True])
def test_a_run_knows_the_span_that_scheduled_its_job(make_rig: MakeRig, continues: bool) -> None:
    rig, spans = make_traced_rig(make_rig, continue_trace=continues)
    inside: list[Any] = []
    rig.handler(TYPE)(lambda job: inside.append((trace.get_current_span().get_span_context(), job)))
    tracer = spans.provider.get_tracer("shop")
    with tracer.start_as_current_span("request") as request:
        job_id = rig.center.schedule("A-42", NOW, biz_type=TYPE, attribute={"card": "4111"})
    (scheduled,) = spans.named(f"schedule {TYPE}")
    assert scheduled.kind is SpanKind.PRODUCER
    assert scheduled.parent == request.get_span_context()
    rig.start()
    rig.wait_for(Status.DONE, job_id, seconds=60)
    (run,) = spans.wait_for(f"run {TYPE}")
    own = scheduled.get_span_context()
    ((context, job),) = inside
    assert context == run.get_span_context()
    assert job.trace == f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"
    assert (run.kind, run.status.status_code) == (SpanKind.CONSUMER, StatusCode.UNSET)
    same_trace = run.get_span_context().trace_id == own.trace_id
    assert same_trace is continues
    if continues:
        assert run.parent is not None
        assert run.parent.span_id == own.span_id
    else:
        assert run.parent is None
        assert [link.context.span_id for link in run.links] == [own.span_id]
    assert run.attributes is not None
    assert dict(run.attributes) == {
        "messaging.system": "toc", "messaging.operation.type": "process",
        "messaging.destination.name": TYPE, "messaging.message.id": str(job_id), "toc.attempt": 1,
    }  # fmt: skip
    assert "4111" not in str([scheduled.to_json(), run.to_json()])
    assert "A-42" not in str([scheduled.to_json(), run.to_json()])


@pytest.mark.parametrize("is_async", [False, True])
def test_errors_and_verdicts_are_recorded_and_contexts_end(
    make_rig: MakeRig, is_async: bool
) -> None:
    rig, spans = make_traced_rig(make_rig)

    def act(job: Job) -> Any:
        if job.attribute["does"] == "raise":
            raise KeyError("no")
        return Drop("not needed")

    async def act_async(job: Job) -> Any:
        await asyncio.sleep(0)
        return act(job)

    rig.handler(TYPE, max_attempts=2, retry=[0])(act_async if is_async else act)
    dead = rig.center.schedule(1, NOW, biz_type=TYPE, attribute={"does": "raise"})
    dropped = rig.center.schedule(2, NOW, biz_type=TYPE, attribute={"does": "drop"})
    rig.start()
    rig.wait_for(Status.DEAD, dead, seconds=60)
    rig.wait_for(Status.CANCELLED, dropped, seconds=60)
    runs = spans.wait_for(f"run {TYPE}", 3)
    by_job: dict[str, list[ReadableSpan]] = {}
    for span in runs:
        assert span.attributes is not None
        by_job.setdefault(str(span.attributes["messaging.message.id"]), []).append(span)
    failed = by_job[str(dead)]
    assert [span.attributes["toc.attempt"] for span in failed if span.attributes] == [1, 2]
    for span in failed:
        assert span.status.status_code is StatusCode.ERROR
        assert [event.name for event in span.events] == ["exception"]
    (drop,) = by_job[str(dropped)]
    assert drop.attributes is not None
    assert drop.attributes["toc.verdict"] == "drop"
    assert drop.status.status_code is StatusCode.UNSET
    assert all(span.parent is None for span in runs)  # no run began inside another one's context


def test_a_schedule_that_fails_ends_its_span_with_the_error(make_rig: MakeRig) -> None:
    rig, spans = make_traced_rig(make_rig)
    options: dict[str, Any] = {"biz_type": TYPE, "dedup_key": "k", "on_duplicate": "error"}
    rig.center.schedule("A-42", NOW, **options)
    with pytest.raises(Exception, match="dedup_key"):
        rig.center.schedule("A-42", NOW, **options)
    good, bad = spans.named(f"schedule {TYPE}")
    assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert bad.attributes is not None
    assert bad.attributes["error.type"] == "duplicate"
    assert "A-42" not in bad.to_json()


def test_a_trace_that_the_caller_gives_is_continued(make_rig: MakeRig) -> None:
    rig, spans = make_traced_rig(make_rig)
    given = f"00-{7:032x}-{9:016x}-01"
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE, trace=given)
    (span,) = spans.named(f"schedule {TYPE}")
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (7, 9)
    job = rig.center.get(job_id)
    assert job is not None
    assert job.trace is not None
    assert job.trace.startswith(f"00-{7:032x}-{span.get_span_context().span_id:016x}-")
    # A trace of another form is kept if there is no span, and is no reason to fail.
    assert rig.center.schedule(1, NOW, biz_type=TYPE, trace="request-1") > 0


def test_without_an_sdk_nothing_is_recorded_and_jobs_run(make_rig: MakeRig) -> None:
    rig = make_rig(**SCANNER)
    opentelemetry.instrument(rig.center.hooks, tracer_provider=trace.NoOpTracerProvider())
    seen: list[str | None] = []
    rig.handler(TYPE)(lambda job: seen.append(job.trace))
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.start()
    rig.wait_for(Status.DONE, job_id, seconds=60)
    assert seen == [None]
    gc.collect()
