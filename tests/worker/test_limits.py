"""Limits of types in whole nodes: never above the limit, no attempt lost, nobody else held up."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.servers.endpoint import Endpoint
from tests.servers.fixtures import redis_client
from tests.worker.conftest import MakeRig
from tests.worker.rig import LATER, NOW, TYPE, Gate, Rig, metric
from tests.worker.test_declared import declare
from tests.worker.waiting import wait_until
from toc.domain.job import Job, Status
from toc.domain.limit_terms import ONE_PARTITION
from toc.domain.node_assignment import Assignment
from toc.node.node import Node
from toc.timer.limit_store import PartitionHold

OTHER = "order.remind"
SOON = {"catalogue": {"refresh_s": 0.1}}
MODES: dict[str, dict[str, Any]] = {
    "redis": {},
    "no redis": {"redis_url": "none", "scanner": {"grace_s": 0, "tick_s": 0.05}},
}


@pytest.fixture(params=MODES)
def rig(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    return make_rig(**SOON, **MODES[request.param])


class RunningCount:
    """A handler that counts how many runs of each key there are at once."""

    def __init__(self, key_of: Callable[[Job], object] = lambda job: None) -> None:
        self._key_of, self._lock = key_of, threading.Lock()
        self._now: Counter[object] = Counter()
        self.most: dict[object, int] = defaultdict(int)
        self.order: list[int | str] = []

    def __call__(self, job: Job) -> None:
        key = self._key_of(job)
        with self._lock:
            self._now[key] += 1
            self.most[key] = max(self.most[key], self._now[key])
            self.order.append(job.biz_id)
        time.sleep(0.01)  # the work: without it no two runs would ever meet
        with self._lock:
            self._now[key] -= 1


@contextmanager
def second_node(rig: Rig) -> Iterator[Node]:
    """Another node of the same handlers, in this process."""
    node = Node(rig.settings, handlers=rig.registry, clock=rig.clock)
    node.start()
    try:
        yield node
    finally:
        node.stop()


def wait_for_limit(rig: Rig, biz_type: str = TYPE) -> None:
    assert rig.node is not None
    assert rig.node.limits is not None
    limits = rig.node.limits.limits
    wait_until(lambda: biz_type in limits.limited_types, "the node to know the limit")


def test_a_concurrency_holds_and_no_attempt_is_lost(rig: Rig) -> None:
    handler = RunningCount()
    rig.handler()(handler)
    declare(rig, TYPE, concurrency=2)
    rig.start()
    ids = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(40)]
    rig.wait_for(Status.DONE, *ids)
    assert handler.most[None] == 2
    assert {rig.row(job_id).attempts for job_id in ids} == {1}


def test_two_nodes_share_a_concurrency_in_redis(make_rig: MakeRig) -> None:
    rig = make_rig(**SOON)
    handler = RunningCount()
    rig.handler()(handler)
    declare(rig, TYPE, concurrency=3)
    rig.start()
    with second_node(rig):
        ids = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(60)]
        rig.wait_for(Status.DONE, *ids)
    assert handler.most[None] == 3
    assert {rig.row(job_id).attempts for job_id in ids} == {1}


def test_a_rate_is_kept(rig: Rig) -> None:
    rig.handler()(lambda job: None)
    declare(rig, TYPE, rate="50/s", burst=5)
    rig.start()
    wait_for_limit(rig)
    began_s = time.monotonic()
    ids = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(55)]
    rig.wait_for(Status.DONE, *ids)
    assert time.monotonic() - began_s >= (55 - 5) / 50 - 0.02
    assert {rig.row(job_id).attempts for job_id in ids} == {1}


def test_a_type_that_waits_holds_up_no_other(rig: Rig) -> None:
    gate = Gate()
    rig.handler()(gate)
    rig.handler(OTHER)(lambda job: None)
    declare(rig, TYPE, concurrency=1)
    rig.start()
    waiting = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(50)]
    gate.wait()
    others = [rig.center.schedule(n, NOW, biz_type=OTHER) for n in range(50)]
    rig.wait_for(Status.DONE, *others)
    assert len(gate.begun) == 1
    assert sum(rig.status(job_id) is Status.PENDING for job_id in waiting) == 49
    gate.open.set()
    rig.wait_for(Status.DONE, *waiting)


def test_jobs_that_wait_keep_their_order(make_rig: MakeRig) -> None:
    rig = make_rig(**SOON, shards=1)
    gate, handler = Gate(), RunningCount()
    rig.handler()(lambda job: gate(job) if job.biz_id == 0 else handler(job))
    declare(rig, TYPE, concurrency=1)
    rig.start()
    rig.center.schedule(0, NOW, biz_type=TYPE)
    gate.wait()
    ids = []
    for n in range(1, 25):
        ids.append(rig.center.schedule(n, NOW, biz_type=TYPE))
        rig.clock.sleep_s(0.002)  # another due time
    gate.open.set()
    rig.wait_for(Status.DONE, *ids)
    assert handler.order == sorted(handler.order)


def test_a_full_partition_holds_up_no_other(rig: Rig) -> None:
    gate = Gate()
    rig.handler()(lambda job: gate(job) if job.attribute["shop"] == "slow" else None)
    declare(rig, TYPE, concurrency=1, per="payload.shop")
    rig.start()

    def schedule(n: int, shop: str) -> int:
        return rig.center.schedule(n, NOW, biz_type=TYPE, attribute={"shop": shop})

    slow = [schedule(n, "slow") for n in range(20)]
    gate.wait()
    others = [schedule(n, f"shop {n % 4}") for n in range(20)]
    rig.wait_for(Status.DONE, *others)
    assert len(gate.begun) == 1
    gate.open.set()
    rig.wait_for(Status.DONE, *slow)
    assert {rig.row(job_id).attempts for job_id in [*slow, *others]} == {1}


def test_a_concurrency_holds_for_each_partition(rig: Rig) -> None:
    handler = RunningCount(lambda job: job.biz_id)
    rig.handler()(handler)
    declare(rig, TYPE, concurrency=1, per="biz_id")
    rig.start()
    ids = [rig.center.schedule(n % 3, NOW, biz_type=TYPE, dedup_key=str(n)) for n in range(24)]
    rig.wait_for(Status.DONE, *ids)
    assert handler.most == {0: 1, 1: 1, 2: 1}


def test_the_places_of_a_dead_node_come_back(make_rig: MakeRig) -> None:
    rig = make_rig(**SOON)
    rig.handler()(lambda job: None)
    declare(rig, TYPE, concurrency=2)
    rig.start()
    assert rig.node is not None
    assert rig.node.limits is not None
    store = rig.node.limits.limits.store
    assert store is not None
    # What a node leaves that was killed: holders whose holds nobody names again.
    held = [(3000, "7:dead"), (3000, "8:dead")]
    store.hold(TYPE, [PartitionHold(ONE_PARTITION, held)])
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.wait_for(Status.DONE, job_id)
    assert store.read_use([TYPE])[TYPE].holders == 0


def test_a_wiped_redis_lets_no_further_job_start(
    make_rig: MakeRig, redis_server: Endpoint, redis_namespace: str
) -> None:
    rig = make_rig(**SOON, scanner={"grace_s": 0.2, "tick_s": 0.05})
    gate = Gate()
    rig.handler()(gate)
    declare(rig, TYPE, concurrency=2)
    rig.start()
    ids = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(6)]
    gate.wait(2)
    assert rig.node is not None
    assert rig.node.limits is not None
    store = rig.node.limits.limits.store
    assert store is not None
    with redis_client(redis_server.url, is_cluster=False) as client:
        for key in client.scan_iter(match=f"*{redis_namespace[:32]}*", count=1000):
            client.delete(key)
    # The node names its two jobs again, before anything may start.
    wait_until(lambda: store.read_use([TYPE])[TYPE].holders == 2, "the holders to be named again")
    more = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(6, 9)]
    refused = rig.node.limits.limits
    wait_until(lambda: refused.next_fetch_s(TYPE) > 0, "a job to be refused")
    assert len(gate.begun) == 2
    gate.open.set()
    rig.wait_for(Status.DONE, *ids, *more)


def test_a_limit_that_is_removed_holds_nothing_up(rig: Rig) -> None:
    gate = Gate()
    rig.handler()(gate)
    declare(rig, TYPE, concurrency=1)
    rig.start()
    ids = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(4)]
    gate.wait(1)
    declare(rig, TYPE, concurrency=4)
    gate.wait(4)
    declare(rig, TYPE)
    gate.open.set()
    ids += [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(4, 20)]
    rig.wait_for(Status.DONE, *ids)


def test_a_retry_takes_a_start_and_frees_its_place(rig: Rig) -> None:
    failed: list[int] = []

    def fail_once(job: Job) -> None:
        if job.attempts == 1:
            failed.append(job.job_id)
            raise ValueError("once")

    rig.handler(retry=[0])(fail_once)
    declare(rig, TYPE, concurrency=1)
    rig.start()
    ids = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(5)]
    rig.wait_for(Status.DONE, *ids)
    assert len(failed) == 5
    assert rig.node is not None
    assert rig.node.limits is not None
    limits = rig.node.limits.limits
    wait_until(lambda: not limits.holders.count_by_type(), "all places to be free")


def test_a_job_whose_worker_died_waits_for_a_place(make_rig: MakeRig) -> None:
    rig = make_rig(**SOON)
    gate = Gate()
    rig.handler()(gate)
    declare(rig, TYPE, concurrency=1)
    lost = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.run_elsewhere(lost, token="dead:1", attempts=1, lease_s=-1)
    first = rig.center.schedule(2, NOW, biz_type=TYPE)
    rig.start()
    gate.wait(1)
    before = metric("toc_limit_refused_total", biz_type=TYPE)
    # The other one is refused: the pending job, or the one that is to be taken over.
    wait_until(
        lambda: metric("toc_limit_refused_total", biz_type=TYPE) > before, "a job to be refused"
    )
    assert len(gate.begun) == 1
    gate.open.set()
    rig.wait_for(Status.DONE, lost, first)
    assert rig.row(lost).attempts == 2


def test_a_job_whose_worker_died_is_not_overtaken_by_the_whole_backlog(make_rig: MakeRig) -> None:
    rig = make_rig(**SOON, shards=1, timer={"stay_s": 60})
    gate, handler = Gate(), RunningCount()
    rig.handler()(lambda job: gate(job) if job.biz_id == 0 else handler(job))
    declare(rig, TYPE, concurrency=1)
    rig.start()
    first = rig.center.schedule(0, NOW, biz_type=TYPE)
    gate.wait()
    lost = rig.center.schedule(1, LATER, biz_type=TYPE)
    rig.run_elsewhere(lost, token="dead:1", attempts=1, lease_s=-1)
    assert rig.node is not None
    assert rig.node.worker is not None
    suspects = rig.node.worker.recoveries[0]
    rig.offer(rig.node.worker, lost)  # as a scanner finds it
    before = metric("toc_limit_refused_total", biz_type=TYPE)
    wait_until(lambda: metric("toc_limit_refused_total", biz_type=TYPE) > before, "a refusal")
    ids = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(2, 80)]
    gate.open.set()
    rig.wait_for(Status.DONE, first, lost, *ids, seconds=60)
    assert handler.order.index(1) < 40
    assert not suspects._queued_ids


def test_a_sink_is_limited_too(make_rig: MakeRig) -> None:
    rig = make_rig(**SOON)
    handler = RunningCount()
    declare(rig, TYPE, sink="webhook:shop", concurrency=1)
    rig.start(sinks={"webhook": lambda target: handler})
    ids = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(8)]
    rig.wait_for(Status.DONE, *ids)
    assert handler.most == {None: 1}


@pytest.mark.parametrize("mode", MODES)
def test_jobs_whose_slot_and_shard_nobody_serves_run_elsewhere(
    make_rig: MakeRig, mode: str
) -> None:
    """The owner and the deputy may be members without a process. Without Redis, one of three nodes has the
    only place of a concurrency of 1, and the other two may own a shard and its deputy.
    """
    rig = make_rig(**{**SOON, "scanner": {"grace_s": 0, "tick_s": 0.05}, **MODES[mode]})
    handler = RunningCount()
    rig.handler()(handler)
    declare(rig, TYPE, concurrency=1)
    rig.start()
    wait_for_limit(rig)
    assert rig.node is not None
    assert rig.node.limits is not None
    assert rig.node.work_sources is not None
    rig.node.limits.limits.set_nodes(0, 3)
    rig.node.work_sources.assign_shares(Assignment({}, {}, [], []))  # the others own them all
    ids = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(4)]
    rig.wait_for(Status.DONE, *ids, seconds=60)
    assert handler.most == {None: 1}
    assert rig.node.work_sources.fallbacks[0].overdue.shards == 0  # no alarm: a limit is no fault
