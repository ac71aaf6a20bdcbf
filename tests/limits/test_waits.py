"""When refused jobs are offered again: in their order, and never in a loop."""

from __future__ import annotations

from toc.domain.limit_terms import make_limit_terms
from toc.limits.waits import (
    FULL_AGAIN_MS,
    GATHER_MS,
    GUESS_MIN,
    WAIT_MS_MAX,
    PartitionWaits,
    TypeDoor,
)
from toc.testing.clock import TestClock
from toc.timer.limit_store import PartitionAnswer

TYPE = "order.close"
RATE = make_limit_terms("10/s", None, None, "biz_id")
CONCURRENCY = make_limit_terms(None, None, 1, "biz_id")
FULL = PartitionAnswer(0, 0, is_full=True)


def test_jobs_of_a_partition_wait_for_its_rate_one_after_the_other() -> None:
    assert RATE is not None
    clock = TestClock()
    waits = PartitionWaits(clock)
    refused = [(1, 1), (1, 2), (2, 3)]
    answer = PartitionAnswer(0, 40, is_full=False)
    assert waits.waits_ms(TYPE, "a", RATE, refused, answer) == [40, 140, 240]
    # Later jobs wait behind them; jobs of another partition do not.
    assert waits.waits_ms(TYPE, "a", RATE, [(3, 4)], answer) == [340]
    assert waits.waits_ms(TYPE, "b", RATE, [(3, 5)], answer) == [40]
    # A job that comes back too early goes before those that wait.
    clock.advance(0.04)
    assert waits.waits_ms(TYPE, "a", RATE, [(1, 1)], PartitionAnswer(0, 5, False)) == [5]


def test_a_wait_is_bounded() -> None:
    assert RATE is not None
    waits = PartitionWaits(TestClock())
    refused = [(1, job_id) for job_id in range(2000)]
    found = waits.waits_ms(TYPE, "a", RATE, refused, PartitionAnswer(0, 1, False))
    assert found == sorted(found)
    assert found[-1] == WAIT_MS_MAX


def test_the_steps_follow_how_often_jobs_are_admitted() -> None:
    assert CONCURRENCY is not None
    waits = PartitionWaits(TestClock())

    def step() -> int:
        first, second = waits.waits_ms(TYPE, "a", CONCURRENCY, [(0, 1), (0, 2)], FULL)
        assert first >= FULL_AGAIN_MS
        return second - first

    before = step()
    assert step() == 2 * before
    for _ in range(3):
        waits.record_admission(TYPE, "a")
    assert step() == before // 2


def test_a_type_is_closed_until_something_may_start() -> None:
    door = TypeDoor()
    door.record_take(GUESS_MIN, PartitionAnswer(GUESS_MIN, 0, False), now_s=1.0, gather_ms_max=500)
    assert (door.closed_until_s, door.guess) == (0.0, 2 * GUESS_MIN)
    door.record_take(8, PartitionAnswer(3, 250, False), now_s=1.0, gather_ms_max=500)
    assert (door.closed_until_s, door.guess) == (1.25, 3)
    door.record_take(3, PartitionAnswer(0, 0, True), now_s=2.0, gather_ms_max=500)
    assert (door.closed_until_s, door.guess) == (2.0 + FULL_AGAIN_MS / 1000, 1)


def test_starts_of_a_quick_rate_gather_as_far_as_the_bucket_keeps_them() -> None:
    door, answer = TypeDoor(), PartitionAnswer(3, 2, is_full=False)
    door.record_take(8, answer, now_s=1.0, gather_ms_max=500)
    assert door.closed_until_s == 1 + GATHER_MS / 1000
    door.record_take(8, answer, now_s=1.0, gather_ms_max=5)
    assert door.closed_until_s == 1.005
