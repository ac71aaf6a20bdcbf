"""A graceful stop: what runs finishes, what waits is given back, what hangs is left behind."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import NOW, TYPE, Gate, Rig
from tests.worker.waiting import wait_until
from toc.domain.job import Job, Status
from toc.handlers.verdicts import Drop
from toc.store.databases import Database


def claim_behind(rig: Rig, gate: Gate, waiting: int) -> tuple[list[int], list[int]]:
    """Two jobs that run, and so many that are claimed and wait for a thread."""
    worker = rig.start()
    worker.permits.limiter.limit = 16
    running = [rig.center.schedule(rig.biz_id_on(1, n), NOW, biz_type=TYPE) for n in range(2)]
    gate.wait(2)
    queued = [rig.center.schedule(rig.biz_id_on(0, n), NOW, biz_type=TYPE) for n in range(waiting)]
    wait_until(lambda: worker.jobs_in_flight == 2 + waiting)
    return running, queued


def test_what_runs_finishes_and_what_waits_is_given_back(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"concurrency": 2})
    gate = Gate()
    rig.handler()(gate)
    running, queued = claim_behind(rig, gate, 5)
    assert {rig.row(job_id)[:2] for job_id in queued} == {(Status.RUNNING, 1)}

    clean: list[bool] = []
    stopping = threading.Thread(target=lambda: clean.append(rig.stop()))
    stopping.start()
    # Given back at once, not when what runs has ended.
    wait_until(lambda: {rig.row(job_id)[:2] for job_id in queued} == {(Status.PENDING, 0)})
    assert {rig.status(job_id) for job_id in running} == {Status.RUNNING}
    for job_id in queued:
        row = rig.row(job_id)
        assert row.due_ms == row.action_ms
        wait_until(lambda job_id=job_id: rig.armed_ms(job_id) is not None)  # type: ignore[misc]
        assert rig.out_ms(job_id) is None
    gate.open.set()
    stopping.join(20)
    assert clean == [True]
    assert {rig.status(job_id) for job_id in running} == {Status.DONE}
    assert len(gate.begun) == 2

    rig.start()  # the next one goes on
    rig.wait_for(Status.DONE, *queued)
    assert {rig.row(job_id).attempts for job_id in queued} == {1}


def test_async_jobs_that_wait_are_given_back(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"async_concurrency": 1, "stop_s": 5})
    go, begun = threading.Event(), []

    @rig.handler()
    async def handle(job: Job) -> None:
        begun.append(job.job_id)
        while not go.is_set():
            await asyncio.sleep(0.01)

    worker = rig.start()
    jobs = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(4)]
    wait_until(lambda: worker.jobs_in_flight == 4 and begun)
    stopping = threading.Thread(target=rig.stop)
    stopping.start()
    queued = [job_id for job_id in jobs if job_id not in begun]
    wait_until(lambda: {rig.row(job_id)[:2] for job_id in queued} == {(Status.PENDING, 0)})
    go.set()
    stopping.join(20)
    assert rig.status(begun[0]) is Status.DONE
    assert len(begun) == 1


def test_what_hangs_is_left_to_its_lease(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"concurrency": 2, "stop_s": 0.2})
    gate = Gate()
    rig.handler()(gate)
    running, queued = claim_behind(rig, gate, 3)
    began = time.monotonic()
    assert rig.stop() is False
    assert time.monotonic() - began < 15
    assert {rig.row(job_id)[:2] for job_id in running} == {(Status.RUNNING, 1)}
    assert {rig.row(job_id)[:2] for job_id in queued} == {(Status.PENDING, 0)}
    gate.open.set()


@pytest.mark.parametrize("raises", ["CancelledError", "another error"])
def test_an_async_handler_that_the_stop_cancels_is_given_back_uncounted(
    make_rig: MakeRig, raises: str
) -> None:
    rig = make_rig(worker={"stop_s": 0.1})
    begun: list[int] = []

    @rig.handler(max_attempts=1)
    async def handle(job: Job) -> None:
        begun.append(job.attempts)
        if len(begun) == 1:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if raises == "another error":
                    raise ConnectionError("the connection was closed in use") from None
                raise

    rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    wait_until(lambda: begun)
    assert rig.stop() is True
    row = rig.row(job_id)
    assert (row.status, row.attempts) == (Status.PENDING, 0)
    assert rig.out_ms(job_id) is None
    assert rig.armed_ms(job_id) is not None  # others run it at once
    rig.start()
    rig.wait_for(Status.DONE, job_id)
    assert begun == [1, 1]


@pytest.mark.parametrize("says", ["done", "drop"])
def test_what_an_async_handler_says_when_the_stop_cancels_it_counts(
    make_rig: MakeRig, says: str
) -> None:
    rig = make_rig(worker={"stop_s": 0.1})
    begun = threading.Event()

    @rig.handler(max_attempts=1)
    async def handle(job: Job) -> Drop | None:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        return Drop("enough") if says == "drop" else None

    rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    assert begun.wait(20)
    rig.stop()
    assert rig.status(job_id) is (Status.CANCELLED if says == "drop" else Status.DONE)


def test_an_async_handler_that_does_not_let_itself_be_cancelled_is_left_to_its_lease(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(worker={"stop_s": 0.1})
    begun = threading.Event()

    @rig.handler(max_attempts=1)
    async def handle(job: Job) -> None:
        begun.set()
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)

    rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    assert begun.wait(20)
    assert rig.stop() is False
    assert rig.row(job_id)[:2] == (Status.RUNNING, 1)


def test_a_cancellation_of_the_handlers_own_is_a_failure(make_rig: MakeRig) -> None:
    rig = make_rig()

    @rig.handler(max_attempts=1)
    async def handle(job: Job) -> None:
        raise asyncio.CancelledError

    rig.start()
    rig.wait_for(Status.DEAD, rig.center.schedule(1, NOW, biz_type=TYPE))


def test_a_stop_without_work_is_clean_and_leaves_no_thread(make_rig: MakeRig) -> None:
    others = set(threading.enumerate())  # of a server that other files share
    rig = make_rig()
    rig.handler()(lambda _: None)
    rig.start()
    rig.wait_for(Status.DONE, rig.center.schedule(1, NOW, biz_type=TYPE))
    assert rig.stop() is True
    rig.center.close()  # it has a thread too
    wait_until(
        lambda: not [t.name for t in {*threading.enumerate()} - others if t.name.startswith("toc-")]
    )


@pytest.mark.parametrize("hangs", [True, False])
def test_a_restart_is_asked_for_when_too_many_handlers_hang(make_rig: MakeRig, hangs: bool) -> None:
    rig = make_rig(worker={"stuck_max": 2, "stop_s": 0.1})
    gate = Gate()
    rig.handler(timeout=0.1 if hangs else 30)(gate)
    worker = rig.start()
    for n in range(2):
        rig.center.schedule(n, NOW, biz_type=TYPE)
    gate.wait(2)
    if hangs:
        assert rig.restart_wanted.wait(20)
        assert worker.pool.running.stuck_count == 2
    else:
        assert not rig.restart_wanted.wait(0.6)
    gate.open.set()


def test_ids_that_wait_for_a_claim_are_back_in_the_timer_after_a_stop(make_rig: MakeRig) -> None:
    """Where slots hold jobs of several databases, ids wait for the thread that claims in theirs."""
    topics = {"default": {"slot_amount": 2}}
    rig = make_rig(databases=2, topics=topics, timer={"stay_s": 600})
    rig.handler()(lambda _: None)
    worker = rig.start()
    rig.wait_for_loader()
    begun, go = threading.Event(), threading.Event()
    claim = worker.context.claims.claim_jobs

    def slow(database: Database, *arguments: Any) -> Any:
        if database.index == 0:
            begun.set()
            assert go.wait(30)
        return claim(database, *arguments)

    worker.context.claims.claim_jobs = slow  # type: ignore[method-assign,assignment]
    first = rig.center.schedule(rig.biz_id_on(0), NOW, biz_type=TYPE)
    assert begun.wait(20)
    second = rig.center.schedule(rig.biz_id_on(0, 1), NOW, biz_type=TYPE)
    wait_until(lambda: rig.out_ms(second) is not None)
    # The pop comes before the put into the stage's inbox.
    stages = [each for lane in worker.claims for each in lane]
    stage = wait_until(lambda: next((each for each in stages if each._inbox), None))
    assert stage is not None
    stopping = threading.Thread(target=rig.stop)
    stopping.start()
    wait_until(lambda: stage.stopping)
    go.set()
    stopping.join(30)
    assert rig.row(second)[:2] == (Status.PENDING, 0)
    assert rig.out_ms(second) is None
    armed_ms = rig.armed_ms(second)
    assert armed_ms is not None
    rig.start()
    rig.wait_for(Status.DONE, first, second)
