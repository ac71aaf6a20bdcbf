"""The pollers of one type's priorities, against a model: due time first, then the aged priority."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integration.test_poller import STAY_MS, Recording
from tests.integration.world import World
from toc.domain.pauses import hold_topic_of
from toc.domain.priorities import PRIORITIES
from toc.errors import TimerUnavailable
from toc.node.hold_sources import PollerGroup
from toc.timer.poller import WAIT_S_MAX, Poller
from toc.timer.priority_poller import PriorityPoller, choose_priority
from toc.timer.reminders import Reminder

SLOTS = 4
NUMBERS = itertools.count()
WORDS = ("arm", "later", "take", "refuse", "pass time")


@given(
    st.dictionaries(st.sampled_from(PRIORITIES), st.integers(-2000, 50)),
    st.integers(1, 300),
)
def test_the_choice_is_the_due_head_with_the_earliest_aged_time(
    heads: Mapping[int, float], ageing_s: int
) -> None:
    chosen = choose_priority(heads, 0.0, ageing_s)
    due = {priority: head for priority, head in heads.items() if head <= 0}
    assert (chosen is None) == (not due)
    if chosen is not None:
        assert heads[chosen] <= 0
        for priority, head in due.items():
            # No job that waits is overtaken by one that is due later by more than the ageing allows.
            assert heads[chosen] <= head + (chosen - priority) * ageing_s


class Model:
    """The jobs of one type that wait, and the pollers under test. Times are those of the world's clock."""

    def __init__(self, world: World, ageing_s: float = 10.0) -> None:
        self.world, self.ageing_ms = world, ageing_s * 1000
        self.biz_type = f"prio.{next(NUMBERS)}"
        self.sink = Recording(room=0)
        self.pollers = {priority: self._make_poller(priority) for priority in PRIORITIES}
        self.poller = PriorityPoller(
            hold_topic_of(self.biz_type), self.pollers, world.clock, ageing_s
        )
        self.waiting: dict[int, tuple[int, int]] = {}  # by id: due ms, priority

    def _make_poller(self, priority: int) -> Poller:
        world = self.world
        poller = Poller(
            f"toc-poller-{priority}", world.slots, hold_topic_of(self.biz_type, priority), SLOTS,
            self.sink, {0: self.sink.inbox(0)}, world.settings.routing, world.clock,
            pop_max=500, stay_ms=STAY_MS, paused=lambda: False,
        )  # fmt: skip
        poller.set_slots(range(SLOTS))
        return poller

    def arm(self, priority: int, in_ms: int, slot: int = 0, *, told: bool = True) -> int:
        job_id = self.world.library.ids.make_ids([slot])[0]
        due_ms = self.world.now_ms + in_ms
        topic = hold_topic_of(self.biz_type, priority)
        self.world.slots.arm(topic, [Reminder(due_ms, job_id)])
        self.waiting[job_id] = due_ms, priority
        if told:
            self.pollers[priority].on_wakeup(slot, in_ms / 1000)
        return job_id

    def order_ms(self, job_id: int) -> float:
        due_ms, priority = self.waiting[job_id]
        return due_ms - priority * self.ageing_ms

    def take(self, room: int) -> list[int]:
        """Lets the poller run with so many permits; the ids that it popped, which are claimed."""
        ids = self._pop(room)
        for job_id in ids:
            _, priority = self.waiting.pop(job_id)
            self.world.slots.ack(hold_topic_of(self.biz_type, priority), [job_id])
        return ids

    def refuse(self, room: int) -> list[int]:
        """As `take`, but the claim stage returns the ids: their limit has no start left. No message comes."""
        self.sink.answers = False
        ids = self._pop(room)
        for job_id in ids:
            due_ms, priority = self.waiting[job_id]
            topic = hold_topic_of(self.biz_type, priority)
            self.world.slots.put_back(topic, [Reminder(due_ms, job_id)])
        for _, batch in self.sink.offers:
            if batch.answer is not None and not batch.answer.is_answered:
                batch.answer.set_answer(0)
        self.sink.answers = True
        return ids

    def _pop(self, room: int) -> list[int]:
        """Steps until ids were popped or nothing is due. Checks them against the rules."""
        before = len(self.sink.ids)
        self.sink.room, self.sink.reserved = room, 0
        for _ in range(200):
            wait_s = self.poller.run_once()
            if wait_s or len(self.sink.ids) > before:
                break
        else:
            raise AssertionError("it goes round and round")
        self.sink.room = 0
        ids = self.sink.ids[before:]
        due = [
            job_id for job_id, (due_ms, _) in self.waiting.items() if due_ms <= self.world.now_ms
        ]
        assert set(ids) <= set(due), "nothing is taken before it is due"
        assert bool(ids) == bool(due)
        if ids:
            assert len({self.waiting[job_id][1] for job_id in ids}) == 1
            assert min(map(self.order_ms, ids)) == min(map(self.order_ms, due))
        return ids


def run_random_steps(model: Model, rng: random.Random, steps: int) -> None:
    for _ in range(steps):
        word = rng.choice(WORDS)
        if word in ("arm", "later"):
            in_ms = rng.randrange(0, 60_000) if word == "later" else -rng.randrange(0, 90_000)
            model.arm(rng.choice([0, 0, 1, 5, 8, 9]), in_ms, rng.randrange(SLOTS))
        elif word == "pass time":
            model.world.clock.advance(rng.randrange(0, 20_000) / 1000)
        elif word == "refuse":
            model.refuse(rng.choice([1, 3]))
        else:
            model.take(rng.choice([1, 1, 1, 4]))
    model.world.clock.advance(60.0)
    while model.waiting:
        assert model.take(1)


@pytest.mark.parametrize("seed", range(20))
def test_random_steps_follow_the_rules(small: World, seed: int) -> None:
    small.clock.advance(1000)
    run_random_steps(Model(small), random.Random(seed), 60)  # noqa: S311 - a seed of a test


def test_a_job_waits_no_longer_than_the_ageing_allows(small: World) -> None:
    """More important jobs than can be taken come for ever; the other one is taken all the same."""
    small.clock.advance(1000)
    model = Model(small)
    low = model.arm(0, 0)
    overtaken_by = []
    for _ in range(200):
        small.clock.advance(1)
        model.arm(9, 0)
        model.arm(9, 0)
        (taken,) = model.take(1)
        if taken == low:
            break
        overtaken_by.append(taken)
    # One of two is taken each second: those that were due in the first 9 x 10 s go before.
    assert len(overtaken_by) == pytest.approx(180, abs=2)
    assert low not in model.waiting


def test_heads_that_are_not_known_yet_are_read_first(small: World) -> None:
    model = Model(small)
    first = model.arm(0, -600_000, told=False)
    small.clock.advance(1)
    model.arm(9, 0)
    assert model.take(1) == [first]


def test_it_waits_for_the_claim_before_it_pops_on(small: World) -> None:
    small.clock.advance(1000)
    model = Model(small)
    high, low = model.arm(9, 0), model.arm(0, 0)
    model.sink.answers = False
    assert model._pop(1) == [high]
    model.sink.room = 1
    assert model.poller.run_once() == WAIT_S_MAX
    assert model.sink.ids == [high]
    woken: list[int] = []
    model.poller.on_wake = lambda: woken.append(1)
    (_, batch), *_ = model.sink.offers
    assert batch.answer is not None
    batch.answer.set_answer(1)
    assert woken
    assert model.poller.take_wake()
    del model.waiting[high]
    assert model._pop(1) == [low]


def test_a_priority_whose_redis_fails_does_not_stop_the_others(
    small: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.clock.advance(1000)
    model = Model(small)
    while model.poller.run_once() == 0:  # the heads are known from here on
        pass
    high, low = model.arm(9, 0), model.arm(0, 0)
    pop, broken = small.slots.pop, hold_topic_of(model.biz_type, 9)

    def fail_for_one(topic: str, *args: object) -> object:
        if topic == broken:
            raise TimerUnavailable("a node of the cluster is down")
        return pop(topic, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(small.slots, "pop", fail_for_one)
    model.sink.room, model.sink.reserved = 1, 0
    with pytest.raises(TimerUnavailable):
        model.poller.run_once()
    assert model.poller.run_once() == 0
    assert model.sink.ids == [low]
    monkeypatch.undo()
    small.clock.advance(5)
    del model.waiting[low]
    assert model.take(1) == [high]


def make_group(world: World, sink: Recording) -> tuple[PollerGroup, dict[str, list[int]]]:
    """The pollers of two types, "high" with a lead of 90 s, and how to arm their jobs: by type, ids."""
    names = {name: f"{name}.{next(NUMBERS)}" for name in ("high", "low")}
    topics = {name: hold_topic_of(names[name]) for name in names}
    group = PollerGroup(
        "toc-hold-pollers-test", world.clock, lambda topic: 90.0 * (topic == topics["high"])
    )
    ids: dict[str, list[int]] = {}
    pollers = []
    for name, topic in topics.items():
        ids[name] = [world.library.ids.make_ids([0])[0] for _ in range(20)]
        poller = Poller(
            f"toc-poller-{name}", world.slots, topic, SLOTS, sink, {0: sink.inbox(0)},
            world.settings.routing, world.clock,
            pop_max=500, stay_ms=STAY_MS, paused=lambda: False,
        )  # fmt: skip
        poller.set_slots(range(SLOTS))
        while poller.run_once() == 0:  # its slots are known to be empty
            pass
        pollers.append(poller)
    for name, poller in zip(topics, pollers, strict=True):
        in_ms = -1000 if name == "high" else -2000  # the other type waits for longer
        world.slots.arm(topics[name], [Reminder(world.now_ms + in_ms, each) for each in ids[name]])
        poller.on_wakeup(0, in_ms / 1000)
    group.set_members(pollers)
    return group, ids


def test_the_type_of_a_higher_priority_gets_the_permits_first(small: World) -> None:
    small.clock.advance(1000)
    sink = Recording(room=4)
    group, ids = make_group(small, sink)
    group.run_once()
    assert set(sink.ids) < set(ids["high"])
    assert len(sink.ids) == 4


def test_a_type_that_could_go_on_keeps_no_other_from_asking(small: World) -> None:
    small.clock.advance(1000)
    sink = Recording()
    group, ids = make_group(small, sink)
    group.run_once()
    group.run_once()
    assert [set(batch.job_ids) < set(ids[name]) for name, (_, batch) in zip(
        ("high", "low"), sink.offers, strict=True
    )] == [True, True]  # fmt: skip


def test_a_type_that_waits_for_longer_than_the_lead_goes_first(small: World) -> None:
    small.clock.advance(1000)
    sink = Recording(room=4)
    group, ids = make_group(small, sink)
    low = next(each for each in group._due_s if "low" in each.topic)
    assert isinstance(low, Poller)
    low.on_wakeup(0, -91.1)
    low.update_heads()
    group.run_once()
    assert set(sink.ids) < set(ids["low"])
