"""The scripts of limits on every Redis that toc knows, and on a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scripts.rig import Rig
from toc.domain.limit_terms import make_limit_terms
from toc.testing.clock import TestClock
from toc.timer.limit_store import (
    LimitStore,
    LimitUse,
    PartitionHold,
    PartitionRelease,
    PartitionWish,
)
from toc.timer.timer_server import TimerServer

TYPE = "order.close"
SETTLE_MS = 3000


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def store(rig: Rig, clock: TestClock) -> Iterator[LimitStore]:
    server = TimerServer(rig.url, clock, 5)
    yield LimitStore(server, rig.namespace, clock, settle_ms=SETTLE_MS, partitions_max=10)
    server.close()


def test_take_hold_release_and_use(store: LimitStore, clock: TestClock) -> None:
    terms = make_limit_terms("10/s", 5, 3, "biz_id")
    assert terms is not None
    since_ms = store.hold(TYPE, [])
    assert since_ms == clock.wall_ms()
    clock.advance(SETTLE_MS / 1000)
    wishes = [
        PartitionWish("a", [f"a{n}" for n in range(4)]), PartitionWish("b", ["b0"], ["old"]),
        PartitionWish("", ["x", "y"]),
    ]  # fmt: skip
    answers, at_ms, since = store.take(TYPE, terms, 5000, wishes)
    assert ([each.admitted for each in answers], since) == ([3, 1, 2], since_ms)
    assert [each.is_full for each in answers] == [True, False, False]
    assert store.read_use([TYPE]) == {TYPE: LimitUse(holders=2, used_ms=200, partitions=3)}
    unused = [(at_ms, 1), (at_ms - 10, 1), (at_ms + 70, 1), (at_ms - 100, 1)]
    some = [PartitionRelease("", unused[:1], ["x"]), PartitionRelease("a", [], ["a1"])]
    store.release(TYPE, terms, some)
    assert store.read_use([TYPE]) == {TYPE: LimitUse(holders=1, used_ms=100, partitions=3)}
    store.take(TYPE, terms, 5000, [PartitionWish("", ["x", "z"])])
    store.release(TYPE, terms, [PartitionRelease("", unused[1:], ["x", "z"])])
    assert store.read_use([TYPE])[TYPE].used_ms == 300 - 90 - 30
    assert store.take(TYPE, terms, 5000, wishes[:1])[0][0].admitted == 1
    assert store.hold(TYPE, [PartitionHold("", [(9000, "y")])]) == since_ms
    clock.advance(6)
    assert store.read_use([TYPE]) == {TYPE: LimitUse(holders=1, used_ms=0, partitions=1)}


def test_a_call_with_many_values_is_split(store: LimitStore, clock: TestClock) -> None:
    terms = make_limit_terms(None, None, 700, "biz_id")
    assert terms is not None
    store.hold(TYPE, [])
    clock.advance(SETTLE_MS / 1000)
    wishes = [PartitionWish(str(p), [f"{p}-{n}" for n in range(800)]) for p in range(5)]
    answers = store.take(TYPE, terms, 5000, wishes).partitions
    assert [each.admitted for each in answers] == [700] * 5
    store.release(
        TYPE, terms, [PartitionRelease(wish.partition, [], wish.holders) for wish in wishes]
    )
    assert [each.admitted for each in store.take(TYPE, terms, 5000, wishes)[0]] == [700] * 5
