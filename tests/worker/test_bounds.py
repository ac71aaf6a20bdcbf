"""Back-pressure: no more is taken than there is room for."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import LONG_AGO, SOON, TYPE, Gate
from tests.worker.waiting import remains, wait_until
from toc.domain.job import Job, Status

QUEUE_MAX = 6


@pytest.mark.parametrize("scanner", [{"grace_s": 3600}, {"grace_s": 0}])
@pytest.mark.parametrize("slot_amount", [4, 2])  # 2: each slot holds jobs of both databases
def test_never_more_in_flight_than_the_bound(
    make_rig: MakeRig, scanner: dict[str, float], slot_amount: int
) -> None:
    bounds = {"concurrency": 4, "queue_max": QUEUE_MAX}
    topics = {"default": {"slot_amount": slot_amount}}
    rig = make_rig(
        databases=2, worker=bounds, scanner=scanner, timer={"stay_s": 600}, topics=topics
    )
    gate, claimed = Gate(), []
    rig.handler()(gate)
    rig.center.schedule_many([(n, SOON) for n in range(120)], biz_type=TYPE)
    worker = rig.start()

    add = worker.permits.add_jobs_in_flight

    def counted(database: int, jobs: int, permits: int) -> None:
        add(database, jobs, permits)
        claimed.append(worker.jobs_in_flight)

    worker.permits.add_jobs_in_flight = counted  # type: ignore[method-assign]
    gate.wait(4)
    assert remains(lambda: worker.jobs_in_flight <= QUEUE_MAX, 0.5)
    slots = rig.center._open_connections().reminders
    assert slots is not None
    out = sum(depth[2] for depth in slots.read_slot_depths("default", range(slot_amount)))
    assert out <= QUEUE_MAX  # what there is no room for stays in the StoreQueue
    gate.open.set()
    wait_until(lambda: len(gate.begun) == 120)
    wait_until(lambda: worker.jobs_in_flight == 0)
    assert max(claimed) <= QUEUE_MAX
    assert len({job.job_id for job in gate.begun}) == 120


def test_room_is_promised_once(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"concurrency": 4, "queue_max": QUEUE_MAX})
    worker = rig.alone()
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(worker.permits.take_permits, [0] * 40, [3] * 40))
    assert sum(taken) == QUEUE_MAX  # it grew with the demand, and not beyond its bound
    assert worker.permits.take_permits(0, 1) == 0
    for n in taken:
        worker.permits.return_permits(0, n)
    assert worker.permits.take_permits(0, 100) == QUEUE_MAX


def test_the_pop_asks_for_no_more_than_there_is_room(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"concurrency": 2, "queue_max": 2}, timer={"stay_s": 600})
    gate = Gate()
    rig.handler()(gate)
    rig.start()
    rig.wait_for_loader()  # which might remind again of what is out already
    jobs = rig.center.schedule_many([(rig.biz_id_on(0, n), SOON) for n in range(10)], biz_type=TYPE)
    gate.wait(2)
    out = [job_id for job_id in jobs if rig.out_ms(job_id)]
    assert sorted(out) == sorted(job.job_id for job in gate.begun)
    assert sum(rig.armed_ms(job_id) is not None for job_id in jobs) == 8
    gate.open.set()
    rig.wait_for(Status.DONE, *jobs)


def test_room_comes_back_when_jobs_are_settled(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"concurrency": 1, "queue_max": 1})
    gate, told = Gate(), []
    rig.handler()(gate)
    worker = rig.alone()
    worker.permits.add_permit_listener(lambda: told.append(worker.jobs_in_flight))
    job_id = rig.center.schedule(1, LONG_AGO, biz_type=TYPE)
    rig.offer(worker, job_id)
    assert worker.permits.take_permits(0, 1) == 0
    assert told == []
    gate.open.set()
    wait_until(lambda: told)
    assert told == [0]
    assert worker.permits.take_permits(0, 1) == 1


def test_async_handlers_may_be_more_than_threads(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"concurrency": 2, "async_concurrency": 8, "queue_max": 16})
    most = now = 0

    @rig.handler()
    async def handle(job: Job) -> None:
        nonlocal most, now
        del job
        now += 1
        most = max(most, now)
        for _ in range(200):
            if most >= 8:
                break
            await asyncio.sleep(0.01)
        now -= 1

    jobs = rig.center.schedule_many([(n, SOON) for n in range(40)], biz_type=TYPE)
    rig.start()
    rig.wait_for(Status.DONE, *jobs)
    assert most == 8


def test_a_database_that_hangs_keeps_no_room_from_the_others(make_rig: MakeRig) -> None:
    rig = make_rig(databases=2, worker={"concurrency": 4, "queue_max": QUEUE_MAX})
    worker = rig.alone()
    while worker.permits.take_permits(0, 100):  # promised, and the claim does not come back
        pass
    assert worker.permits.take_permits(1, 100) > 0


def test_the_limit_grows_again_when_more_is_in_flight_than_it_allows(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"concurrency": 2, "async_concurrency": 50, "queue_max": 64})
    gate = asyncio.Event()

    @rig.handler()
    async def handle(job: Job) -> None:
        del job
        await gate.wait()

    worker = rig.alone()
    jobs = rig.center.schedule_many([(n, LONG_AGO) for n in range(8)], biz_type=TYPE)
    rig.offer(worker, *jobs)
    wait_until(lambda: worker.jobs_in_flight == 8)
    for _ in range(10):
        worker.permits.halve_limit()
    assert worker.permits.limiter.limit == 2
    wait_until(lambda: worker.permits.take_permits(0, 1) == 1)
    assert worker.pool.async_handlers.loop is not None
    worker.pool.async_handlers.loop.call_soon_threadsafe(gate.set)
    rig.wait_for(Status.DONE, *jobs)


def test_who_was_refused_is_not_told_of_room_by_himself(make_rig: MakeRig) -> None:
    """Found by the simulation (seed 1): pollers without room woke themselves, round and round."""
    worker = make_rig(worker={"concurrency": 1, "queue_max": 1}).alone()
    told: list[str] = []
    worker.permits.add_permit_listener(lambda: told.append("room"))
    assert worker.permits.take_permits(0, 1) == 1
    assert worker.permits.take_permits(0, 1) == 0
    worker.permits.return_permits(0, 0)  # as a poller ends each step
    assert told == []
    worker.permits.return_permits(0, 1)
    assert told == ["room"]
