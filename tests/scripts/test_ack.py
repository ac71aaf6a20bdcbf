"""ack.lua: forgotten wherever it lies."""

from __future__ import annotations

import pytest

from tests.scripts.rig import NOW, Rig, State

TABLE = {
    "out with a worker": (State({}, {1: NOW}), [1], State(), 1),
    "armed": (State({1: NOW}), [1], State(), 1),
    "armed and out": (State({1: NOW}, {1: NOW}), [1], State(), 2),
    "not there": (State(), [1], State(), 0),
    "only these": (
        State({1: NOW, 2: NOW + 1}, {3: NOW, 4: NOW}, {3: "a mark"}),
        [1, 3, 5],
        State({2: NOW + 1}, {4: NOW}, {3: "a mark"}),
        2,
    ),
    "the largest id": (State({2**63 - 1: 5, 2**63 - 2: 5}), [2**63 - 1], State({2**63 - 2: 5}), 1),
}


@pytest.mark.parametrize("case", TABLE)
def test_table(rig: Rig, case: str) -> None:
    before, ids, after, removed = TABLE[case]
    rig.set(before)
    rig.listen()
    assert rig.call("ack", *ids) == removed
    assert rig.state() == after
    assert rig.heard() == []


def test_the_most_ids_in_one_call(rig: Rig) -> None:
    ids = range(2000)
    rig.set(State(dict.fromkeys(ids[:1000], NOW), dict.fromkeys(ids[1000:], NOW)))
    assert rig.call("ack", *ids) == 2000
    assert rig.keys() == set()
