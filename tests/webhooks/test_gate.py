"""The turns of a destination: concurrency, shares, the circuit breaker."""

from __future__ import annotations

import asyncio
import random

import pytest

from toc.runtime.clock import SystemClock
from toc.runtime.setting_groups import WebhookSettings
from toc.webhooks.gate import DestinationGate, HandlerShares, MustWaitError, Turn


class SetClock(SystemClock):
    """A monotonic clock that the test moves."""

    now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


def make_gate(
    shares: HandlerShares | None = None, **terms: float
) -> tuple[DestinationGate, SetClock]:
    settings = {"failures_max": 3, "open_s": 10, "open_s_max": 40, "wait_s_max": 60} | terms
    clock = SetClock()
    rng = random.Random(1)  # noqa: S311 - varies waits
    gate = DestinationGate(WebhookSettings(**settings), shares or HandlerShares(100), clock, rng)
    return gate, clock


def begin(gate: DestinationGate) -> Turn:
    return asyncio.run(gate.begin())


def request(
    gate: DestinationGate, clock: SetClock, *, is_healthy: bool, seconds: float = 0.0
) -> bool:
    """One request; True: it was a probe."""
    turn = begin(gate)
    clock.now_s += seconds
    gate.end(turn, is_healthy=is_healthy)
    return turn.is_probe


def test_it_opens_after_failures_in_a_row_and_one_probe_closes_it() -> None:
    gate, clock = make_gate()
    for is_healthy in (False, False, True, False, False, False):
        assert not gate.is_open
        assert not request(gate, clock, is_healthy=is_healthy)
    assert gate.is_open
    with pytest.raises(MustWaitError) as wait:
        begin(gate)
    assert 10 <= wait.value.wait_s <= 10 * 1.25
    clock.now_s += 10
    probe = begin(gate)
    assert probe.is_probe
    with pytest.raises(MustWaitError):
        begin(gate)  # no second one
    gate.end(probe, is_healthy=True)
    assert not gate.is_open
    assert not request(gate, clock, is_healthy=True)


def test_a_probe_that_fails_opens_it_for_twice_the_time_up_to_a_bound() -> None:
    gate, clock = make_gate()
    for _ in range(3):
        request(gate, clock, is_healthy=False)
    for open_s in (10, 20, 40, 40):
        clock.now_s += open_s - 0.1
        with pytest.raises(MustWaitError):
            begin(gate)
        clock.now_s += 0.1
        assert request(gate, clock, is_healthy=False)


def test_a_probe_whose_result_is_not_known_lets_the_next_one_probe() -> None:
    gate, clock = make_gate()
    for _ in range(3):
        request(gate, clock, is_healthy=False)
    clock.now_s += 10
    gate.end(begin(gate), is_healthy=None)
    assert gate.is_open
    assert begin(gate).is_probe


def test_a_success_of_an_old_request_does_not_close_it() -> None:
    gate, clock = make_gate()
    slow = begin(gate)
    for _ in range(3):
        request(gate, clock, is_healthy=False)
    gate.end(slow, is_healthy=True)
    assert gate.is_open


def test_a_pause_that_the_receiver_asks_for_is_bounded() -> None:
    gate, clock = make_gate()
    gate.pause(3600)
    clock.now_s += 39.9
    with pytest.raises(MustWaitError):
        begin(gate)
    clock.now_s += 0.1
    assert begin(gate).is_probe


def test_a_busy_destination_keeps_its_share_and_others_get_theirs() -> None:
    shares = HandlerShares(8)
    slow, clock = make_gate(shares, concurrency=100)
    fast, _ = make_gate(shares, concurrency=100)
    turns = [begin(slow) for _ in range(8)]
    clock.now_s += 30
    with pytest.raises(MustWaitError):
        begin(slow)  # none of its requests has ended: they are slow
    others = [begin(fast) for _ in range(4)]
    assert shares.active == 2
    slow.end(turns.pop(), is_healthy=True)
    with pytest.raises(MustWaitError):
        begin(slow)  # 7 run, and its share is 4 now
    for turn in others:
        fast.end(turn, is_healthy=True)
    assert shares.active == 1
    begin(slow)


def test_requests_to_a_quick_destination_wait_in_the_process_for_their_turn() -> None:
    async def run() -> None:
        gate, _ = make_gate(concurrency=2)
        turns = [await gate.begin() for _ in range(2)]
        waiting = [asyncio.ensure_future(gate.begin()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        waiting[1].cancel()
        for turn in turns:
            gate.end(turn, is_healthy=True)
        for each in (waiting[0], waiting[2]):
            gate.end(await each, is_healthy=True)
        assert not gate._running
        assert not gate._shares.active

    asyncio.run(run())


def test_requests_that_wait_for_their_turn_do_not_start_when_it_opens() -> None:
    async def run() -> None:
        gate, _ = make_gate(concurrency=3)
        turns = [await gate.begin() for _ in range(3)]
        waiting = asyncio.ensure_future(gate.begin())
        await asyncio.sleep(0)
        for turn in turns:
            gate.end(turn, is_healthy=False)
        with pytest.raises(MustWaitError):
            await waiting
        assert not gate._running
        assert not gate._shares.active

    asyncio.run(run())


def test_waiting_jobs_return_at_the_pace_of_the_receiver() -> None:
    gate, clock = make_gate(concurrency=2)
    for _ in range(100):
        request(gate, clock, is_healthy=True, seconds=4.0)
    for _ in range(2):
        begin(gate)
    waits = []
    for _ in range(100):
        with pytest.raises(MustWaitError) as wait:
            begin(gate)
        waits.append(wait.value.wait_s)
    assert waits[0] < 2
    assert 20 < waits[10] < 30
    assert max(waits) <= 60 * 1.25
