"""Redis loses everything, is away, is full, tells a wrong time; or there is none."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

from tests.deep import deep
from tests.invariants.conftest import _started
from tests.invariants.harness import TYPE
from tests.reliability.conftest import MakeFleet, Report
from tests.reliability.fleet import CALM_S, OUTAGE_S, RATE, Fleet, pid_of, shard_of, slot_of, timed
from tests.reliability.steps import Steps
from tests.servers import RedisCluster, Server, start_redis_cluster
from tests.servers.redis import MASTERS, SLOTS, _server
from tests.worker.waiting import wait_until
from toc.timer import redis_keys

pytestmark = [pytest.mark.alone, pytest.mark.timeout(240)]

MANY = 100_000
SPREAD_S = 600
FAR_JOBS = int(os.environ.get("TOC_TEST_FAR_JOBS", "20000"))
"""2,000,000 by hand takes some minutes."""


def schedule_spread(fleet: Fleet, count: int, first_s: float, spread_s: float) -> set[int]:
    """Jobs that come due evenly, from `first_s` seconds from now on."""
    began = datetime.now(UTC) + timedelta(seconds=first_s)
    ids: set[int] = set()
    for start in range(0, count, 20_000):
        part = range(start, min(count, start + 20_000))
        jobs = [
            {
                "biz_id": 10_000_000 + n,
                "action_time": began + timedelta(seconds=spread_s) * n / count,
            }
            for n in part
        ]
        ids.update(fleet.stack.center.schedule_many(jobs, biz_type=TYPE))
    return ids


@deep
def test_all_of_redis_is_wiped(make_fleet: MakeFleet, own_redis: Server, report: Report) -> None:
    fleet = make_fleet(pool_size=16)
    many = schedule_spread(fleet, MANY, 15, SPREAD_S)
    before = fleet.account()
    action_s = {j: before.rows[j].action_ms / 1000 for j in many}

    def missing() -> set[int]:
        """Those of the many that are still to come, and not armed."""
        armed = fleet.armed() | fleet.out()
        now_s = time.time() + 1
        return {j for j in many if action_s[j] > now_s} - armed

    with fleet.load(RATE, sleep_s=0.02) as load:
        wait_until(lambda: time.time() > min(action_s.values()) + 2, "the many to come due", 60)
        assert not missing()
        with redis.Redis.from_url(own_redis.url) as client:
            client.flushall()
        wiped_s = time.time()
        back_s = timed(lambda: wait_until(lambda: not missing(), "all to be armed again", 60))
        time.sleep(5)
    end_s = time.time()
    fleet.wait_until_all_ended(due_by_s=end_s)
    account = fleet.account()
    judged = account.due({*many, *load.ids}, to_s=end_s)
    figures = account.figures(judged)
    report(
        f"FLUSHALL with {MANY:,} jobs due over {SPREAD_S / 60:.0f} min, and {RATE} jobs/s",
        figures,
        f"all back in Redis within {back_s:.1f} s; "
        f"nothing late any more after {account.late_until_s(judged, wiped_s):.1f} s",
    )
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
    assert back_s <= 10
    calm_s = account.late_before_s(judged, wiped_s)
    assert figures.late_max_s < 10 + calm_s  # the loader's own doing: the scanner's grace is 30 s
    # The rest stands in the database, and in Redis.
    rest = many - judged
    assert len(rest) > MANY / 2
    assert not account.lost_rows(rest)
    assert not missing()


@deep
def test_redis_is_away_and_comes_back_empty(
    make_fleet: MakeFleet, own_redis: Server, report: Report
) -> None:
    fleet = make_fleet()
    with fleet.load(RATE, sleep_s=0.02) as load:
        wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
        # Due after the outage: their reminders are lost with Redis, and only the loader knows.
        later = schedule_spread(fleet, 1000, OUTAGE_S + 3, 5)
        own_redis.stop()
        stopped_s = time.time()
        time.sleep(OUTAGE_S)
        own_redis.start()
        started_s = time.time()
        time.sleep(9)
    fleet.wait_until_all_ended()
    account = fleet.account()
    ids = {*load.ids, *later}
    figures = account.figures(ids)
    outage = account.figures(account.due(ids, stopped_s, started_s))
    on_time_s = account.late_until_s(ids, started_s)
    report(
        f"Redis stopped for {OUTAGE_S:.0f} s and started empty, {RATE} jobs/s",
        figures,
        f"{outage.jobs} jobs fired from the databases meanwhile, {outage.late_p50_s:.1f} s late "
        f"in the median, {outage.late_max_s:.1f} s at most; on time again {on_time_s:.1f} s after the start",
    )
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
    assert outage.jobs >= OUTAGE_S * 50
    # A second of grace, a second's tick, and what notices that it is away.
    assert figures.late_max_s < 8 + account.late_before_s(ids, stopped_s)
    assert on_time_s < 8


@deep
def test_redis_is_full(make_fleet: MakeFleet, own_redis: Server, report: Report) -> None:
    fleet = make_fleet(scanner={"grace_s": 1, "tick_s": 1})
    with redis.Redis.from_url(own_redis.url) as client, fleet.load(50, sleep_s=0.02) as load:
        wait_until(lambda: fleet.started() >= 100, "load")
        early_birds = schedule_spread(fleet, 1000, 3, 5)
        client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            client.set("one", "more")
        full_s = time.time()
        wait_until(lambda: time.time() > full_s + 7, "a while", 20)
        client.config_set("maxmemory", 0)
        free_s = time.time()
        time.sleep(4)
    fleet.wait_until_all_ended()
    account = fleet.account()
    figures = account.figures({*load.ids, *early_birds})
    armed = account.figures(early_birds)
    new = account.figures(account.due(load.ids, full_s + 3, free_s))
    report(
        "Redis full for 7 s, 50 jobs/s; grace of the scanner 1 s",
        figures,
        f"{armed.jobs} that were armed before: at most {armed.late_max_s:.2f} s late; "
        f"new ones: {new.late_p50_s:.1f} s in the median, {new.late_max_s:.1f} s at most",
    )
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
    calm_s = account.late_before_s(load.ids, full_s)
    # The scanner would bring them 1 s late at least.
    assert armed.late_p50_s < 0.7 + calm_s, "armed reminders are fired by the timer"
    assert new.late_p50_s > 0.5, "Redis was not full: the test shows nothing"
    assert new.late_max_s < 1 + 1 + 3 + calm_s


@pytest.fixture(params=[3600, -3600])
def redis_elsewhen(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A Redis whose clock is off; its name says by how much."""
    server = _server(tmp_path / "elsewhen", "7")
    server.name = f"{request.param:+d} s"
    Steps(tmp_path / "elsewhen.step", request.param).put_on(server)
    yield from _started(server.start)


@deep
def test_the_clock_of_redis_is_wrong(
    make_fleet: MakeFleet, redis_elsewhen: Server, report: Report
) -> None:
    """A Redis an hour ahead would pop all that is due within the hour; one behind, nothing."""
    fleet = make_fleet(redis_url=redis_elsewhen.url)
    with fleet.load(RATE, absolute=True, sleep_s=0.02) as load:
        wait_until(lambda: fleet.started() >= 400, "the scanner to fire", 60)
    fleet.wait_until_all_ended()
    figures = fleet.figures(load.ids)
    report(
        f"Redis' clock off by {redis_elsewhen.name}, {RATE} jobs/s",
        figures,
        f"the scanner fires, {figures.late_p50_s:.1f} s late in the median",
    )
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
    assert figures.late_max_s < 8


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    # By default all masters refuse all calls, from the death of one on until its replica has taken over.
    options = ("--cluster-require-full-coverage", "no")
    with start_redis_cluster(tmp_path / "cluster", *options, replicas=True) as found:
        yield found


@deep
def test_a_master_of_a_redis_cluster_is_killed(
    make_fleet: MakeFleet, cluster: RedisCluster, report: Report
) -> None:
    fleet = make_fleet(redis_url=cluster.url.replace("redis://", "redis+cluster://"))
    namespace = fleet.stack.settings.namespace

    def master_of(job_id: int) -> int:
        name = redis_keys.store_queue_key(namespace, "default", slot_of(fleet.stack, job_id))
        return key_slot(name.encode()) * MASTERS // SLOTS

    with fleet.load(RATE, sleep_s=0.02) as load:
        wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
        counts = [sum(master_of(j) == m for j in load.ids) for m in range(MASTERS)]
        victim = counts.index(max(counts))
        cluster.nodes[victim].kill()
        killed_s = time.time()
        time.sleep(12)
    fleet.wait_until_all_ended()
    account = fleet.account()
    figures = account.figures(load.ids)
    after = account.due(load.ids, killed_s)
    its = {j for j in after if master_of(j) == victim}
    others = account.figures(after - its)
    on_time_s = account.late_until_s(its, killed_s)
    report(
        f"one of three masters of a Redis Cluster killed, {RATE} jobs/s",
        figures,
        f"{len(its)} jobs of its slots: at most {account.figures(its).late_max_s:.1f} s late, "
        f"on time again after {on_time_s:.1f} s; {others.jobs} of other slots: "
        f"p99 {others.late_p99_s:.2f} s, at most {others.late_max_s:.2f} s",
    )
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
    assert its
    assert others.jobs
    calm_s = account.late_before_s(load.ids, killed_s)
    assert others.late_p99_s < 0.7 + calm_s, "the other masters' slots were disturbed"
    assert figures.late_max_s < 10 + calm_s
    assert on_time_s < 11, "nothing came back to the replica"


@deep
def test_jobs_of_next_week_leave_redis_as_it_was(
    make_fleet: MakeFleet, own_redis: Server, report: Report
) -> None:
    fleet = make_fleet(1, timer={"horizon_s": 30, "load_tick_s": 0.1})  # ten ticks for all shards
    with redis.Redis.from_url(own_redis.url, decode_responses=True) as client:

        def stands() -> dict[str, int]:
            """Bytes by key, without the marks, whose times differ in length, and the history."""
            names = [
                name for name in client.keys("*") if not name.startswith(("mark_", "activity_"))
            ]
            return {name: client.memory_usage(name, samples=0) or 0 for name in names}

        first = fleet.stack.schedule(10, timedelta(seconds=1))
        wait_until(lambda: fleet.started() >= 10, "the first jobs")
        fleet.wait_until_all_ended()
        wait_until(lambda: not fleet.out(), "the acks")
        before, used = stands(), client.info("memory")["used_memory"]
        took_s = timed(lambda: schedule_spread(fleet, FAR_JOBS, 7 * 86_400, 86_400))
        time.sleep(3)  # the loader looks at every shard, three times over
        after, now_used = stands(), client.info("memory")["used_memory"]
        near = fleet.stack.schedule(10, timedelta(seconds=1), first=1000)
        wait_until(lambda: fleet.started() >= 20, "jobs that are near")
        fleet.wait_until_all_ended(due_by_s=time.time())
        report(
            f"{FAR_JOBS:,} jobs scheduled for next week",
            fleet.figures({*first, *near}),
            f"in {took_s:.1f} s; Redis' memory {used / 1e6:.2f} MB before, {now_used / 1e6:.2f} MB "
            f"after; entries in Redis: {len(fleet.armed())}",
        )
    assert fleet.live() == FAR_JOBS
    assert before == after == {}
    # Buffers of connections come and go; a reminder takes about 100 bytes.
    assert now_used - used < max(500_000, FAR_JOBS * 20)


@deep
def test_without_redis(make_fleet: MakeFleet, report: Report) -> None:
    """The traditional engine: shards assigned through ZooKeeper, each scanned by one node."""
    queue_max, tick_s = 100, 1
    fleet = make_fleet(
        redis_url="none",
        cluster={"session_timeout_s": 5},
        scanner={"tick_s": tick_s},
        worker={"queue_max": queue_max, "concurrency": 8},
    )
    shares = fleet.wait_until_shared(fleet.workers)
    stack = fleet.stack
    with fleet.load(RATE, sleep_s=0.02) as load:
        wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
        burst = stack.schedule(2000, timedelta(seconds=1), sleep_s=0.005)
        wait_until(lambda: fleet.started() >= 2500, "the burst", 60)
        elsewhere = [
            line for line in stack.starts
            if shard_of(stack, line.job_id) not in shares[line.pid].shards
        ]  # fmt: skip
        ran = fleet.by_pid()
        victim = fleet.busiest()
        wait_until(lambda: fleet.in_flight_of(victim), "the victim to be at it")
        victim.kill()
        killed_s = time.time()
        cut = fleet.cut_off(victim)
        time.sleep(8)
    fleet.wait_until_all_ended()
    account = fleet.account()
    ids = {*load.ids, *burst}
    figures = account.figures(ids)
    peak = max(load.in_flight for worker in fleet.workers for load in stack.loads(worker))
    steady = account.figures(account.due(load.ids, to_s=killed_s) - cut)
    report(
        f"no Redis at all, a tick of 1 s, {RATE} jobs/s and 2,000 at once; one of three nodes killed",
        figures,
        f"shares of the work {sorted(ran.values())}; at most {peak} of {queue_max} in a node's queue; "
        f"{steady.late_p50_s:.1f} s late in the median; {len(cut)} in flight again",
    )
    assert (figures.lost, figures.early) == (0, 0)
    # What its owner has left undone for a tick is its deputy's; before that, nobody else's.
    late_s = [line.wall_ns / 1e9 - account.rows[line.job_id].action_ms / 1000 for line in elsewhere]
    assert all(by_s >= tick_s for by_s in late_s), sorted(late_s)
    assert len(ran) == 3
    assert 0 < peak <= queue_max
    assert account.twice(ids) <= cut
    assert figures.late_max_s < 15
    left = {pid_of(member) for member in fleet.members().values()}
    assert victim.pid not in left
