"""arm.lua: the earliest reminder wins."""

from __future__ import annotations

import pytest

from tests.scripts.rig import NOW, SLOT, Rig, State

TABLE = {
    "into an empty slot": ({}, [(NOW + 5, 1)], {1: NOW + 5}, NOW + 5),
    "behind the head": ({1: NOW}, [(NOW + 5, 2)], {1: NOW, 2: NOW + 5}, None),
    "before the head": ({1: NOW + 5}, [(NOW, 2)], {1: NOW + 5, 2: NOW}, NOW),
    "beside the head": ({1: NOW}, [(NOW, 2)], {1: NOW, 2: NOW}, None),
    "an earlier time of the same job": ({1: NOW + 5}, [(NOW + 4, 1)], {1: NOW + 4}, NOW + 4),
    "a later time of the same job": ({1: NOW + 5}, [(NOW + 6, 1)], {1: NOW + 5}, None),
    "the same time again": ({1: NOW + 5}, [(NOW + 5, 1)], {1: NOW + 5}, None),
    "a job twice, late first": ({}, [(NOW + 9, 1), (NOW + 5, 1)], {1: NOW + 5}, NOW + 5),
    "a job twice, early first": ({}, [(NOW + 5, 1), (NOW + 9, 1)], {1: NOW + 5}, NOW + 5),
    "the past": ({1: NOW}, [(1, 2)], {1: NOW, 2: 1}, 1),
    "the largest id": ({}, [(NOW, 2**63 - 1)], {2**63 - 1: NOW}, NOW),
    "the last time there is": ({}, [(253_402_300_799_999, 1)], {1: 253_402_300_799_999},
                               253_402_300_799_999),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_table(rig: Rig, case: str) -> None:
    store, pairs, after, head = TABLE[case]
    rig.set(State(store, {99: NOW + 1}, {3: "a mark"}))
    rig.listen()
    flat = [value for pair in pairs for value in pair]
    answer = rig.call("arm", NOW, rig.channel, SLOT, *flat)
    assert answer == [str(NOW).encode(), 0 if head is None else 1]
    assert rig.state() == State(after, {99: NOW + 1}, {3: "a mark"})
    assert rig.heard() == ([] if head is None else [f"{SLOT} {head} {NOW}"])


def test_the_most_pairs_in_one_call(rig: Rig) -> None:
    rig.listen()
    flat = [value for n in range(2000, 0, -1) for value in (NOW + n, n)]
    assert rig.call("arm", NOW, rig.channel, SLOT, *flat) == [str(NOW).encode(), 1]
    assert rig.state() == State({n: NOW + n for n in range(1, 2001)})
    assert rig.heard() == [f"{SLOT} {NOW + 1} {NOW}"]


@pytest.mark.parametrize("count", [499, 500, 501, 1000])
def test_parts_meet_without_a_gap(rig: Rig, count: int) -> None:
    flat = [value for n in range(count) for value in (NOW + n, n)]
    rig.call("arm", NOW, rig.channel, SLOT, *flat)
    assert rig.state() == State({n: NOW + n for n in range(count)})


def test_without_a_given_time_the_servers_own_is_answered(rig: Rig) -> None:
    def server_ms() -> int:
        script = "local t = redis.call('TIME') return t[1] * 1000 + math.floor(t[2] / 1000)"
        return int(rig.client.execute_command("EVAL", script, 1, rig.store))

    before = server_ms()
    time_ms = int(rig.call("arm", "", rig.channel, SLOT, NOW, 1)[0])
    assert before <= time_ms <= server_ms()
