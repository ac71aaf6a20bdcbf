"""Redis away, full of nothing, or wiped: late at worst, never lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.contract.library import Library
from tests.integration.world import NEAR_MS, World
from tests.scripts.rig import id_in_slot, slot_amount_of
from tests.servers import Server, ServerUnavailableError
from tests.servers.redis import start_redis_cluster
from toc.center import reminder_queue
from toc.errors import TimerUnavailable
from toc.runtime import metrics
from toc.timer.redis_keys import store_queue_key
from toc.timer.reminders import Reminder, Reminders

MINUTE = timedelta(minutes=1)


@pytest.fixture
def away(small_library: Library, own_redis: Server) -> Iterator[World]:
    """A world whose Redis is stopped."""
    own_redis.stop()
    world = World(small_library, own_redis.url, timer={"arm_retries_max": 5})
    yield world
    own_redis.start() if own_redis._process is None else None
    world.close()


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Counts steps of the background retry that found nothing to do any more."""
    idle = threading.Semaphore(0)
    run_once = reminder_queue.ReminderQueue.run_once

    def step(self: reminder_queue.ReminderQueue) -> float:
        wait_s = run_once(self)
        if not self._kept:
            idle.release()
        return min(wait_s, 0.05)

    monkeypatch.setattr(reminder_queue.ReminderQueue, "run_once", step)
    return idle


@pytest.mark.invariant("I1")
def test_schedule_does_not_fail_and_the_job_is_armed_later(
    away: World, own_redis: Server, armed: threading.Semaphore
) -> None:
    before = metrics.ARMS_FAILED._value.get()
    jobs = [away.center.schedule(n, MINUTE) for n in range(3)]
    assert [away.center.get(job_id) is not None for job_id in jobs] == [True] * 3
    assert metrics.ARMS_FAILED._value.get() == before + 3
    own_redis.start()
    assert armed.acquire(timeout=10)
    assert [away.reminder(job_id) for job_id in jobs] == [60_000] * 3
    # And the next one goes straight there again.
    assert armed.acquire(timeout=10)
    assert away.reminder(away.center.schedule(9, MINUTE)) == 60_000


def test_what_cannot_be_kept_is_counted_and_left_to_the_loader(
    away: World, own_redis: Server, armed: threading.Semaphore
) -> None:
    before = metrics.ARMS_DROPPED._value.get()
    jobs = away.center.schedule_many([(n, MINUTE) for n in range(8)])
    assert metrics.ARMS_DROPPED._value.get() == before + 3
    own_redis.start()
    assert armed.acquire(timeout=10)
    assert away.reminders() == 5
    away.loader().load_due_shards()
    assert [away.reminder(job_id) for job_id in jobs] == [60_000] * 8


@pytest.mark.usefixtures("armed")
def test_all_verbs_work_without_redis(away: World) -> None:
    center = away.center
    job_id = center.schedule(42, MINUTE)
    assert center.reschedule(job_id, 2 * MINUTE) == "rescheduled"
    assert center.find(42)[0].due_ms == away.now_ms + 120_000
    assert center.cancel(job_id) == "cancelled"
    with pytest.raises(TimerUnavailable):
        away.slots.arm("default", [Reminder(1, 1)])
    assert not away.slots.is_available


@pytest.mark.invariant("I1")
def test_a_wiped_redis_is_filled_again(world: World) -> None:
    near = [world.center.schedule(n, n * timedelta(seconds=1)) for n in range(40)]
    far = world.center.schedule(42, timedelta(milliseconds=NEAR_MS))
    loader = world.loader()
    loader.load_due_shards()
    client = world.slots.connected_client()
    for key in list(client.scan_iter(match=f"*{world.settings.namespace}*")):
        client.delete(key)  # a FLUSHALL, for the keys of this test
    assert world.reminders() == 0
    assert loader.load_due_shards() == 40
    assert [world.reminder(job_id) for job_id in near] == [n * 1000 for n in range(40)]
    assert world.reminder(far) is None  # beyond the horizon: in its time


@pytest.mark.invariant("I1")
def test_a_redis_that_starts_empty_is_filled_again(
    small_library: Library, own_redis: Server
) -> None:
    world = World(small_library, own_redis.url)
    jobs = [world.center.schedule(n, MINUTE) for n in range(8)]
    loader = world.loader()
    loader.load_due_shards()
    own_redis.kill()
    with pytest.raises(TimerUnavailable):
        loader.load_due_shards()
    own_redis.start()
    assert world.reminders() == 0
    assert loader.load_due_shards() == 8
    assert [world.reminder(job_id) for job_id in jobs] == [60_000] * 8
    world.close()


@pytest.mark.invariant("I1")
def test_flushall_between_two_servers_lives(small_library: Library, own_redis: Server) -> None:
    world = World(small_library, own_redis.url)
    jobs = [world.center.schedule(n, MINUTE) for n in range(8)]
    loader = world.loader()
    loader.load_due_shards()
    world.slots.connected_client().flushall()
    loader.load_due_shards()
    assert [world.reminder(job_id) for job_id in jobs] == [60_000] * 8
    world.close()


@pytest.mark.invariant("I1")
def test_whatever_redis_answers_the_committed_job_is_returned(small: World) -> None:
    first = small.center.schedule(1, MINUTE)
    key = store_queue_key(small.settings.namespace, "default", small.slot(first))
    client = small.slots.connected_client()
    client.delete(key)
    client.set(key, "not a sorted set")  # WRONGTYPE: no refusal that anybody expects
    again = small.center.schedule(1, MINUTE)
    assert small.center.get(again) is not None


def test_a_slot_that_cannot_be_popped_costs_the_others_nothing(small: World) -> None:
    good = small.center.schedule(1, timedelta(0))
    slot = small.slot(good)
    client = small.slots.connected_client()
    client.set(store_queue_key(small.settings.namespace, "default", slot ^ 1), "not a sorted set")
    popped = small.slots.pop("default", [(slot ^ 1, 5), (slot, 5)], 1000)
    assert [(one.slot, one.ids) for one in popped] == [(slot, [good])]


# ---- a part of Redis is away


class Away:
    """Slots that are refused, as those of a cluster's node that is down; the others are served."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slots: frozenset[int] = frozenset()
        self.calls: list[frozenset[int]] = []
        arm = Reminders.arm

        def armed(reminders: Reminders, topic: str, some: Any) -> int:
            some = [(reminders.slot_of_job(topic, one.job_id), one) for one in some]
            asked = frozenset(slot for slot, _ in some)
            self.calls.append(asked)
            out = self.slots & asked
            time_ms = arm(reminders, topic, [one for slot, one in some if slot not in out])
            if out:
                raise TimerUnavailable(OSError("node is down"), out)
            return time_ms

        monkeypatch.setattr(Reminders, "arm", armed)


@pytest.fixture
def part(
    small_library: Library, redis_server: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[World, Away]]:
    """A world whose retries are made by the test."""
    monkeypatch.setattr(reminder_queue.ReminderQueue, "start", lambda self: None)
    world = World(small_library, redis_server.url)
    yield world, Away(monkeypatch)
    world.close()


@pytest.mark.invariant("I1")
def test_a_node_that_is_down_costs_only_its_own_slots(part: tuple[World, Away]) -> None:
    world, away = part
    away.slots = frozenset({0})
    ids = world.center.schedule_many([(n, MINUTE) for n in range(40)])
    held = [job_id for job_id in ids if world.slot(job_id) == 0]
    assert 4 < len(held) < 40
    served = {job_id: 60_000 for job_id in ids if job_id not in held}
    assert {job_id: world.reminder(job_id) for job_id in served} == served
    retry = world.center._open_connections().reminder_queue
    assert retry is not None
    (kept,) = retry._kept.values()
    assert [reminder.job_id for reminder in kept] == held
    # The healthy ones are armed in line, before and after retries; the refused one is not asked.
    for n in range(50, 70):
        away.calls.clear()
        job_id = world.center.schedule(n, MINUTE)
        if world.slot(job_id) == 0:
            held.append(job_id)
            assert away.calls == []
        else:
            assert world.reminder(job_id) == 60_000
        if n == 60:
            while retry.run_once() == 0:
                pass
    # Another node fails, and comes back: the first one's at the head do not keep its from their slots.
    away.slots = frozenset({0, 1})
    late = next(
        job_id
        for job_id in (world.center.schedule(n, MINUTE) for n in range(100, 200))
        if world.slot(job_id) == 1
    )
    assert world.reminder(late) is None
    away.slots = frozenset({0})
    away.calls.clear()
    while retry.run_once() == 0:
        pass
    assert world.reminder(late) == 60_000
    assert sum(0 in call for call in away.calls) == 1  # once in a pass
    away.slots = frozenset()
    while retry.run_once() == 0:
        pass
    assert (retry._kept, retry._down) == ({}, False)
    assert [world.reminder(job_id) for job_id in held] == [60_000] * len(held)


def test_a_broken_slot_keeps_no_other_from_being_armed(part: tuple[World, Away]) -> None:
    world, _ = part
    key = store_queue_key(world.settings.namespace, "default", 0)
    world.slots.connected_client().set(key, "not a sorted set")
    ids = world.center.schedule_many([(n, MINUTE) for n in range(20)])
    retry = world.center._open_connections().reminder_queue
    assert retry is not None
    assert set(retry._kept) == {("default", 0)}
    good = [job_id for job_id in ids if world.slot(job_id) != 0]
    assert [world.reminder(job_id) for job_id in good] == [60_000] * len(good)


def test_a_cluster_says_which_slots_were_refused(small: World, tmp_path: Path) -> None:
    alone = ("--cluster-node-timeout", "60000", "--cluster-require-full-coverage", "no")
    try:
        cluster = start_redis_cluster(tmp_path / "cluster", *alone)
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    url = cluster.url.replace("redis://", "redis+cluster://")
    with cluster:
        slots = Reminders(url, "toc-test-refused", small.clock, slot_amount_of, timeout_s=0.5)
        entries = [Reminder(1, id_in_slot(slot)) for slot in range(24)]
        slots.arm("default", entries)
        client: Any = slots.connected_client()
        lost = client.get_node_from_key(store_queue_key("toc-test-refused", "default", 0)).port
        mine = {
            slot
            for slot in range(24)
            if client.get_node_from_key(store_queue_key("toc-test-refused", "default", slot)).port
            == lost
        }
        (node,) = [node for node in cluster.nodes if f":{lost}/" in f"{node.url}/"]
        node.kill()
        with pytest.raises(TimerUnavailable) as caught:
            slots.arm("default", entries)
        assert caught.value.slots == mine
        assert 0 < len(mine) < 24
        node.start()
        slots.close()
