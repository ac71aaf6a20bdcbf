"""The poller: pops what is due, as far as there is room, and sleeps until there is more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest

from tests.integration.world import World
from toc.domain.ids import routing_bits_of
from toc.domain.routing import slot_of_hash
from toc.runtime.job_batch import JobBatch
from toc.timer import redis_keys
from toc.timer.head_watchers import NextDueWatcher, WakeupListener
from toc.timer.poller import GUESS_MIN, NO_PERMITS_S, PAUSED_S, WAIT_S_MAX, Poller
from toc.timer.reminders import Reminder

STAY_MS = 30_000
SLOW_S = 1.0


class Recording:
    """So many permits, and claim stages that keep what they were given. `away`: databases without permits.

    `answers`: False keeps the batches waiting for their claim.
    """

    def __init__(self, room: int = 10_000) -> None:
        self.room = room
        self.reserved = 0
        self.asked: list[int] = []
        self.offers: list[tuple[int, JobBatch]] = []
        self.away: set[int] = set()
        self.answers = True

    def take_permits(self, database: int, wanted: int) -> int:
        return self.take_permits_in_each_database([database], wanted)[0]

    def take_permits_in_each_database(
        self, databases: Collection[int], wanted: int
    ) -> tuple[int, frozenset[int]]:
        self.asked.append(wanted)
        open_ = frozenset(databases) - self.away
        taken = max(0, min(wanted, self.room - self.reserved))
        self.reserved += taken * len(open_)
        return taken, open_

    def return_permits(self, database: int, permits: int) -> None:
        self.reserved -= permits

    def inbox(self, database: int) -> RecordingInbox:
        return RecordingInbox(self, database)

    @property
    def ids(self) -> list[int]:
        return [job_id for _, batch in self.offers for job_id in batch.job_ids]


class RecordingInbox:
    """The claim stage of one database: every job of a batch is claimed."""

    def __init__(self, sink: Recording, database: int) -> None:
        self._sink, self._database = sink, database

    def enqueue(self, batch: JobBatch, /) -> None:
        sink = self._sink
        assert batch.permits in (0, len(batch.job_ids))
        assert batch.permits <= sink.reserved
        sink.offers.append((self._database, batch))
        sink.reserved -= batch.permits
        sink.room -= batch.permits
        assert batch.answer is not None
        if sink.answers:
            batch.answer.set_answer(batch.permits)


@pytest.fixture
def sink() -> Recording:
    return Recording()


def poller(world: World, sink: Recording, **changes: object) -> Poller:
    made = Poller(
        "toc-poller-test",
        world.slots,
        "default",
        4,
        sink,
        {0: sink.inbox(0)},
        world.settings.routing,
        world.clock,
        **{
            "pop_max": 500, "stay_ms": STAY_MS, "paused": lambda: False, **changes,
        },  # type: ignore[arg-type]
    )  # fmt: skip
    made.set_slots(range(4))
    return made


def look(world: World, poll: Poller) -> None:
    """What a node does once a period: all slots' heads are looked at, and the poller is told."""
    heads = NextDueWatcher(world.slots, {"default": poll.on_head_seen}, period_s=SLOW_S)
    heads.set_slots({"default": range(4)})
    assert heads.run_once() == SLOW_S


def arm(world: World, slot: int, *in_ms: int) -> list[int]:
    """Arms jobs of a slot; their ids."""
    ids = [world.library.ids.make_ids([slot])[0] for _ in in_ms]
    entries = [Reminder(world.now_ms + ms, job_id) for ms, job_id in zip(in_ms, ids, strict=True)]
    world.slots.arm("default", entries)
    return ids


def test_what_is_due_is_offered_with_its_shard_and_time(small: World, sink: Recording) -> None:
    ids = [*arm(small, 1, -5), *arm(small, 3, 0)]
    later = arm(small, 2, 700)
    poll = poller(small, sink)
    found_s = small.clock.monotonic_s()
    assert poll.run_once() == 0
    ((database, batch),) = sink.offers
    assert (database, batch.topic, batch.popped, batch.permits) == (0, "default", True, 2)
    assert batch.ids == {1: [ids[0]], 3: [ids[1]]}
    assert batch.time_ms == small.now_ms
    assert batch.found_s == found_s
    assert sink.reserved == 0
    # Then it sleeps until the next one is due.
    assert poll.run_once() == pytest.approx(0.7)
    small.clock.advance(0.699)
    assert poll.run_once() == pytest.approx(0.001)
    small.clock.advance(0.001)
    poll.run_once()
    assert sink.ids[2:] == later


def test_an_empty_timer_is_left_alone_until_a_look_shows_something(
    small: World, sink: Recording
) -> None:
    poll = poller(small, sink)
    poll.run_once()
    assert poll.run_once() == WAIT_S_MAX
    lost = arm(small, 0, 0)  # its wake-up never came
    assert poll.run_once() == WAIT_S_MAX
    assert sink.ids == []
    look(small, poll)
    assert poll.run_once() == 0
    assert sink.ids == lost


def test_a_look_reaches_every_slot_however_little_room_there_is(
    small: World, sink: Recording
) -> None:
    poll = poller(small, sink)
    poll.run_once()
    lost = [arm(small, slot, 0)[0] for slot in range(4)]  # no wake-up came
    sink.room = 0
    look(small, poll)
    for _ in lost:
        sink.room = 1
        poll.run_once()
    assert sorted(sink.ids) == sorted(lost)


def test_a_wake_up_is_taken_in(small: World, sink: Recording) -> None:
    poll = poller(small, sink)
    poll.run_once()
    ids = arm(small, 2, 0)
    poll.on_wakeup(2, 0.0)
    poll.on_wakeup(77, 0.0)  # of a slot that it does not own
    assert poll.run_once() == 0
    assert sink.ids == ids
    poll.on_wakeup(1, 0.25)
    poll.on_wakeup(1, 0.5)  # a later one does not hide the earlier
    assert poll.run_once() == pytest.approx(0.25)


def test_without_room_nothing_is_popped(small: World, sink: Recording) -> None:
    ids = arm(small, 0, -1, 0)
    sink.room = 0
    poll = poller(small, sink)
    assert poll.run_once() == NO_PERMITS_S
    assert (sink.offers, small.slots.read_slot_depths("default", [0])) == (
        [], [(0, 2, 0, small.now_ms - 1)],
    )  # fmt: skip
    sink.room = 1
    assert poll.run_once() == 0
    assert sink.ids == ids[:1]
    assert poll.run_once() == NO_PERMITS_S
    sink.room = 5
    poll.run_once()
    assert sink.ids == ids


@pytest.mark.invariant("I8")
def test_never_more_than_there_is_room_for(small: World, sink: Recording) -> None:
    for slot in range(4):
        arm(small, slot, *range(-100, 0))
    sink.room = 37
    poll = poller(small, sink)
    for _ in range(20):
        poll.run_once()
    assert len(sink.ids) == 37
    assert sum(out for _, _, out, _ in small.slots.read_slot_depths("default", range(4))) == 37
    assert sink.reserved == 0


def test_what_room_there_is_goes_to_two_slots(small: World, sink: Recording) -> None:
    """Few large batches are cheaper than many small ones; one slot alone would have the others wait."""
    poll = poller(small, sink)
    for slot in range(4):
        arm(small, slot, *range(-100, 0))
    while max(poll._pop_sizes.values(), default=0) < 40:  # more than there will be room for
        poll.run_once()
    sink.offers, sink.room = [], 40
    poll.run_once()
    shares = Counter(slot_of_hash(routing_bits_of(job_id), 4) for job_id in sink.ids)
    assert sorted(shares.values()) == [20, 20]


def test_with_a_backlog_few_slots_are_popped_deeply_from_the_first_pop_on(
    small: World, sink: Recording
) -> None:
    for slot in range(4):
        arm(small, slot, *range(-100, 0))
    poll = poller(small, sink)
    sink.room = 2 * GUESS_MIN + 2
    poll.run_once()
    shares = Counter(slot_of_hash(routing_bits_of(job_id), 4) for job_id in sink.ids)
    assert sorted(shares.values()) == [GUESS_MIN + 1, GUESS_MIN + 1]


def test_the_oldest_slot_comes_first(small: World, sink: Recording) -> None:
    poll = poller(small, sink)
    poll.run_once()
    heads = {0: -10, 1: -40, 2: -20, 3: -30}
    ids = {slot: arm(small, slot, in_ms)[0] for slot, in_ms in heads.items()}
    for slot, in_ms in heads.items():
        poll.on_wakeup(slot, in_ms / 1000)
    sink.room = 1
    order = []
    for _ in range(4):
        sink.room = 1
        poll.run_once()
        order.append(sink.ids[-1])
    assert order == [ids[1], ids[3], ids[2], ids[0]]


def test_a_busy_slot_is_asked_for_more_each_time(small: World, sink: Recording) -> None:
    arm(small, 0, *range(-500, 0))
    poll = poller(small, sink, pop_max=100)
    sizes = []
    for _ in range(5):
        before = len(sink.ids)
        poll.run_once()
        sizes.append(len(sink.ids) - before)
    assert sizes == [GUESS_MIN, 2 * GUESS_MIN, 4 * GUESS_MIN, 8 * GUESS_MIN, 16 * GUESS_MIN]


def test_a_paused_poller_leaves_firing_to_the_scanner(small: World, sink: Recording) -> None:
    arm(small, 0, 0)
    paused = [True]
    poll = poller(small, sink, paused=lambda: paused[0])
    assert poll.run_once() == PAUSED_S
    assert (sink.asked, sink.offers) == ([], [])
    paused[0] = False
    poll.run_once()
    assert len(sink.ids) == 1


def test_a_stay_that_is_over_is_offered_again(small: World, sink: Recording) -> None:
    ids = arm(small, 0, 0)
    poll = poller(small, sink)
    poll.run_once()
    assert poll.run_once() == pytest.approx(STAY_MS / 1000)
    small.clock.advance(STAY_MS / 1000)
    poll.run_once()
    assert sink.ids == ids * 2


def test_one_database_away_does_not_take_the_others_ids(small: World, sink: Recording) -> None:
    routing = type(small.settings.routing)(4, 2)
    near, far = arm(small, 0, 0), arm(small, 3, 0)
    poll = poller(small, sink)
    poll._routing, poll._inboxes = routing, {0: sink.inbox(0), 1: sink.inbox(1)}
    sink.away = {0}
    poll.run_once()
    assert {database: (list(batch.ids), batch.permits) for database, batch in sink.offers} == {
        0: ([0], 0), 1: ([3], 1),
    }  # fmt: skip
    assert sorted(sink.ids) == sorted(near + far)
    assert sink.reserved == 0


def test_while_a_batch_waits_for_its_claim_the_next_one_gathers(
    small: World, sink: Recording
) -> None:
    first = arm(small, 0, 0)
    poll = poller(small, sink)
    sink.answers = False
    poll.run_once()
    more = arm(small, 0, 0, 0, 0)
    assert len(sink.offers) == 1
    offered = len(sink.ids)
    poll.on_wakeup(0, 0.0)
    assert poll.run_once() == WAIT_S_MAX
    assert len(sink.ids) == offered
    for _, batch in sink.offers:
        assert batch.answer is not None
        batch.answer.set_answer(1)
    assert poll._wake.is_set()
    poll.run_once()
    assert sorted(sink.ids) == sorted(first + more)


# ---- looks at the heads of slots


def seen(world: World, slots: range = range(4)) -> dict[int, float]:
    found: dict[int, float] = {}
    heads = NextDueWatcher(world.slots, {"default": found.__setitem__}, period_s=SLOW_S)
    heads.set_slots({"default": slots})
    heads.run_once()
    return found


def test_a_look_tells_of_what_is_due_before_the_next_one(small: World) -> None:
    arm(small, 0, -1500, 700)
    arm(small, 1, 1000)
    arm(small, 3, round(1000 * (2 * SLOW_S + 1)) + 1)  # the next look is early enough
    assert seen(small) == {0: -1.5, 1: 1.0}
    assert seen(small, range(1, 4)) == {1: 1.0}


def test_a_look_sees_what_comes_back(small: World) -> None:
    arm(small, 2, 0)
    small.slots.pop("default", [(2, 1)], 2500)
    assert seen(small) == {2: 2.5}
    arm(small, 2, 100)
    assert seen(small) == {2: 0.1}


def test_a_slot_whose_key_is_broken_is_told_of_alone(small: World) -> None:
    arm(small, 0, 0)
    arm(small, 1, 0)
    client = small.slots.connected_client()
    client.set(redis_keys.store_queue_key(small.settings.namespace, "default", 1), "broken")
    assert seen(small) == {0: 0.0}
    assert not small.slots.is_available
    assert seen(small, range(1, 2)) == {}
    assert not small.slots.is_available
    client.delete(redis_keys.store_queue_key(small.settings.namespace, "default", 1))
    assert seen(small) == {0: 0.0}
    assert small.slots.is_available


@pytest.mark.usefixtures("sink")
def test_a_new_head_is_heard_through_redis(small: World) -> None:
    heard: list[tuple[int, float]] = []
    wakeup = WakeupListener(
        small.slots,
        small.settings.namespace,
        {"default": lambda slot, in_s: heard.append((slot, in_s))},
    )
    wakeup.run_once()  # subscribes
    (job_id,) = arm(small, 2, 1500)
    for _ in range(20):
        wakeup.run_once()
        if heard:
            break
    assert heard == [(routing_bits_of(job_id), 1.5)]
    assert wakeup.stop()


def test_a_home_that_is_broken_costs_a_look_nothing(small: World, sink: Recording) -> None:
    """Of reminders in a wrong slot: where they belong, the key is none of toc's."""
    (well,) = arm(small, 1, 0)
    stranger = small.library.ids.make_ids([2])[0]
    client = small.slots.connected_client()
    client.zadd(
        redis_keys.store_queue_key(small.settings.namespace, "default", 1),
        {str(stranger): small.now_ms},
    )
    client.set(redis_keys.store_queue_key(small.settings.namespace, "default", 2), "broken")
    poll = poller(small, sink)
    poll.set_slots([1])
    poll.run_once()
    assert sink.ids == [well]
