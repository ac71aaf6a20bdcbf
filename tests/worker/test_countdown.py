"""What a handler is told of its countdown, what a lost Redis does to one, and debounced jobs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import FAR, SOON, TYPE, Rig
from tests.worker.waiting import wait_until
from toc.domain.countdown import Countdown
from toc.domain.job import Job, Status
from toc.handlers.verdicts import Retry


def record(rig: Rig, *, is_async: bool = False) -> list[Countdown | None]:
    """Registers a handler that fails once, and records what its jobs say."""
    seen: list[Countdown | None] = []

    @rig.handler(retry=[0.01], max_attempts=5)
    def handle(job: Job) -> Retry | None:
        seen.append(job.countdown)
        return Retry(0.01, "again") if job.attempts == 1 else None

    if is_async:

        async def handle_async(job: Job) -> Retry | None:
            return await asyncio.to_thread(handle, job)

        rig.registry = type(rig.registry)()
        rig.handler(max_attempts=5)(handle_async)
    return seen


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_is_told_what_made_its_job_fire(make_rig: MakeRig, is_async: bool) -> None:
    rig = make_rig()
    seen = record(rig, is_async=is_async)
    rig.start()
    job_id = rig.center.countdown(1, count=2, deadline=FAR, biz_type=TYPE)
    assert rig.center.arrive("pay", biz_id=1, biz_type=TYPE) == "arrived"
    assert rig.center.arrive("stock", biz_id=1, biz_type=TYPE) == "completed"
    rig.wait_for(Status.DONE, job_id)
    # The retry is told the same.
    assert seen == [Countdown(2, ("pay", "stock"), "arrivals")] * 2
    assert rig.center.arrive("more", job_id=job_id) == "done"
    job = rig.center.get(job_id)
    assert job is not None
    assert job.countdown == seen[0]
    late = rig.center.countdown(2, count=2, deadline=SOON, biz_type=TYPE)
    plain = rig.center.schedule(3, SOON, biz_type=TYPE)
    rig.wait_for(Status.DONE, late, plain)
    told = seen[2:]
    assert told.count(None) == 2
    assert told.count(Countdown(2, (), "deadline")) == 2


def test_after_a_lost_redis_the_loader_arms_the_job_since_its_row_is_due(
    make_rig: MakeRig,
) -> None:
    rig = make_rig()  # its scanner claims nothing for an hour
    seen = record(rig)
    job_id = rig.center.countdown(1, count=1, deadline=FAR, biz_type=TYPE)
    assert rig.center.arrive("pay", job_id=job_id) == "completed"
    reminders = rig.center._open_connections().reminders
    assert reminders is not None
    wait_until(lambda: rig.armed_ms(job_id) is not None)
    client = reminders.connected_client()
    for key in client.scan_iter(match=f"*{rig.settings.namespace}*"):
        client.delete(key)
    assert rig.armed_ms(job_id) is None
    rig.start()
    rig.wait_for(Status.DONE, job_id)
    assert seen[0] == Countdown(1, ("pay",), "arrivals")


def test_without_redis_the_scanner_runs_the_job_after_the_last_arrival(make_rig: MakeRig) -> None:
    rig = make_rig(redis_url="none", scanner={"grace_s": 0})
    seen = record(rig)
    rig.start()
    job_id = rig.center.countdown(1, count=1, deadline=FAR, biz_type=TYPE)
    assert rig.center.arrive("pay", job_id=job_id) == "completed"
    rig.wait_for(Status.DONE, job_id)
    assert seen[0] == Countdown(1, ("pay",), "arrivals")


def test_a_debounced_job_runs_after_its_last_call(make_rig: MakeRig) -> None:
    rig = make_rig()
    runs: dict[int, int] = {}

    @rig.handler()
    def handle(job: Job) -> None:
        assert job.job_id not in runs
        runs[job.job_id] = job.attribute["n"]

    rig.start()
    quiet, last = timedelta(seconds=0.3), {}
    for number in range(20):
        job_id = rig.center.debounce(
            1, quiet=quiet, max_wait=timedelta(minutes=9), biz_type=TYPE, attribute={"n": number}
        )
        last[job_id] = number
    rig.wait_for(Status.DONE, *last)
    # On a slow machine a job may have run between two calls.
    assert runs == last
