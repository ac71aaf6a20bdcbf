"""Priorities in whole nodes: the order of due jobs that wait, with and without Redis (ADR 51)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import NOW, TYPE, Gate, Rig
from tests.worker.test_declared import declare
from tests.worker.test_limits import MODES, SOON, RunningCount, wait_for_limit
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.domain.pauses import hold_topic_of
from toc.domain.priorities import PRIORITIES

AGEING_S = 100.0
FIRST = 10_000  # the business id of the job that holds the limit while the others come


@pytest.fixture(params=MODES)
def rig(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    return make_rig(**SOON, **MODES[request.param], shards=1, priorities={"ageing_s": AGEING_S})


class WaitingJobs:
    """Jobs of one type that wait for one another, and the order in which they run."""

    def __init__(self, rig: Rig, **terms: Any) -> None:
        self.rig, self.gate, self.handler = rig, Gate(), RunningCount()
        rig.handler()(lambda job: self.gate(job) if job.biz_id == FIRST else self.handler(job))
        declare(rig, TYPE, concurrency=1, **terms)
        rig.start()
        wait_for_limit(rig)
        self.now = datetime.now(UTC)
        self.ids: dict[int, int] = {}
        self.priorities: dict[int, int] = {}
        rig.center.schedule(FIRST, NOW, biz_type=TYPE)
        self.gate.wait()

    def schedule(self, ago_s: float, priority: int) -> int:
        """A job that was due so long ago; its business id."""
        biz_id = len(self.ids)
        due = self.now - timedelta(seconds=ago_s)
        self.ids[biz_id] = self.rig.center.schedule(biz_id, due, biz_type=TYPE, priority=priority)
        self.priorities[biz_id] = priority
        return biz_id

    def wait_for_reminders(self, *, own_topics: bool = True) -> None:
        priorities = {
            job_id: self.priorities[biz_id] if own_topics else 0
            for biz_id, job_id in self.ids.items()
        }
        wait_for_reminders(self.rig, priorities)

    def run(self, *, own_topics: bool = True) -> list[int | str]:
        """Lets the jobs run when all of them wait in their topics; the order in which they ran."""
        if self.rig.settings.has_timer:
            self.wait_for_reminders(own_topics=own_topics)
        self.gate.open.set()
        self.rig.wait_for(Status.DONE, *self.ids.values())
        assert self.handler.most[None] <= 1
        return self.handler.order


def wait_for_reminders(rig: Rig, priorities: Mapping[int, int]) -> None:
    """Waits until the reminders of jobs, each with its priority, are in hold topics and the node knows it."""
    places = {job_id: hold_topic_of(TYPE, priority) for job_id, priority in priorities.items()}
    wait_until(
        lambda: all(
            (rig.armed_ms(job_id, topic) or rig.out_ms(job_id, topic)) is not None
            for job_id, topic in places.items()
        ),
        "the reminders to be in the hold topics",
    )
    # The messages of Redis about them may still be on their way.
    reminders = rig.slots()
    assert reminders is not None
    assert rig.node is not None
    assert rig.node.work_sources is not None
    assert rig.node.work_sources.hold_sources is not None
    for poller in rig.node.work_sources.hold_sources.pollers:
        for slot, in_s in reminders.read_heads(poller.topic, [0], 1.0).items():
            poller.on_head_seen(slot, in_s)


def test_due_jobs_run_by_their_aged_priority(rig: Rig) -> None:
    jobs = WaitingJobs(rig, priority=0)
    rng = random.Random(51)  # noqa: S311 - a seed of a test
    order_s = {}
    for ago_s in rng.sample(range(2000), 25):
        priority = rng.choice(PRIORITIES)
        order_s[jobs.schedule(ago_s, priority)] = -ago_s - priority * AGEING_S + ago_s / 1e6
    assert jobs.run() == sorted(order_s, key=order_s.__getitem__)
    assert {rig.row(job_id).attempts for job_id in jobs.ids.values()} == {1}


def test_without_a_declared_priority_the_due_time_alone_decides(rig: Rig) -> None:
    jobs = WaitingJobs(rig)
    wanted = [jobs.schedule(ago_s, priority) for ago_s, priority in [(30, 0), (20, 9), (10, 5)]]
    assert jobs.run(own_topics=False) == wanted


def test_the_priority_of_a_type_may_be_declared_and_removed(make_rig: MakeRig) -> None:
    rig = make_rig(**SOON, shards=1)
    jobs = WaitingJobs(rig)
    jobs.schedule(1, 3)
    node = rig.node
    assert node is not None
    assert node.pauses is not None
    assert node.limits is not None
    gate, (limited_types,) = node.pauses.gate, node.limits.services
    declare(rig, TYPE, concurrency=1, priority=7)
    wait_until(lambda: gate.priorities == {TYPE: 7}, "the node to know the priority")
    jobs.schedule(1, 9)
    declare(rig, TYPE, concurrency=1)
    wait_until(
        lambda: node.catalogue.all()[TYPE].priority is None, "the node to know that it is removed"
    )
    limited_types.run_once()
    jobs.schedule(1, 0)
    # The topics of priorities are popped for a while, so that nothing stays in them.
    jobs.gate.open.set()
    rig.wait_for(Status.DONE, *jobs.ids.values())
    assert gate.priorities == {TYPE: 7}


def test_a_wiped_redis_loses_no_job_and_keeps_the_priorities(make_rig: MakeRig) -> None:
    rig = make_rig(**SOON, shards=1, timer={"load_tick_s": 0.1})
    jobs = WaitingJobs(rig, priority=0)
    low = [jobs.schedule(5, 0) for _ in range(3)]
    high = [jobs.schedule(5, 9) for _ in range(3)]
    jobs.wait_for_reminders()
    reminders = rig.slots()
    assert reminders is not None
    client = reminders.connected_client()
    for key in list(client.scan_iter(match=f"*{rig.settings.namespace}:*")):
        client.delete(key)
    order = jobs.run()
    assert sorted(order[:3]) == high
    assert sorted(order[3:]) == low


def test_after_a_pause_the_important_jobs_go_first(make_rig: MakeRig) -> None:
    # One handler at a time, so that the order of the runs is the order of the claims.
    rig = make_rig(**SOON, shards=1, worker={"concurrency": 1, "queue_max": 4})
    order: list[int | str] = []
    rig.handler()(lambda job: order.append(job.biz_id))
    declare(rig, TYPE, priority=0)
    rig.start()
    node = rig.node
    assert node is not None
    assert node.pauses is not None
    gate = node.pauses.gate
    wait_until(lambda: TYPE in gate.priorities, "the node to know the priority")
    rig.center.pause(TYPE)
    wait_until(lambda: gate.is_closed(TYPE), "the node to know the pause")
    ids = {
        n: rig.center.schedule(n, NOW, biz_type=TYPE, priority=9 if n % 2 else 0) for n in range(12)
    }
    wait_for_reminders(rig, {job_id: 9 if n % 2 else 0 for n, job_id in ids.items()})
    rig.center.resume(TYPE)
    rig.wait_for(Status.DONE, *ids.values())
    assert {n for n in order[:6] if isinstance(n, int) and n % 2} == set(range(1, 12, 2))
    assert len(order) == 12
