"""pop.lua: what is due moves out for a short while; nothing earlier, nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.scripts.rig import NOW, Rig, State

STAY = 30_000
OUT = NOW + STAY

TABLE: dict[str, tuple[State, int, State, list[int], Any]] = {
    "nothing there": (State(), 10, State(), [], b""),
    "due at this very moment": (State({1: NOW}), 10, State({}, {1: OUT}), [1], OUT),
    "one millisecond early": (State({1: NOW + 1}), 10, State({1: NOW + 1}), [], NOW + 1),
    "oldest first, up to n": (
        State({1: NOW, 2: NOW - 2, 3: NOW - 1, 4: NOW + 5}), 2,
        State({1: NOW, 4: NOW + 5}, {2: OUT, 3: OUT}), [2, 3], NOW,
    ),
    "all that is due, and when the next is": (
        State({1: NOW, 4: NOW + 5}), 10, State({4: NOW + 5}, {1: OUT}), [1], NOW + 5,
    ),
    "what is out stays out": (
        State({}, {1: NOW + 1}), 10, State({}, {1: NOW + 1}), [], NOW + 1,
    ),
    "a stay that is over ends": (
        State({5: NOW + 9}, {1: NOW}), 10, State({5: NOW + 9}, {1: OUT}), [1], NOW + 9,
    ),
    "a stay that is over waits for its turn": (
        State({5: NOW - 9}, {1: NOW - 1}), 1, State({1: NOW}, {5: OUT}), [5], NOW,
    ),
    "no more than n stays end in one call": (
        State({}, {1: NOW - 3, 2: NOW - 2, 3: NOW - 1}), 2,
        State({}, {3: NOW - 1, 1: OUT, 2: OUT}), [1, 2], NOW - 1,
    ),
    "over, and reminded of earlier": (
        State({1: NOW - 50, 2: NOW - 40}, {1: NOW}), 1,
        State({2: NOW - 40}, {1: OUT}), [1], NOW - 40,
    ),
    "over, and reminded of later": (
        State({1: NOW + 50}, {1: NOW}), 10, State({}, {1: OUT}), [1], OUT,
    ),
    "out, and reminded of again": (
        State({1: NOW}, {1: NOW + 5}), 10, State({}, {1: OUT}), [1], OUT,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_table(rig: Rig, case: str) -> None:
    before, n, after, ids, next_ms = TABLE[case]
    rig.set(before)
    rig.listen()
    answer = rig.call("pop", NOW, n, STAY)
    assert answer[0] == str(NOW).encode()
    assert answer[1] == (next_ms if isinstance(next_ms, bytes) else str(next_ms).encode())
    assert [int(job_id) for job_id in answer[2:]] == ids
    assert rig.state() == after
    assert rig.heard() == []


@pytest.mark.invariant("I4")
def test_nothing_is_popped_before_its_time(rig: Rig) -> None:
    rig.set(State({1: NOW}))
    assert rig.call("pop", NOW - 1, 10, STAY)[2:] == []
    assert rig.call("pop", NOW, 10, STAY)[2:] == [b"1"]
    assert rig.call("pop", NOW, 10, STAY)[2:] == []


@pytest.mark.invariant("I1")
def test_a_pop_whose_worker_died_comes_back(rig: Rig) -> None:
    rig.set(State({1: NOW}))
    assert rig.call("pop", NOW, 10, STAY)[2:] == [b"1"]
    assert rig.call("pop", OUT - 1, 10, STAY)[2:] == []
    answer = rig.call("pop", OUT, 10, STAY)
    assert answer[2:] == [b"1"]
    assert rig.state() == State({}, {1: OUT + STAY})


def test_the_most_ids_in_one_call(rig: Rig) -> None:
    ids = range(1, 4001)
    rig.set(State({n: NOW - n for n in ids[:2000]}, {n: NOW - n for n in ids[2000:]}))
    answer = rig.call("pop", NOW, 2000, STAY)
    assert len(answer) == 2002
    assert [int(job_id) for job_id in answer[2:]] == list(range(2000, 0, -1))
    state = rig.state()
    assert (len(state.store), len(state.prepare)) == (2000, 2000)
    assert set(state.store.values()) == {NOW}
    assert set(state.prepare.values()) == {OUT}


def test_the_servers_own_time_decides_where_none_is_given(rig: Rig) -> None:
    rig.set(State({1: 1_700_000_000_000, 2: 9_999_999_999_999}))
    answer = rig.call("pop", "", 10, STAY)
    assert answer[2:] == [b"1"]
    assert rig.state() == State({2: 9_999_999_999_999}, {1: int(answer[0]) + STAY})
