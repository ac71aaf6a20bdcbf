"""What each outcome of an extension does to its own run, and to no other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.client.test_refused_calls import TOKEN, http, scripted
from toc.client.lease_extension import LeaseExtension
from toc.client.lease_run import LeaseRun, make_lease_run
from toc.client.leases import Lease, PullType
from toc.client.server_address import make_server_address
from toc.client.transport import AsyncTransport, Wiring
from toc.domain.job import Job, Status
from toc.domain.run_control import RunControl
from toc.handlers.registry import HandlerSpec
from toc.runtime.client_settings import ClientSettings
from toc.runtime.clock import SystemClock
from toc.worker.handler_pool import HandlerPool

OUTCOMES = ["extended", "lost", "unknown", "limit", "unavailable", "lost", "lost"]


def make_run(number: int) -> LeaseRun:
    control = RunControl(0)
    job = Job(number, 1, "a", Status.RUNNING, 0, {}, 0, 1, None, _control=control)
    spec = HandlerSpec("a", lambda job: None)
    return make_lease_run(Lease(job, control, "t"), spec, PullType(60, 3), 30, -1000, 0)


def test_each_outcome_concerns_its_own_run() -> None:
    runs = [make_run(number) for number in range(len(OUTCOMES))]
    runs[5].may_extend = False  # its handler ended during the call
    held = [run for run in runs if run is not runs[6]]  # its lease was settled during the call
    answer: Any = {"results": [{"job_id": "1", "outcome": outcome} for outcome in OUTCOMES]}

    def never(*args: object) -> bool:
        raise AssertionError

    pool = HandlerPool(
        SystemClock(), never, never, never, threads=1, async_tasks=1, stuck_max=1, solitary_max=1
    )  # not started

    async def extend(url: str) -> None:
        settings = ClientSettings()
        transport = AsyncTransport(
            Wiring(make_server_address(url, TOKEN, None, settings), settings, None)
        )
        await LeaseExtension(transport, pool, SystemClock(), lambda: held)._extend(runs)
        await transport.close()

    with scripted(http(200, json.dumps(answer).encode())) as server:
        asyncio.run(extend(server.url))
    assert [run.control.is_lost for run in runs] == [False, True, True, False, False, False, False]
    assert [run.may_extend for run in runs] == [True, True, True, False, True, False, True]
    assert [run.lease_end_s > 0 for run in runs] == [True, *[False] * 6]


def test_a_lease_is_extended_from_a_third_of_it_until_the_timeout() -> None:
    run = make_run(1)  # its lease of 30 s began at -1000 s
    assert [run.needs_extension(now_s) for now_s in (-991, -989)] == [False, True]
    run.started_s = 1.0
    assert [run.needs_extension(now_s) for now_s in (60.9, 61.1)] == [True, False]
    run.control.extend_s_max = 10
    run.job.extend(5)
    assert run.needs_extension(65)
    run.control.mark_lost()
    assert not run.needs_extension(65)
