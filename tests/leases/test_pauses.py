"""A paused pull type: consumers wait, leases go on, and the jobs keep their order (ADR 44)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.leases.conftest import MakeLeaseRig
from tests.leases.rig import TYPE, LeaseRig
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.leases.lease_server import LeaseServer

OTHER = "order.remind"


def wait_until_known(rig: LeaseRig, server: LeaseServer, *, closed: bool) -> None:
    gate = rig.node_of(server).pauses.gate
    wait_until(lambda: gate.is_closed(TYPE) == closed, "the replica to know the change")


@pytest.mark.parametrize("redis", [True, False])
def test_consumers_wait_during_a_pause(make_rig: MakeLeaseRig, redis: bool) -> None:
    rig = make_rig() if redis else make_rig(redis_url="none")
    rig.declare()
    rig.declare(OTHER)
    server = rig.replica()
    (running,) = rig.schedule()
    (lease,) = rig.lease(server)
    rig.center.pause(TYPE)
    wait_until_known(rig, server, closed=True)
    job_ids = rig.schedule(3)
    waits = rig.waits(server, max_jobs=3)
    (other,) = rig.schedule(biz_type=OTHER)
    (got,) = rig.lease(server, types=[OTHER])
    assert got.job_id == other
    assert not waits.done()
    assert {rig.row(job_id).attempts for job_id in job_ids} == {0}
    assert rig.settle(server.finish, lease) == ["settled"]
    assert rig.row(running).status is Status.DONE
    rig.center.resume(TYPE, now=True)
    got_ids = [job.job_id for job in waits.result(100)]
    while len(got_ids) < 3:
        got_ids += [job.job_id for job in rig.lease(server, max_jobs=3)]
    assert sorted(got_ids) == sorted(job_ids)
    assert {rig.row(job_id).attempts for job_id in job_ids} == {1}


def test_nothing_is_popped_during_a_pause(rig: LeaseRig) -> None:
    server = rig.replica()
    rig.center.pause(TYPE)
    wait_until_known(rig, server, closed=True)
    (job_id,) = rig.schedule(action_time=timedelta(milliseconds=1))
    due_ms = rig.row(job_id).due_ms
    waits = rig.waits(server, wait_s=2)
    assert waits.result(100) == []
    assert rig.armed_ms(job_id) == due_ms


@pytest.mark.parametrize("redis", [True, False])
def test_run_now_goes_through_a_pause(make_rig: MakeLeaseRig, redis: bool) -> None:
    rig = make_rig() if redis else make_rig(redis_url="none")
    rig.declare()
    server = rig.replica()
    rig.center.pause(TYPE)
    wait_until_known(rig, server, closed=True)
    one, other = rig.schedule(2)
    waits = rig.waits(server, max_jobs=2)
    assert rig.center.run_now(other) == "rescheduled"
    assert [job.job_id for job in waits.result(100)] == [other]
    assert rig.row(one).attempts == 0
