"""How scripts reach a server: unknown there, many in one pipeline, and a server that is full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from tests.scripts.rig import NOW, SLOT, TOPIC, Rig, State, id_in_slot, slot_amount_of
from tests.servers import Server, ServerUnavailableError, start_redis
from toc.errors import TimerUnavailable
from toc.testing import TestClock
from toc.timer import redis_keys
from toc.timer.reminders import PAIRS_MAX, Reminder, Reminders

STAY = 30_000


@pytest.mark.parametrize("calls", [1, 40])
def test_a_server_that_forgot_the_scripts_is_given_them_again(rig: Rig, calls: int) -> None:
    clock = TestClock()
    slots = rig.slots(clock)
    now_ms = clock.wall_ms()
    ids = {slot: [id_in_slot(slot), id_in_slot(slot, 1)] for slot in range(calls)}
    slots.arm(TOPIC, [Reminder(now_ms, job_id) for some in ids.values() for job_id in some])
    rig.client.script_flush()
    popped = slots.pop(TOPIC, [(slot, 10) for slot in range(calls)], STAY)
    assert [pop.ids for pop in popped] == list(ids.values())
    assert {pop.time_ms for pop in popped} == {now_ms}
    rig.client.script_flush()
    slots.ack(TOPIC, [first for first, _ in ids.values()])
    back = [Reminder(now_ms + 5, second) for _, second in ids.values()]
    rig.client.script_flush()
    slots.put_back(TOPIC, back)
    assert slots.read_slot_depths(TOPIC, range(calls)) == [
        (slot, 1, 0, now_ms + 5) for slot in range(calls)
    ]
    slots.close()


def test_more_entries_than_one_call_takes(rig: Rig) -> None:
    clock = TestClock()
    slots = rig.slots(clock)
    now_ms = clock.wall_ms()
    count = 2 * PAIRS_MAX + 1
    ids = [id_in_slot(SLOT, n) for n in range(count)]
    reminders = [Reminder(now_ms + n, job_id) for n, job_id in enumerate(ids)]
    slots.arm(TOPIC, [*reminders, Reminder(5, id_in_slot(3))])
    assert rig.client.zcard(rig.store) == count
    assert slots.read_slot_depths(TOPIC, [SLOT, 3]) == [(SLOT, count, 0, now_ms), (3, 1, 0, 5)]
    assert slots.find_reminder(TOPIC, SLOT, ids[-1]) == (now_ms + count - 1, None)
    slots.ack(TOPIC, ids)
    assert rig.client.zcard(rig.store) == 0
    slots.close()


def test_all_keys_of_a_slot_lie_on_one_node(rig: Rig) -> None:
    for slot in range(64):
        of_slot = {
            key_slot(spell(rig.namespace, TOPIC, slot).encode())
            for spell in (
                redis_keys.store_queue_key,
                redis_keys.prepare_queue_key,
                redis_keys.marks_key,
            )
        }
        assert len(of_slot) == 1


@pytest.fixture(params=["7", "8", "6.2"])
def full(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A Redis that has one due job, one that is out, a mark, and no memory left."""
    try:
        server: Server = start_redis(tmp_path_factory.mktemp("full"), request.param)
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with server:
        rig = Rig(server.url, server.version, is_cluster=False)
        rig.set(State({1: NOW}, {2: NOW + 1}, {3: "seen"}))
        rig.client.config_set("maxmemory-policy", "noeviction")
        rig.client.config_set("maxmemory", 1)
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            rig.client.set("x", "y")
        yield rig
        rig.client.config_set("maxmemory", 0)
        rig.close()


def test_a_full_server_still_gives_and_forgets(full: Rig) -> None:
    assert full.call("pop", NOW, 10, STAY)[2:] == [b"1"]
    assert full.call("put_back", NOW, full.channel, SLOT, NOW + 5, 1)[1] == 1
    assert full.state() == State({1: NOW + 5}, {2: NOW + 1}, {3: "seen"})
    assert full.call("ack", 1, 2) == 2
    assert full.state() == State(marks={3: "seen"})


def test_a_full_server_ends_a_stay(full: Rig) -> None:
    # Also 6.2, which knows no flags: a script that has freed something may move it.
    assert full.call("pop", NOW + 1, 10, STAY)[2:] == [b"1", b"2"]


def test_a_full_server_takes_nothing_new(full: Rig) -> None:
    before = full.state()
    slots = Reminders(full.url, full.namespace, TestClock(), slot_amount_of)
    with pytest.raises(TimerUnavailable):
        slots.arm(TOPIC, [Reminder(NOW, id_in_slot(SLOT))])
    assert (slots.takes_reminders, slots.is_available) == (False, True)
    with pytest.raises(TimerUnavailable):
        slots.load_page(TOPIC, SLOT, 3, "seen", "moved", [Reminder(NOW, 9)])
    with pytest.raises(TimerUnavailable):
        slots.load_page(TOPIC, SLOT, 3, "seen", "moved", [])
    with pytest.raises(TimerUnavailable):
        slots.write_start_mark(TOPIC, SLOT, 3, "moved")
    assert full.state() == before
    full.client.config_set("maxmemory", 0)
    slots.arm(TOPIC, [Reminder(NOW, id_in_slot(SLOT))])
    assert (slots.takes_reminders, slots.is_available) == (True, True)
    slots.close()
    slots.close()


def until_full(call: Callable[[int], Any]) -> int:
    """Calls it with 0, 1, ... until it is refused; answers how often it was not."""
    for n in range(300):
        try:
            call(n)
        except TimerUnavailable:
            return n
    raise AssertionError("it never was full")


def test_a_server_fills_up_and_is_emptied_again(full: Rig) -> None:
    clock = TestClock()
    now_ms = clock.wall_ms()
    slots = Reminders(full.url, full.namespace, clock, slot_amount_of)
    pages = {
        slot: [Reminder(now_ms, id_in_slot(slot, n)) for n in range(200)]
        for slot in range(100, 400)
    }
    full.client.config_set("maxmemory", full.client.info("memory")["used_memory"] + 400_000)
    amount = until_full(lambda n: slots.arm(TOPIC, pages[100 + n]))
    taken = range(100, 100 + amount)
    assert taken
    assert (slots.takes_reminders, slots.is_available) == (False, True)
    # What it has taken it has whole; it is given out, put back and forgotten.
    depths = slots.read_slot_depths(TOPIC, pages)
    assert depths == [
        (s, 200 if s in taken else 0, 0, now_ms if s in taken else None) for s in pages
    ]
    for _ in range(2):
        popped = slots.pop(TOPIC, [(slot, 200) for slot in taken], STAY)
        assert [(p.slot, sorted(p.ids)) for p in popped] == [
            (slot, [job_id for _, job_id in pages[slot]]) for slot in taken
        ]
        slots.put_back(TOPIC, [one for slot in taken for one in pages[slot]])
    assert (slots.takes_reminders, slots.is_available) == (False, True)
    slots.ack(TOPIC, [job_id for slot in taken for _, job_id in pages[slot]])
    slots.arm(TOPIC, [one for slot in taken[: len(taken) // 2] for one in pages[slot]])
    assert (slots.takes_reminders, slots.is_available) == (True, True)
    slots.close()


def test_a_page_is_refused_whole_where_memory_ends(full: Rig) -> None:
    slots = Reminders(full.url, full.namespace, TestClock(), slot_amount_of)
    full.client.config_set("maxmemory", full.client.info("memory")["used_memory"] + 400_000)
    slots.write_start_mark(TOPIC, SLOT, 3, "page 0")

    def load(page: int) -> None:
        rows = [Reminder(NOW + page, 1000 + page * 100 + n) for n in range(100)]
        assert slots.load_page(TOPIC, SLOT, 3, f"page {page}", f"page {page + 1}", rows)

    done = until_full(load)
    assert done
    state = full.state()
    assert len(state.store) == 1 + 100 * done
    assert state.marks == {3: f"page {done}"}
    assert (slots.takes_reminders, slots.is_available) == (False, True)
    slots.close()


@pytest.fixture(params=["7", "8", "6.2"])
def lonely(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rig]:
    """A Redis that refuses to write because it has no replica."""
    try:
        server: Server = start_redis(tmp_path_factory.mktemp("lonely"), request.param)
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with server:
        rig = Rig(server.url, server.version, is_cluster=False)
        rig.client.config_set("min-replicas-to-write", 1)
        yield rig
        rig.client.config_set("min-replicas-to-write", 0)
        rig.close()


@pytest.mark.parametrize("amount", [1, 2])
def test_a_server_that_refuses_to_write_is_unavailable(lonely: Rig, amount: int) -> None:
    slots = Reminders(lonely.url, lonely.namespace, TestClock(), slot_amount_of)
    with pytest.raises(TimerUnavailable, match="NOREPLICAS"):
        slots.arm(TOPIC, [Reminder(NOW, id_in_slot(slot)) for slot in range(amount)])
    with pytest.raises(TimerUnavailable, match="NOREPLICAS"):
        slots.write_start_mark(TOPIC, SLOT, 3, "mark")
    assert not slots.is_available
    slots.read_marks(TOPIC, [SLOT])  # that it still answers does not help those who must write
    assert not slots.is_available
    assert slots.takes_reminders  # it is not full
    if lonely.knows_flags:  # who only waits for what is due must notice it too
        with pytest.raises(TimerUnavailable, match="NOREPLICAS"):
            slots.read_heads(TOPIC, range(amount), 1.0)
    lonely.client.config_set("min-replicas-to-write", 0)
    slots.read_heads(TOPIC, range(amount), 1.0)
    slots.write_start_mark(TOPIC, SLOT, 3, "mark")
    assert slots.is_available
    slots.close()


def test_a_fault_in_a_call_is_not_taken_for_an_absent_server(rig: Rig) -> None:
    slots = rig.slots(TestClock())
    rig.client.set(rig.store, "not a sorted set")
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE"):
        slots.arm(TOPIC, [Reminder(NOW, id_in_slot(SLOT))])
    slots.close()
