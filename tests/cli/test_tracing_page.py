"""The page tracing.md: a real worker sends to a receiver and to a collector, and logs the same ids."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Toc
from tests.cli.otlp import OtlpReceiver, attributes_of, start_collector
from tests.cli.processes import Process, wait_until
from tests.tidy.page_blocks import python_blocks

METRICS = {
    "messaging.client.sent.messages", "messaging.client.operation.duration",
    "messaging.client.consumed.messages", "messaging.process.duration", "toc.job.lateness",
}  # fmt: skip
HANDLERS = """
import logging
import threading
import warnings
from datetime import timedelta

import toc

log = logging.getLogger("shop")


@toc.handler("order.start")
def start(job):
    toc.schedule("A-42", timedelta(0), biz_type="order.close", attribute={"card": "card-4111"})


def fail():
    raise KeyError("in a thread")


@toc.handler("order.close", max_attempts=1)
def close(job):
    log.info("closing")
    log.info("%d is no number", "x")
    warnings.warn("old", stacklevel=1)
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    with trace.get_tracer("shop").start_as_current_span("charge"):
        log.info("charging")
    raise ValueError("first line\\nsecond line of redis://:secret@host/0")
"""


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


@pytest.mark.parametrize("way", ["receiver", "collector"])
def test_spans_metrics_and_log_lines_of_a_worker_have_the_same_ids(
    way: str,
    receiver: OtlpReceiver,
    start: Callable[..., Process],
    servers: dict[str, str],
    toc: Toc,
    tmp_path: Path,
) -> None:
    setup, *_ = python_blocks("how-to/tracing.md")
    (tmp_path / "shop.py").write_text(setup + HANDLERS)
    with ExitStack() as stack:
        url = receiver.url
        if way == "collector":
            url = stack.enter_context(start_collector(tmp_path / "collector", url)).url
        settings = servers | {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_SERVICE_NAME": "shop"}
        # Not forked: OpenTelemetry reads the environment while it is imported.
        worker = start(settings, "worker", "--app", "shop", "--log-json", forked=False)
        worker.says(" runs ")
        assert toc("schedule", 1, "0s", "--type", "order.start").code == 0
        worker.says("is dead")
        worker.send(signal.SIGTERM)
        assert worker.ended() == 0  # the SDK sends the rest when the process ends
        wait_until(lambda: len(receiver.spans) >= 4, "the spans")
        wait_until(lambda: receiver.metrics.keys() >= METRICS, "the metrics")

    (scheduled,) = receiver.named("schedule order.close")
    (started,) = receiver.named("process order.start")
    (run,) = receiver.named("process order.close")
    (charge,) = receiver.named("charge")
    assert (scheduled.trace_id, scheduled.parent_span_id) == (started.trace_id, started.span_id)
    assert [(link.trace_id, link.span_id) for link in run.links] == [
        (scheduled.trace_id, scheduled.span_id)
    ]
    assert run.trace_id not in (scheduled.trace_id, b"")
    assert run.parent_span_id == b""
    assert (charge.trace_id, charge.parent_span_id) == (run.trace_id, run.span_id)
    about = attributes_of(run)
    assert about["error.type"] == "ValueError"
    sent = str([*receiver.spans, *receiver.metrics.values()])
    for hidden in ("A-42", "card-4111", "secret"):
        assert hidden not in sent

    job_id = about["messaging.message.id"]
    lines = [json.loads(line) for line in worker.err.splitlines()]  # each one is JSON
    ids = {
        "job_id": job_id, "biz_type": "order.close", "biz_id": "A-42", "attempt": 1,
        "trace_id": run.trace_id.hex(), "span_id": run.span_id.hex(),
    }  # fmt: skip
    of_job = find_lines(lines, job_id)
    assert only(of_job, "closing").items() >= ids.items()
    assert only(of_job, "charging").items() >= (ids | {"span_id": charge.span_id.hex()}).items()
    assert only(of_job, "the arguments of this log call do not fit").items() >= ids.items()
    assert only(of_job, "UserWarning: old").items() >= ids.items()
    failed = only(of_job, "failed in attempt 1 of 1")
    assert failed.items() >= ids.items()
    assert "second line of redis://:***@host/0" in failed["exception"]
    assert only(of_job, f"job {job_id} is dead").items() >= ids.items()
    in_thread = only(lines, "an exception has ended the thread")
    assert "KeyError: 'in a thread'" in in_thread["exception"]
    assert "secret" not in worker.err


def find_lines(lines: list[dict[str, Any]], job_id: str) -> list[dict[str, Any]]:
    return [line for line in lines if line.get("job_id") == job_id]


def only(lines: list[dict[str, Any]], text: str) -> dict[str, Any]:
    (line,) = [line for line in lines if text in line["message"]]
    return line
