"""The scripts of limits against a model of their table of rules, on a real Redis, at a set time.

| a call | in the model |
| --- | --- |
| take of n | admits the first of them, as far as starts (`burst - used`) and places are free |
| time passes | `used` falls at the rate; a holder that nobody names again ends after its hold |
| release | the holder ends |
| release, starts unused | `used` is so many starts less, without the time since their take |
| hold | the holder lasts for the time given from now, or longer if it did before |
| a wipe | every bucket is empty; no type with a concurrency starts anything for the settle time |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.deep import ALL
from tests.limits.conftest import SETTLE_MS, LimitRig, MakeLimitRig
from toc.domain.limit_terms import LimitTerms, make_limit_terms
from toc.timer.limit_store import VALUES_MAX, PartitionHold, PartitionRelease, PartitionWish
from toc.timer.lua_scripts import ScriptCall

TYPE = "order.close"
HOLD_MS = 5000
PARTITIONS = ("a", "b")


@dataclass
class Take:
    """`count`: the starts of it that have not come back."""

    at_ms: int
    partition: str
    count: int


@dataclass
class Model:
    """What the limits of one type allow, by the table above."""

    terms: LimitTerms
    since_ms: int | None = None
    used_ms: dict[str, tuple[float, int]] = field(default_factory=dict)
    holders: dict[str, dict[str, int]] = field(default_factory=dict)
    starts: list[Take] = field(default_factory=list)
    buckets: set[str] = field(default_factory=set)  # of these partitions: Redis has a key

    def _since(self, now: int) -> int:
        if self.since_ms is None:
            self.since_ms = now
        return self.since_ms

    def _used(self, partition: str, now: int) -> float:
        used, at = self.used_ms.get(partition, (self.terms.burst_ms, self._since(now)))
        return max(0.0, used - (now - at))

    def held(self, partition: str, now: int) -> dict[str, int]:
        alive = {n: end for n, end in self.holders.get(partition, {}).items() if end > now}
        self.holders[partition] = alive
        return alive

    def take(self, partition: str, names: list[str], now: int) -> int:
        room, terms = len(names), self.terms
        if terms.concurrency is not None:
            if now < self._since(now) + SETTLE_MS:
                return 0
            room = min(room, max(0, terms.concurrency - len(self.held(partition, now))))
        used = self._used(partition, now)
        if terms.interval_ms is not None:
            room = min(room, int((terms.burst_ms - used) / terms.interval_ms + 1e-6))
            self.used_ms[partition] = (used + room * terms.interval_ms, now)
        if terms.concurrency is not None:
            for name in names[:room]:
                self.holders[partition][name] = now + HOLD_MS
        if room:
            self.starts.append(Take(now, partition, room))
            self.buckets.add(partition)
        return room

    def release(self, partition: str, names: list[str]) -> None:
        for name in names:
            self.holders.get(partition, {}).pop(name, None)

    def give_back(self, take: Take, count: int, now: int) -> None:
        take.count -= count
        if self.terms.interval_ms is not None and take.partition in self.buckets:
            back = max(0.0, count * self.terms.interval_ms - (now - take.at_ms))
            self.used_ms[take.partition] = (max(0.0, self._used(take.partition, now) - back), now)

    def hold(self, partition: str, names: list[str], ms: int, now: int) -> None:
        self._since(now)
        held = self.holders.setdefault(partition, {})
        for name in names:
            held[name] = max(held.get(name, 0), now + ms)

    def wipe(self) -> None:
        self.since_ms = None
        self.used_ms.clear()
        self.buckets.clear()
        self.holders.clear()


TERMS = st.sampled_from(
    [
        make_limit_terms("500/s", 10, None, "biz_id"),
        make_limit_terms("100/m", 3, None, "biz_id"),
        make_limit_terms("1000/h", None, 2, "biz_id"),
        make_limit_terms(None, None, 3, "biz_id"),
        make_limit_terms("125/s", 200, 4, "biz_id"),
    ]
)
PARTITION = st.sampled_from(["a", "a", "a", "b"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), PARTITION, st.integers(1, 12)),
        st.tuples(st.just("advance"), st.sampled_from([1, 2, 7, 30, 600, 2000, 3000, 3600, 4900])),
        st.tuples(st.just("release"), PARTITION, st.integers(1, 3)),
        st.tuples(st.just("give back"), st.integers(1, 4), st.integers(1, 3)),
        # The starts come back after others have used what filled the bucket meanwhile.
        st.tuples(st.just("give back late"), PARTITION, st.integers(1, 3), st.integers(1, 900)),
        st.tuples(st.just("hold"), PARTITION, st.sampled_from([500, 4000])),
        st.tuples(st.just("wipe")),
    ),
    min_size=6,
    max_size=30,
)


def _check_rate(model: Model) -> None:
    """In no time were more jobs started than burst + rate x time; a start that came back was none."""
    terms = model.terms
    if terms.interval_ms is None:
        return
    for partition in PARTITIONS:
        starts = [(each.at_ms, each.count) for each in model.starts if each.partition == partition]
        for first in range(len(starts)):
            count = 0
            for at, n in starts[first:]:
                count += n
                passed_ms = at - starts[first][0]
                assert count <= terms.burst + passed_ms / terms.interval_ms + 1e-6


def _make_step(rig: LimitRig, model: Model, step: tuple[Any, ...], count: int) -> None:
    now, store, terms = rig.clock.wall_ms(), rig.store, model.terms
    match step:
        case ("take", partition, n):
            names = [f"{count}-{i}" for i in range(n)]
            answers, at_ms, since_ms = store.take(
                TYPE, terms, HOLD_MS, [PartitionWish(partition, names)]
            )
            assert at_ms == now
            assert answers[0].admitted == model.take(partition, names, now)
            assert since_ms == model.since_ms
            if answers[0].admitted < n:
                assert answers[0].is_full or answers[0].wait_ms > 0
        case ("advance", ms):
            rig.clock.advance(ms / 1000)
        case ("release", partition, n):
            names = list(model.held(partition, now))[:n]
            store.release(TYPE, terms, [PartitionRelease(partition, [], names)])
            model.release(partition, names)
        case ("give back", before, n):
            take = model.starts[-before:][0] if model.starts else Take(now, "a", 0)
            unused = min(n, take.count)
            pair = (take.at_ms, unused)
            store.release(TYPE, terms, [PartitionRelease(take.partition, [pair], [])])
            model.give_back(take, unused, now)
        case ("hold", partition, ms):
            names = list(model.held(partition, now))
            held = [(ms, name) for name in names]
            since_ms = store.hold(TYPE, [PartitionHold(partition, held)] if held else [])
            model.hold(partition, names, ms, now)
            assert since_ms == model.since_ms
        case ("give back late", partition, n, ms):
            for each in (
                ("take", partition, n), ("advance", ms), ("take", partition, 12),
                ("give back", 2, n), ("take", partition, 12),
            ):  # fmt: skip
                _make_step(rig, model, each, count)
                count += 1000
        case ("wipe",):
            rig.wipe()
            model.wipe()


@given(terms=TERMS, steps=STEPS)
# Each example makes a rig, with a namespace of its own.
@settings(
    max_examples=200 if ALL else 60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_redis_does_what_the_model_does(
    make_limit_rig: MakeLimitRig, terms: LimitTerms, steps: list[tuple[Any, ...]]
) -> None:
    rig = make_limit_rig()
    model = Model(terms)
    _make_step(rig, model, ("take", "a", 1), -1)
    _make_step(rig, model, ("advance", 4000), -1)
    for count, step in enumerate(steps):
        _make_step(rig, model, step, count)
        if terms.concurrency is not None:
            for partition in PARTITIONS:
                assert len(model.held(partition, rig.clock.wall_ms())) <= terms.concurrency
    _check_rate(model)
    rig.wipe()
    rig.close()


def test_a_call_of_a_script_has_a_bounded_number_of_values(
    make_limit_rig: MakeLimitRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig, sizes = make_limit_rig(), list[int]()
    call_scripts = rig.server.call_scripts

    def call_and_measure(calls: Sequence[ScriptCall]) -> list[Any]:
        sizes.extend(len(call.args) for call in calls)
        return call_scripts(calls)

    monkeypatch.setattr(rig.server, "call_scripts", call_and_measure)
    terms = make_limit_terms("1/s", 1, 1, None)
    assert terms is not None
    many = [(str(n), f"{n}:token") for n in range(900)]
    store = rig.store
    store.take(TYPE, terms, HOLD_MS, [PartitionWish(name, [holder]) for name, holder in many])
    taken, sizes[:] = list(sizes), []
    store.hold(TYPE, [PartitionHold(name, [(HOLD_MS, holder)]) for name, holder in many])
    held, sizes[:] = list(sizes), []
    unused = [(at_ms, 1) for at_ms in (1, 2, 3)]
    store.release(TYPE, terms, [PartitionRelease(name, unused, [holder]) for name, holder in many])
    for found in (taken, held, sizes):
        assert len(found) > 1
        assert max(found) <= VALUES_MAX + 10  # values that stand once in each call
