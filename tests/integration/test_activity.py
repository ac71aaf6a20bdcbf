"""What processes count stands in Redis by minutes: of real nodes and clients, merged and bounded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.servers import Server
from tests.servers.endpoint import Endpoint
from tests.worker.waiting import wait_until
from toc.center.center import TimeoutCenter
from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime import activity_counts as counts_module
from toc.runtime import metrics
from toc.runtime.activity_counts import TYPES_MAX, activity_counts
from toc.runtime.clock import SystemClock
from toc.runtime.process_info import toc_version
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.testing import TestClock
from toc.timer import activity
from toc.timer.activity import (
    FINAL_MINUTES,
    KEPT_S,
    ActivityReader,
    ActivityStore,
    TypeActivity,
    highest_per_minute,
    sum_stage,
    sum_types,
)
from toc.timer.activity_reporter import MARKS_MAX, ActivityReporter, Mark
from toc.timer.timer_server import TimerServer

NOW = timedelta()


@pytest.fixture
def clock() -> TestClock:
    activity_counts.take_new_counts()  # of other tests
    return TestClock()


@pytest.fixture
def server(redis_server: Endpoint, clock: TestClock) -> Iterator[TimerServer]:
    made = TimerServer(redis_server.url, clock, 5)
    yield made
    made.close()


@pytest.fixture
def store(server: TimerServer, redis_namespace: str) -> ActivityStore:
    return ActivityStore(server, redis_namespace)


def settings_of(folder: Path, redis_url: str, namespace: str, grace_s: float = 0) -> Settings:
    made = Settings(
        databases=(f"sqlite:///{folder}/toc.db",), shards=4, redis_url=redis_url,
        namespace=namespace, connect_timeout_s=1, scanner={"grace_s": grace_s, "tick_s": 0.2},
    )  # fmt: skip
    migrate.upgrade(made)
    return made


def test_a_node_and_a_client_tell_what_they_did(
    tmp_path: Path, redis_server: Endpoint, redis_namespace: str, clock: TestClock
) -> None:
    # The scanner must take no job: the timer's stage is measured of those that the timer has found.
    settings = settings_of(tmp_path, redis_server.url, redis_namespace, grace_s=600)
    handlers = Registry()

    @handlers.handler("shop.close", max_attempts=1)
    def close(job: Job) -> None:
        if job.biz_id == 3:
            raise ValueError("broken")

    node = Node(settings, handlers=handlers)
    node.start()
    try:
        with TimeoutCenter(settings) as center:
            late = center.schedule(4, timedelta(hours=1), biz_type="shop.close")
            jobs = [center.schedule(n, NOW, biz_type="shop.close") for n in range(1, 4)]
            assert center.cancel(late).ok
            wait_until(
                lambda: all(not center.get(job_id).status.live for job_id in jobs),  # type: ignore[union-attr]
                "the jobs' ends",
            )
    finally:
        assert node.stop()  # the last counts are told at the end
    server = TimerServer(redis_server.url, SystemClock(), 5)
    reader = ActivityReader(ActivityStore(server, redis_namespace))

    def read_all() -> list[activity.MinuteActivity] | None:
        """The minutes, once the client's last report is there: its close waits for a second only."""
        found = reader.read_last(5)
        return found if sum_types(found).get("") == TypeActivity(cancelled=1) else None

    try:
        found = wait_until(read_all, "the client's report") or []
    finally:
        server.close()
    assert sum_types(found)["shop.close"] == TypeActivity(scheduled=4, done=2, dead=1)
    for stage in ("lateness", "timer", "database", "queue", "handler"):
        assert sum(sum_stage(found, stage)) == 3, stage
    assert sum(each.reports for each in found) >= 2
    assert f"start:{toc_version()}" in [mark for each in found for mark in each.marks]


def test_two_processes_add_up(store: ActivityStore) -> None:
    store.add(100, {"scheduled:a": 3, "done:a": 1, "late:timer:2": 5, "reports": 1})
    store.add(
        100, {"scheduled:a": 4, "dead:a": 1, "late:timer:2": 1, "late:timer:16": 1, "reports": 1}
    )
    store.add(101, {"done:a": 9, "mark:start:1.0": 1})
    first, second, third = store.read([100, 101, 102])
    assert first.types == {"a": TypeActivity(scheduled=7, done=1, dead=1)}
    assert first.stages["timer"][2] == 6
    assert first.stages["timer"][16] == 1
    assert (first.reports, third.reports, third.types) == (2, 0, {})
    assert second.marks == ["start:1.0"]
    assert highest_per_minute([first, second, third]) == {"a": 9, "": 9}


def test_a_minute_is_kept_for_a_day(
    store: ActivityStore, server: TimerServer, redis_namespace: str
) -> None:
    store.add(7, {"done:a": 1})
    left_s = server.connected_client().ttl(f"activity_{redis_namespace}:7")
    assert 24 * 3600 < left_s <= KEPT_S


def test_what_no_version_writes_is_left_out(
    store: ActivityStore, server: TimerServer, redis_namespace: str
) -> None:
    key = f"activity_{redis_namespace}:5"
    strange = {b"\xff": 1, "late:timer:99": 1, "late:timer:x": 1, "zap:a": 1, "done:a": "many"}
    server.connected_client().hset(key, mapping={**strange, "done:b:c": 2})  # type: ignore[dict-item]
    (found,) = store.read([5])
    assert found.types == {"b:c": TypeActivity(done=2)}
    assert not found.stages


def test_old_minutes_are_read_once(
    store: ActivityStore, clock: TestClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock.wall_ms() // 60_000
    for minute in range(now - 29, now + 1):
        store.add(minute, {"reports": 1, "done:a": 1})
    asked: list[int] = []
    read = store.read

    def counting(minutes: list[int]) -> list[activity.MinuteActivity]:
        asked.extend(minutes)
        return read(minutes)

    monkeypatch.setattr(store, "read", counting)
    reader = ActivityReader(store)
    assert [each.minute for each in reader.read_last(30)] == list(range(now - 29, now + 1))
    assert len(asked) == 30
    asked.clear()
    store.add(now, {"done:a": 5})
    assert reader.read_last(30)[-1].types["a"].done == 6
    assert len(asked) == FINAL_MINUTES
    assert reader.read_last(2) == read([now - 1, now])


def test_counts_of_too_many_types_are_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = {f"done:t{n}": 1 for n in range(TYPES_MAX + 50)}
    counted |= {"done:big": 100, "late:timer:0": 7, "cancelled:": 2}
    monkeypatch.setattr(counts_module, "_read_metrics", lambda: counted)
    found = counts_module.ActivityCounts().take_new_counts()
    assert (
        len({name.partition(":")[2] for name in found if name.startswith("done:")}) <= TYPES_MAX + 1
    )
    assert found["done:big"] == 100
    assert sum(n for name, n in found.items() if name.startswith("done:")) == TYPES_MAX + 150
    assert found["late:timer:0"] == 7


def test_each_count_is_told_once(clock: TestClock) -> None:
    metrics.SCHEDULED.labels("told.once").inc(3)
    taken: list[dict[str, int]] = []
    threads = [
        threading.Thread(target=lambda: taken.append(activity_counts.take_new_counts()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each.get("scheduled:told.once", 0) for each in taken) == 3


def test_while_redis_is_away_counts_are_dropped_and_marks_wait(
    own_redis: Server, clock: TestClock
) -> None:
    server = TimerServer(own_redis.url, clock, 1)
    store = ActivityStore(server, "t")
    marks: list[Mark] = []
    reporter = ActivityReporter(lambda: server, "t", clock, is_node=True, find_marks=lambda: marks)
    minute = clock.wall_ms() // 60_000
    clock.advance(10)
    reporter.report()
    own_redis.stop()
    metrics.SCHEDULED.labels("lost").inc(5)
    marks += [(clock.wall_ms() + n, f"away:server_{n}") for n in range(2 * MARKS_MAX)]
    reporter.report()
    assert len(reporter._waiting) == MARKS_MAX
    own_redis.start()
    marks.clear()
    metrics.SCHEDULED.labels("kept").inc(2)
    clock.advance(300)
    wait_until(lambda: reporter.report() is None and not reporter._waiting, "a report")
    first, *_, last = store.read(range(minute, minute + 6))
    assert "lost" not in sum_types([first, last])
    assert len(first.marks) <= MARKS_MAX
    server.close()


def test_jobs_run_while_redis_hangs(tmp_path: Path, own_redis: Server, clock: TestClock) -> None:
    settings = settings_of(tmp_path, own_redis.url, "t")
    handlers, ran = Registry(), threading.Event()
    handlers.handler("t")(lambda _: ran.set())
    node = Node(settings, handlers=handlers)
    node.start()
    try:
        own_redis.freeze()
        with TimeoutCenter(settings) as center:
            center.schedule(1, NOW, biz_type="t")
            assert ran.wait(60)
    finally:
        own_redis.thaw()
        node.stop()


def test_a_client_without_redis_starts_no_thread(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "none", "t")
    before = set(threading.enumerate())
    with TimeoutCenter(settings) as center:
        center.schedule(1, timedelta(hours=1))
        assert not [t for t in {*threading.enumerate()} - before if t.name == "toc-activity"]
