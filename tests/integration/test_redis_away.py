"""Redis away, full of nothing, or wiped: late at worst, never lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.contract.library import Library
from tests.integration.world import NEAR_MS, World
from tests.servers import Server
from toc.center import arms
from toc.errors import TimerUnavailable
from toc.runtime import metrics
from toc.timer.keys import store_key
from toc.timer.slots import Entry

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
    run_once = arms.Arms.run_once

    def step(self: arms.Arms) -> float:
        wait_s = run_once(self)
        if not self._kept:
            idle.release()
        return min(wait_s, 0.05)

    monkeypatch.setattr(arms.Arms, "run_once", step)
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
    away.loader().step()
    assert [away.reminder(job_id) for job_id in jobs] == [60_000] * 8


@pytest.mark.usefixtures("armed")
def test_all_verbs_work_without_redis(away: World) -> None:
    center = away.center
    job_id = center.schedule(42, MINUTE)
    assert center.reschedule(job_id, 2 * MINUTE) == "rescheduled"
    assert center.find(42)[0].due_ms == away.now_ms + 120_000
    assert center.cancel(job_id) == "cancelled"
    with pytest.raises(TimerUnavailable):
        away.slots.arm("default", {0: [Entry(1, 1)]})
    assert not away.slots.available


@pytest.mark.invariant("I1")
def test_a_wiped_redis_is_filled_again(world: World) -> None:
    near = [world.center.schedule(n, n * timedelta(seconds=1)) for n in range(40)]
    far = world.center.schedule(42, timedelta(milliseconds=NEAR_MS))
    loader = world.loader()
    loader.step()
    client = world.slots.client()
    for key in list(client.scan_iter(match=f"*{world.settings.namespace}*")):
        client.delete(key)  # a FLUSHALL, for the keys of this test
    assert world.reminders() == 0
    assert loader.step() == 40
    assert [world.reminder(job_id) for job_id in near] == [n * 1000 for n in range(40)]
    assert world.reminder(far) is None  # beyond the horizon: in its time


@pytest.mark.invariant("I1")
def test_a_redis_that_starts_empty_is_filled_again(
    small_library: Library, own_redis: Server
) -> None:
    world = World(small_library, own_redis.url)
    jobs = [world.center.schedule(n, MINUTE) for n in range(8)]
    loader = world.loader()
    loader.step()
    own_redis.kill()
    with pytest.raises(TimerUnavailable):
        loader.step()
    own_redis.start()
    assert world.reminders() == 0
    assert loader.step() == 8
    assert [world.reminder(job_id) for job_id in jobs] == [60_000] * 8
    world.close()


@pytest.mark.invariant("I1")
def test_flushall_between_two_servers_lives(small_library: Library, own_redis: Server) -> None:
    world = World(small_library, own_redis.url)
    jobs = [world.center.schedule(n, MINUTE) for n in range(8)]
    loader = world.loader()
    loader.step()
    world.slots.client().flushall()
    loader.step()
    assert [world.reminder(job_id) for job_id in jobs] == [60_000] * 8
    world.close()


@pytest.mark.invariant("I1")
def test_whatever_redis_answers_the_committed_job_is_returned(small: World) -> None:
    first = small.center.schedule(1, MINUTE)
    key = store_key(small.settings.namespace, "default", small.slot(first))
    client = small.slots.client()
    client.delete(key)
    client.set(key, "not a sorted set")  # WRONGTYPE: no refusal that anybody expects
    again = small.center.schedule(1, MINUTE)
    assert small.center.get(again) is not None


def test_a_slot_that_cannot_be_popped_costs_the_others_nothing(small: World) -> None:
    good = small.center.schedule(1, timedelta(0))
    slot = small.slot(good)
    client = small.slots.client()
    client.set(store_key(small.settings.namespace, "default", slot ^ 1), "not a sorted set")
    popped = small.slots.pop("default", [(slot ^ 1, 5), (slot, 5)], 1000)
    assert [(one.slot, one.ids) for one in popped] == [(slot, [good])]
