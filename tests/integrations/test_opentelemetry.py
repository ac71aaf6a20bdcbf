"""Spans around schedule and runs, with the SDK of OpenTelemetry and its exporter in memory."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    ParentBased,
    Sampler,
    SamplingResult,
)
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.trace import SpanKind, StatusCode

from tests.integrations.telemetry import Telemetry, attributes_of
from tests.tidy.page_blocks import python_blocks
from tests.worker.conftest import MakeRig
from tests.worker.rig import NOW, Rig
from toc.center.job_spec import JobSpec
from toc.domain.job import Job, Status
from toc.handlers.hooks import HandlerRun
from toc.handlers.verdicts import Dead, Drop, Retry
from toc.integrations import opentelemetry

SCANNER = {"redis_url": "none", "scanner": {"grace_s": 0, "tick_s": 0.05}}
TYPE = "otel.close"
OTHER = "otel.other"
GIVEN = f"00-{7:032x}-{9:016x}-01"
SENT = {
    names.MESSAGING_SYSTEM: "toc",
    names.MESSAGING_OPERATION_NAME: "schedule",
    names.MESSAGING_OPERATION_TYPE: names.MessagingOperationTypeValues.SEND.value,
}
PROCESSED = {
    names.MESSAGING_SYSTEM: "toc",
    names.MESSAGING_OPERATION_NAME: "process",
    names.MESSAGING_OPERATION_TYPE: names.MessagingOperationTypeValues.PROCESS.value,
    names.MESSAGING_DESTINATION_NAME: TYPE,
}


def make_traced_rig(make_rig: MakeRig, **options: Any) -> tuple[Rig, Telemetry]:
    rig, telemetry = make_rig(**SCANNER), Telemetry(**options)
    telemetry.instrument(rig.center.hooks)
    return rig, telemetry


def spans_after_runs(rig: Rig) -> list[bool]:
    """After each run of a handler: whether a span is still active. To be called before `instrument`."""
    found: list[bool] = []

    @rig.center.hooks.after_run  # registered first, so called last
    def look(run: HandlerRun) -> None:
        found.append(trace.get_current_span().get_span_context().is_valid)

    return found


def traceparent_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def linked_ids(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def specs(*types: str) -> list[JobSpec]:
    return [{"biz_id": n, "action_time": NOW, "biz_type": name} for n, name in enumerate(types)]


def test_a_run_is_a_trace_of_its_own_with_a_link_to_the_span_that_scheduled_its_job(
    make_rig: MakeRig,
) -> None:
    rig, telemetry = make_traced_rig(make_rig)
    inside: list[Any] = []
    rig.handler(TYPE)(lambda job: inside.append((trace.get_current_span().get_span_context(), job)))
    with telemetry.tracers.get_tracer("shop").start_as_current_span("request") as request:
        job_id = rig.center.schedule("A-42", NOW, biz_type=TYPE, attribute={"card": "card-4111"})
    (scheduled,) = telemetry.named(f"schedule {TYPE}")
    assert scheduled.kind is SpanKind.PRODUCER
    assert scheduled.parent == request.get_span_context()
    assert attributes_of(scheduled) == SENT | {
        names.MESSAGING_DESTINATION_NAME: TYPE, names.MESSAGING_MESSAGE_ID: str(job_id),
    }  # fmt: skip
    rig.start()
    rig.wait_for(Status.DONE, job_id, seconds=60)
    (run,) = telemetry.wait_for(f"process {TYPE}")
    ((context, job),) = inside
    assert context == run.get_span_context()
    assert job.trace == traceparent_of(scheduled)
    assert (run.kind, run.status.status_code) == (SpanKind.CONSUMER, StatusCode.UNSET)
    assert run.parent is None
    assert linked_ids(run) == [id_of(scheduled)]
    assert attributes_of(run) == PROCESSED | {
        names.MESSAGING_MESSAGE_ID: str(job_id), "toc.attempt": 1,
    }  # fmt: skip
    for span in (scheduled, run):
        assert "card-4111" not in span.to_json()
        assert "A-42" not in span.to_json()
        scope = span.instrumentation_scope
        assert scope is not None
        assert (scope.name, scope.schema_url) == ("toc", opentelemetry.SCHEMA_URL)


@pytest.mark.parametrize("is_async", [False, True])
def test_errors_and_verdicts_are_recorded_and_contexts_end(
    make_rig: MakeRig, is_async: bool
) -> None:
    rig, telemetry = make_rig(**SCANNER), Telemetry()
    afterwards = spans_after_runs(rig)
    telemetry.instrument(rig.center.hooks)
    verdicts = {"drop": Drop("not needed"), "dead": Dead("A-42"), "retry": Retry(0, "A-42")}

    def act(job: Job) -> Any:
        what = job.attribute["does"]
        if what == "raise":
            raise KeyError("mysql://toc:secret@db/toc")
        return verdicts[what]

    async def act_async(job: Job) -> Any:
        await asyncio.sleep(0)
        return act(job)

    rig.handler(TYPE, max_attempts=2, retry=[0])(act_async if is_async else act)
    ids = {
        what: rig.center.schedule(1, NOW, biz_type=TYPE, attribute={"does": what})
        for what in ("raise", *verdicts)
    }
    rig.start()
    rig.wait_for(Status.DEAD, ids["raise"], ids["dead"], ids["retry"], seconds=60)
    rig.wait_for(Status.CANCELLED, ids["drop"], seconds=60)
    runs = telemetry.wait_for(f"process {TYPE}", 6)
    assert afterwards == [False] * 6
    assert all(span.parent is None for span in runs)
    by_job: dict[str, list[ReadableSpan]] = {}
    for span in runs:
        by_job.setdefault(attributes_of(span)[names.MESSAGING_MESSAGE_ID], []).append(span)

    failed = by_job[str(ids["raise"])]
    assert [attributes_of(span)["toc.attempt"] for span in failed] == [1, 2]
    for span in failed:
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "KeyError")
        assert attributes_of(span)["error.type"] == "KeyError"
        (event,) = span.events
        assert event.name == "exception"
        assert event.attributes is not None
        assert event.attributes["exception.message"] == "'mysql://toc:***@db/toc'"
        assert "secret" not in span.to_json()

    (drop,) = by_job[str(ids["drop"])]
    assert attributes_of(drop)["toc.verdict"] == "drop"
    assert "error.type" not in attributes_of(drop)
    assert drop.status.status_code is StatusCode.UNSET
    for what, error_type in (("dead", "toc.Dead"), ("retry", "toc.Retry")):
        for span in by_job[str(ids[what])]:
            assert attributes_of(span)["toc.verdict"] == what
            assert attributes_of(span)["error.type"] == error_type
            assert span.status.status_code is StatusCode.ERROR
            assert "A-42" not in span.to_json()


class TextlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_without_a_text_ends_its_span_and_its_context(make_rig: MakeRig) -> None:
    rig, telemetry = make_rig(**SCANNER), Telemetry()
    afterwards = spans_after_runs(rig)
    telemetry.instrument(rig.center.hooks)

    @rig.handler(TYPE, max_attempts=1)
    def fail(job: Job) -> None:
        raise TextlessError

    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.start()
    rig.wait_for(Status.DEAD, job_id, seconds=60)
    assert afterwards == [False]
    (span,) = telemetry.named(f"process {TYPE}")
    (event,) = span.events
    assert event.attributes is not None
    assert event.attributes["exception.message"] == ""
    assert "raise TextlessError" in str(event.attributes["exception.stacktrace"])
    (point,) = telemetry.points("messaging.process.duration").values()
    assert point.count == 1


def test_a_schedule_that_fails_ends_its_span_with_the_error(make_rig: MakeRig) -> None:
    rig, telemetry = make_traced_rig(make_rig)
    options: dict[str, Any] = {"biz_type": TYPE, "dedup_key": "k", "on_duplicate": "error"}
    rig.center.schedule("A-42", NOW, **options)
    with pytest.raises(Exception, match="dedup_key"):
        rig.center.schedule("A-42", NOW, **options)
    good, bad = telemetry.named(f"schedule {TYPE}")
    assert (good.status.status_code, bad.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert attributes_of(bad)["error.type"] == "duplicate"
    assert "A-42" not in bad.to_json()


def test_schedule_many_has_one_span_to_which_all_runs_link(make_rig: MakeRig) -> None:
    rig, telemetry = make_traced_rig(make_rig)
    rig.handler(TYPE)(lambda job: None)
    rig.handler(OTHER)(lambda job: None)
    same = rig.center.schedule_many(specs(TYPE, TYPE, TYPE))
    mixed = rig.center.schedule_many(specs(TYPE, OTHER))
    (of_same,) = telemetry.named(f"schedule {TYPE}")
    (of_mixed,) = telemetry.named("schedule")
    count = names.MESSAGING_BATCH_MESSAGE_COUNT
    assert attributes_of(of_same) == SENT | {names.MESSAGING_DESTINATION_NAME: TYPE, count: 3}
    assert attributes_of(of_mixed) == SENT | {count: 2}
    assert {of_same.kind, of_mixed.kind} == {SpanKind.PRODUCER}
    rig.start()
    rig.wait_for(Status.DONE, *same, *mixed, seconds=60)
    runs = [*telemetry.wait_for(f"process {TYPE}", 4), *telemetry.wait_for(f"process {OTHER}")]
    links = {attributes_of(run)[names.MESSAGING_MESSAGE_ID]: linked_ids(run) for run in runs}
    assert links == {
        **{str(job_id): [id_of(of_same)] for job_id in same},
        **{str(job_id): [id_of(of_mixed)] for job_id in mixed},
    }


def test_a_call_that_writes_some_of_its_jobs_is_an_error(make_rig: MakeRig) -> None:
    rig, telemetry = make_traced_rig(make_rig)
    jobs = specs(TYPE, TYPE)
    rig.center.schedule_each(jobs)
    rig.center.schedule_many([{**job, "dedup_key": "k"} for job in jobs])
    results = rig.center.schedule_each(
        [{**jobs[0], "dedup_key": "k"}, jobs[1]], on_duplicate="error"
    )
    assert [isinstance(result, Exception) for result in results] == [True, False]
    *good, bad = telemetry.named(f"schedule {TYPE}")
    assert [span.status.status_code for span in good] == [StatusCode.UNSET] * 2
    assert bad.status.status_code is StatusCode.ERROR
    assert attributes_of(bad)["error.type"] == "duplicate"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_of_a_handler_has_one_span_with_a_link_for_each_job(
    make_rig: MakeRig, is_async: bool
) -> None:
    rig, telemetry = make_traced_rig(make_rig)
    inside: list[Any] = []

    def act(jobs: list[Job]) -> None:
        inside.append((trace.get_current_span().get_span_context().span_id, len(jobs)))
        if len(jobs) > 1 and jobs[0].attempts == 1:
            raise ValueError("as a batch")

    async def act_async(jobs: list[Job]) -> None:
        act(jobs)

    rig.handler(TYPE, batch=3, batch_wait=5)(act_async if is_async else act)
    ids = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(3)]
    origins = {id_of(span) for span in telemetry.named(f"schedule {TYPE}")}
    rig.start()
    rig.wait_for(Status.DONE, *ids, seconds=60)
    runs = telemetry.wait_for(f"process {TYPE}", 4)  # the batch, then each job alone
    assert [size for _, size in inside] == [3, 1, 1, 1]
    by_id = {id_of(span): span for span in runs}
    assert len(by_id) == 4
    (batch,) = [by_id[span_id] for span_id, size in inside if size == 3]
    assert attributes_of(batch) == PROCESSED | {
        names.MESSAGING_BATCH_MESSAGE_COUNT: 3, "error.type": "ValueError",
    }  # fmt: skip
    assert [event.name for event in batch.events] == ["exception"]  # once, not for each job
    assert set(linked_ids(batch)) == origins
    about = [dict(link.attributes or {}) for link in batch.links]
    assert {(each[names.MESSAGING_MESSAGE_ID], each["toc.attempt"]) for each in about} == {
        (str(job_id), 1) for job_id in ids
    }
    for span_id, size in inside:
        if size == 1:
            alone = by_id[span_id]
            assert (alone.parent, alone.status.status_code) == (None, StatusCode.UNSET)
            assert len(alone.links) == 1


def test_what_the_caller_gives_is_kept_and_continued(make_rig: MakeRig) -> None:
    rig, telemetry = make_traced_rig(make_rig)
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE, trace=GIVEN)
    (span,) = telemetry.named(f"schedule {TYPE}")
    assert span.kind is SpanKind.CLIENT  # runs link to the caller's span
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (7, 9)
    assert [(link.context.trace_id, link.context.span_id) for link in span.links] == [(7, 9)]
    job = rig.center.get(job_id)
    assert job is not None
    assert job.trace == GIVEN

    # Inside a span of this process the trace goes on there.
    with telemetry.tracers.get_tracer("shop").start_as_current_span("request") as request:
        rig.center.schedule(1, NOW, biz_type=OTHER, trace=GIVEN)
    (inner,) = telemetry.named(f"schedule {OTHER}")
    assert inner.parent == request.get_span_context()
    assert [link.context.trace_id for link in inner.links] == [7]

    # A trace of another form is kept too.
    job = rig.center.get(rig.center.schedule(1, NOW, biz_type=TYPE, trace="request-1"))
    assert job is not None
    assert job.trace == "request-1"


class BrokenSampler(Sampler):
    """Raises, as a plug-in with a bug."""

    def should_sample(self, *arguments: Any, **options: Any) -> SamplingResult:
        raise NotImplementedError

    def get_description(self) -> str:
        return ""


def test_a_span_that_is_not_sampled_says_so_and_the_sampler_of_the_run_decides(
    make_rig: MakeRig,
) -> None:
    rig, unsampled = make_traced_rig(make_rig, sampler=ParentBased(ALWAYS_OFF))
    seen: list[Any] = []
    rig.handler(TYPE)(lambda job: seen.append((job.trace, trace.get_current_span())))
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.start()
    rig.wait_for(Status.DONE, job_id, seconds=60)
    ((traceparent, span),) = seen
    assert int(traceparent[-2:], 16) & trace.TraceFlags.SAMPLED == 0
    assert not span.is_recording()
    assert span.get_span_context().is_valid
    assert unsampled.spans == ()
    rig.stop()

    # Another process, which records all its root spans.
    sampled = Telemetry()
    rig.registry.hooks = type(rig.registry.hooks)()
    sampled.instrument(rig.registry.hooks)
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE, trace=traceparent)
    rig.start()
    rig.wait_for(Status.DONE, job_id, seconds=60)
    (run,) = sampled.wait_for(f"process {TYPE}")
    (link,) = run.links
    assert not link.context.trace_flags.sampled


@pytest.mark.parametrize("is_recorded", [False, True])
def test_the_sampler_of_the_page_records_the_runs_of_recorded_calls(
    make_rig: MakeRig, is_recorded: bool
) -> None:
    known: dict[str, Any] = {}
    exec(python_blocks("how-to/tracing.md")[1], known)  # noqa: S102 - it is ours
    assert known["tracers"].sampler.get_description().startswith("ParentBased{root:AsScheduled(")
    root = ALWAYS_ON if is_recorded else ALWAYS_OFF  # for the call, which has no link
    rig, telemetry = make_traced_rig(make_rig, sampler=known["AsScheduled"](root))
    rig.handler(TYPE)(lambda job: None)
    recorded = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(2)]
    given = [rig.center.schedule(9, NOW, biz_type=TYPE, trace=GIVEN[:-1] + flag) for flag in "01"]
    rig.start()
    rig.wait_for(Status.DONE, *recorded, *given, seconds=60)
    rig.stop()
    runs = {
        attributes_of(run)[names.MESSAGING_MESSAGE_ID] for run in telemetry.named(f"process {TYPE}")
    }
    expected = [*(recorded if is_recorded else []), given[1]]
    assert runs == {str(job_id) for job_id in expected}


def test_errors_in_a_sampler_fail_no_call_and_no_job(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig, telemetry = make_traced_rig(make_rig, sampler=BrokenSampler())
    rig.handler(TYPE)(lambda job: None)
    caplog.set_level(logging.WARNING)
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.start()
    rig.wait_for(Status.DONE, job_id, seconds=60)
    assert rig.row(job_id).attempts == 1
    assert telemetry.spans == ()
    assert "OpenTelemetry: begin_schedule failed, and toc goes on without it" in caplog.text


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
