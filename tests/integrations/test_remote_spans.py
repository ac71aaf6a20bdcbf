"""Spans of remote clients and remote workers, over a real server."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace

from tests.http.served_world import declare_type, make_settings, make_token, serve
from tests.integrations.telemetry import Telemetry, attributes_of, key
from toc.client.remote_center import RemoteCenter
from toc.client.remote_worker import RemoteWorker
from toc.client.server_address import make_server_address
from toc.domain.job import Job
from toc.handlers.hooks import Hooks
from toc.handlers.registry import Registry, registry

TYPE = "otel.pull"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NOW = timedelta(0)


def test_a_remote_run_links_to_the_client_that_scheduled_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry, handlers = Telemetry(), Registry()
    monkeypatch.setattr(registry, "hooks", Hooks())  # of remote clients
    telemetry.instrument(registry.hooks)
    telemetry.instrument(handlers.hooks)
    settings = make_settings(tmp_path)
    declare_type(settings, TYPE, mode="pull", timeout_s=600)
    seen: list[tuple[int, int]] = []
    all_done = threading.Event()

    @handlers.handler(TYPE)
    def take(job: Job) -> None:
        seen.append((job.job_id, trace.get_current_span().get_span_context().span_id))
        if len(seen) == 4:
            all_done.set()

    with serve(settings) as server:
        token = make_token(settings)
        server.backend.access.refresh_now()
        with RemoteCenter(server.url, token=token, settings=settings) as center:
            one = center.schedule(1, NOW, biz_type=TYPE)
            specs: list[Any] = [{"biz_id": n, "action_time": NOW} for n in (2, 3)]
            many = center.schedule_many(specs, biz_type=TYPE)
            # A caller without toc's client: its header is what the run links to.
            answer = httpx.post(
                f"{server.url}/v1/jobs", json={"biz_id": 4, "biz_type": TYPE, "delay": 0},
                headers={"Authorization": f"Bearer {token}", "traceparent": TRACEPARENT},
                timeout=60, trust_env=False,
            )  # fmt: skip
            foreign = int(answer.json()["job_id"])
            address = make_server_address(server.url, token, None, settings.client)
            worker = RemoteWorker(address, settings, handlers)
            worker.start()
            assert all_done.wait(100)
            runs = telemetry.wait_for(f"process {TYPE}", 4)
            worker.stop()

    single, batch = telemetry.named(f"schedule {TYPE}")
    assert attributes_of(single)["messaging.message.id"] == str(one)
    assert attributes_of(batch)["messaging.batch.message_count"] == 2
    origins = {
        one: single.get_span_context().span_id,
        **dict.fromkeys(many, batch.get_span_context().span_id),
        foreign: 0xB7AD6B7169203331,
    }
    links = {
        int(attributes_of(run)["messaging.message.id"]): run.links[0].context.span_id
        for run in runs
    }
    assert links == origins
    assert dict(seen) == {
        int(attributes_of(run)["messaging.message.id"]): run.get_span_context().span_id
        for run in runs
    }
    assert {run.parent for run in runs} == {None}
    ((found, lateness),) = telemetry.points("toc.job.lateness").items()
    assert (found, lateness.count) == (key("process", TYPE), 4)
