"""Which waiting consumer gets which job: shares, the order of arrival, tenants, late claims."""

from __future__ import annotations

import pytest

from tests.leases.rig import sees_tenant
from toc.domain.job import Job, Status
from toc.domain.times import EPOCH
from toc.errors import Overloaded
from toc.leases.demand import Demand, Reoffer
from toc.leases.waiter import Accept, LeasedJob, Waiter
from toc.leases.waiting_room import RESERVED_S_MAX, Distribution, WaitingRoom
from toc.testing import TestClock
from toc.worker.permits import DatabaseOutages

TYPE = "order.close"


def make_job(job_id: int, tenant: str | None = None) -> Job:
    return Job(job_id, job_id, TYPE, Status.PENDING, 0, {}, 0, 0, None, tenant=tenant)


def make_leased(job_id: int) -> LeasedJob:
    return LeasedJob(job_id, "token", EPOCH, 1, job_id, TYPE, None, {}, EPOCH)


class Room:
    def __init__(self, waiters_max: int = 100) -> None:
        self.clock = TestClock()
        self.room = WaitingRoom(self.clock, waiters_max)
        self.told: list[Waiter] = []

    def add(self, max_jobs: int = 1, accept: Accept = lambda job: True, *types: str) -> Waiter:
        waiter = Waiter(
            dict.fromkeys(types or (TYPE,), 1000), max_jobs, accept,
            lambda: self.told.append(waiter),
        )  # fmt: skip
        self.room.add_waiter(waiter)
        return waiter

    def give(self, *jobs: Job) -> Distribution:
        return self.room.distribute_jobs(TYPE, jobs)


def ids(distribution: Distribution) -> list[list[int]]:
    return [[job.job_id for job in jobs] for _, jobs in distribution.taken]


def test_rows_are_shared_out_one_by_one_in_the_order_of_arrival() -> None:
    room = Room()
    waiters = [room.add(100), room.add(1), room.add(100)]
    result = room.give(*map(make_job, range(8)))
    assert [waiter for waiter, _ in result.taken] == waiters
    assert ids(result) == [[0, 3, 5, 7], [1], [2, 4, 6]]


def test_one_row_goes_to_the_one_who_waits_longest() -> None:
    room = Room()
    first, _ = room.add(1), room.add(100)
    ((waiter, _),) = room.give(make_job(1)).taken
    assert waiter is first


def test_a_tenants_row_goes_to_its_consumer_and_others_are_refused() -> None:
    room = Room()
    room.add(5, sees_tenant("a"))
    b = room.add(1, sees_tenant("b"))
    result = room.give(make_job(1, "c"), make_job(2, "b"), make_job(3, "b"), make_job(4, None))
    assert [(waiter, [job.job_id for job in jobs]) for waiter, jobs in result.taken] == [(b, [2])]
    assert [job.job_id for job in result.no_place] == [3]
    assert [job.job_id for job in result.refused] == [1, 4]


def test_without_consumers_nothing_is_refused() -> None:
    result = Room().give(make_job(1))
    assert not result.refused
    assert len(result.no_place) == 1


def test_reserved_places_are_not_given_twice_until_the_claim_hangs() -> None:
    room = Room()
    waiter = room.add(1)
    assert ids(room.give(make_job(1))) == [[1]]
    assert len(room.give(make_job(2)).no_place) == 1
    room.clock.advance(RESERVED_S_MAX)
    assert ids(room.give(make_job(3))) == [[3]]
    # The claim for job 3 is answered first: the late job 1 has no place any more.
    assert list(room.room.deliver_jobs(waiter, 1, [make_leased(3)])) == []
    assert [job.job_id for job in room.room.deliver_jobs(waiter, 1, [make_leased(1)])] == [1]


def test_jobs_for_a_closed_consumer_come_back() -> None:
    room = Room()
    waiter = room.add(2)
    room.give(make_job(1))
    assert room.room.close_waiter(waiter) == []
    assert [job.job_id for job in room.room.deliver_jobs(waiter, 1, [make_leased(1)])] == [1]
    assert room.room.count_wanted_jobs([TYPE]) == 0


def test_a_closed_room_tells_those_who_wait_and_those_who_come() -> None:
    room = Room()
    waiter = room.add()
    room.room.close_all()
    assert room.told == [waiter]
    assert waiter.closed
    assert room.add().closed


def test_too_many_consumers_are_refused() -> None:
    room = Room(waiters_max=1)
    room.add()
    with pytest.raises(Overloaded) as refused:
        room.add()
    assert refused.value.setting == "leases.waiters_max"


def test_permits_follow_the_places_of_the_consumers() -> None:
    room = Room()
    outages = DatabaseOutages(room.clock)
    demand = Demand(room.room, outages, room.clock, lambda: [TYPE])
    woken: list[int] = []
    demand.add_permit_listener(lambda: woken.append(1))
    assert demand.take_permits(0, 10) == 0
    room.add(3)
    assert demand.take_permits(0, 10) == 3
    assert demand.take_permits(1, 10) == 0  # the permits are out
    demand.return_permits(0, 3)
    assert woken == [1]
    assert demand.take_permits(1, 2) == 2
    room.clock.advance(RESERVED_S_MAX)
    assert demand.take_permits(0, 10) == 3  # database 1 hangs, and holds up no other


def test_a_database_that_was_down_is_tried_with_one_job() -> None:
    room = Room()
    outages = DatabaseOutages(room.clock)
    demand = Demand(room.room, outages, room.clock, lambda: [TYPE])
    room.add(5)
    outages.record_no_answer(0)
    assert demand.take_permits(0, 5) == 0
    room.clock.advance(60)
    assert demand.take_permits(0, 5) == 1
    assert demand.take_permits(0, 5) == 0


def test_the_delay_of_refused_jobs_doubles_while_nothing_else_comes() -> None:
    reoffer = Reoffer()
    delays = []
    for _ in range(7):
        reoffer.record_batch(100, 0)
        delays.append(reoffer.delay_s)
    assert delays == [2, 4, 8, 16, 30, 30, 30]
    reoffer.record_batch(100, 1)
    assert reoffer.delay_s == 30
    reoffer.record_batch(0, 1)
    assert (reoffer.delay_s, reoffer.extra) == (1, 0)
