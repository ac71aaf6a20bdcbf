"""put_back.lua: from the PrepareQueue to the StoreQueue, each at its time."""

from __future__ import annotations

import pytest

from tests.scripts.rig import NOW, SLOT, Rig, State

TABLE: dict[str, tuple[State, list[tuple[int | str, int]], State, int | None]] = {
    "at its time": (State({}, {1: NOW}), [(NOW + 5, 1)], State({1: NOW + 5}), NOW + 5),
    "that was not out": (State(), [(NOW + 5, 1)], State({1: NOW + 5}), NOW + 5),
    "behind the head": (
        State({2: NOW}, {1: NOW}), [(NOW + 5, 1)], State({2: NOW, 1: NOW + 5}), None,
    ),
    "an earlier reminder came meanwhile": (
        State({1: NOW + 2}, {1: NOW}), [(NOW + 5, 1)], State({1: NOW + 2}), None,
    ),
    "a later reminder came meanwhile": (
        State({1: NOW + 9}, {1: NOW}), [(NOW + 5, 1)], State({1: NOW + 5}), NOW + 5,
    ),
    "far from now: out no more, and not armed": (
        State({2: NOW + 9}, {1: NOW}), [("", 1)], State({2: NOW + 9}), None,
    ),
    "far from now, and reminded of meanwhile": (
        State({1: NOW + 9}, {1: NOW}), [("", 1)], State({1: NOW + 9}), None,
    ),
    "only these, several": (
        State({}, {1: NOW, 2: NOW, 3: NOW}, {3: "a mark"}),
        [(NOW + 7, 1), (NOW + 6, 2)],
        State({1: NOW + 7, 2: NOW + 6}, {3: NOW}, {3: "a mark"}),
        NOW + 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_table(rig: Rig, case: str) -> None:
    before, pairs, after, head = TABLE[case]
    rig.set(before)
    rig.listen()
    flat = [value for pair in pairs for value in pair]
    answer = rig.call("put_back", NOW, rig.channel, SLOT, *flat)
    assert answer == [str(NOW).encode(), 0 if head is None else 1]
    assert rig.state() == after
    assert rig.heard() == ([] if head is None else [f"{SLOT} {head} {NOW}"])


def test_the_most_pairs_in_one_call(rig: Rig) -> None:
    rig.set(State({}, dict.fromkeys(range(2000), NOW)))
    flat = [value for n in range(2000) for value in (NOW + n, n)]
    rig.call("put_back", NOW, rig.channel, SLOT, *flat)
    assert rig.state() == State({n: NOW + n for n in range(2000)})
