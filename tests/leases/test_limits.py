"""Limits of a pull type: over all replicas, whichever replica settles a lease (ADR 45)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.leases.conftest import MakeLeaseRig
from tests.leases.rig import TYPE, LeaseRig
from tests.worker.waiting import wait_until
from toc.domain.declared_type import DeclaredType
from toc.domain.job import Status
from toc.leases.lease_server import LeaseServer
from toc.store.database_metadata import DatabaseMetadata
from toc.store.declared_types import DeclaredTypes


def declare(rig: LeaseRig, **fields: Any) -> None:
    fields = {"mode": "pull", "timeout_s": 60, "retry": [0]} | fields
    types = DatabaseMetadata(rig.databases).types
    DeclaredTypes(rig.databases, types, 1000).change(
        TYPE, lambda _: DeclaredType.from_fields(TYPE, fields), "test"
    )
    rig.settings.pull_types.replace_names([TYPE])


def wait_until_open(rig: LeaseRig, server: LeaseServer) -> None:
    """Until the replica knows the limit, and Redis knows the type for long enough."""
    limits = rig.node_of(server).limits.limits
    wait_until(lambda: TYPE in limits.limited_types, "the replica to know the limit")


@pytest.mark.parametrize("redis", [True, False])
def test_a_concurrency_counts_leases(make_rig: MakeLeaseRig, redis: bool) -> None:
    rig = make_rig() if redis else make_rig(redis_url="none")
    declare(rig, concurrency=2)
    server = rig.replica()
    wait_until_open(rig, server)
    job_ids = rig.schedule(5)
    leased = rig.lease(server, max_jobs=5)
    while len(leased) < 2:
        leased += rig.lease(server, max_jobs=5)
    assert len(leased) == 2
    waits = rig.waits(server, max_jobs=5)
    limits = rig.node_of(server).limits.limits
    wait_until(lambda: limits.next_fetch_s(TYPE) > 0, "a job to be refused")
    assert not waits.done()
    statuses = rig.statuses(job_ids)
    assert statuses.count(Status.RUNNING) == 2
    assert statuses.count(Status.PENDING) == 3
    assert rig.settle(server.finish, leased[0]) == ["settled"]
    (third,) = waits.result(100)
    assert third.attempt == 1
    assert rig.statuses(job_ids).count(Status.RUNNING) == 2


def test_another_replica_may_settle(make_rig: MakeLeaseRig) -> None:
    rig = make_rig()
    declare(rig, concurrency=1, per="payload.shop")
    gave, other = rig.replica(), rig.replica()
    for server in (gave, other):
        wait_until_open(rig, server)
    rig.schedule(2, attribute={"shop": "a"})
    (first,) = rig.lease(gave)
    assert rig.settle(other.extend, first, lease_s=30) == ["extended"]
    assert rig.settle(other.fail, first, reason="later", retry_after_s=3600) == ["settled"]
    (second,) = rig.lease(gave)
    assert second.job_id != first.job_id
    assert rig.settle(other.release, second) == ["released"]
    (again,) = rig.lease(other)
    assert again.job_id == second.job_id


def test_an_expired_lease_gives_its_place_to_the_next_attempt(make_rig: MakeLeaseRig) -> None:
    rig = make_rig()
    declare(rig, concurrency=1)
    server = rig.replica()
    wait_until_open(rig, server)
    (job_id,) = rig.schedule()
    (lost,) = rig.lease(server)
    rig.expire(job_id, seconds_ago=10)
    (again,) = rig.lease(server)
    assert (again.job_id, again.attempt) == (job_id, 2)
    assert rig.settle(server.finish, lost) == ["lost"]
    assert rig.settle(server.finish, again) == ["settled"]


@pytest.mark.parametrize("limits", [{"concurrency": 1}, {}])
def test_without_redis_leases_go_by_priority(
    make_rig: MakeLeaseRig, limits: dict[str, Any]
) -> None:
    rig = make_rig(redis_url="none", shards=1)
    declare(rig, priority=0, **limits)
    priorities = [0, 9, 5, 9]
    server = rig.replica()
    wait_until(lambda: rig.node_of(server).pauses.gate.priorities == {TYPE: 0}, "the priority")
    job_ids = [rig.schedule(priority=priority)[0] for priority in priorities]
    order = []
    for _ in priorities:
        (leased,) = rig.lease(server)
        order.append(priorities[job_ids.index(leased.job_id)])
        assert rig.settle(server.finish, leased) == ["settled"]
    assert order == [9, 9, 5, 0]


def test_a_lease_is_the_best_of_a_page(make_rig: MakeLeaseRig) -> None:
    rig = make_rig()
    declare(rig, priority=0)
    server = rig.replica()
    wait_until(lambda: rig.node_of(server).pauses.gate.priorities == {TYPE: 0}, "the priority")
    # One business id: all jobs are in one database, of which a page is fetched.
    for priority in (0, 4, 0):
        rig.schedule(priority=priority)
    (best,) = rig.schedule(priority=9)
    for priority in (4, 0, 4):
        rig.schedule(priority=priority)
    (leased,) = rig.lease(server)
    assert leased.job_id == best
    # What was not given is back, and others get it.
    left: list[int] = []
    while len(left) < 6:
        left += [each.job_id for each in rig.lease(server)]
    assert len(set(left) | {best}) == 7
