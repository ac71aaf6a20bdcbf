"""load_page.lua: the page and the mark together, or nothing."""

from __future__ import annotations

import pytest

from tests.scripts.rig import NOW, SLOT, Rig, State

SEEN, AFTER = "id1 run1 0 0", f"id1 run1 {NOW} 2"


def test_arms_the_page_and_moves_the_mark(rig: Rig) -> None:
    rig.set(State({1: NOW + 9, 8: NOW + 8}, {99: NOW + 1}, {3: SEEN, 4: "another"}))
    rig.listen()
    answer = rig.call("load_page", NOW, rig.channel, SLOT, 3, SEEN, AFTER, NOW + 7, 1, NOW + 9, 8)
    assert answer == [str(NOW).encode(), 1]
    assert rig.state() == State({1: NOW + 7, 8: NOW + 8}, {99: NOW + 1}, {3: AFTER, 4: "another"})
    assert rig.heard() == [f"{SLOT} {NOW + 7} {NOW}"]


@pytest.mark.invariant("I1")
@pytest.mark.parametrize(
    ("marks", "seen"),
    [
        ({}, SEEN),
        ({}, ""),
        ({3: AFTER}, SEEN),
        ({3: SEEN + " "}, SEEN),
        ({4: SEEN}, SEEN),
    ],
    ids=["wiped", "wiped, read as empty", "moved by another", "not equal", "of another shard"],
)
def test_does_nothing_when_the_mark_is_not_what_was_read(
    rig: Rig, marks: dict[int, str], seen: str
) -> None:
    before = State({8: NOW + 8}, {99: NOW + 1}, marks)
    rig.set(before)
    rig.listen()
    answer = rig.call("load_page", NOW, rig.channel, SLOT, 3, seen, AFTER, NOW, 1)
    assert answer == [str(NOW).encode(), 0]
    assert rig.state() == before
    assert rig.heard() == []


def test_a_page_without_rows_of_the_topic_moves_the_mark(rig: Rig) -> None:
    rig.set(State(marks={3: SEEN}))
    rig.listen()
    assert rig.call("load_page", NOW, rig.channel, SLOT, 3, SEEN, AFTER)[1] == 1
    assert rig.state() == State(marks={3: AFTER})
    assert rig.heard() == []


def test_a_page_behind_the_head_wakes_nobody(rig: Rig) -> None:
    rig.set(State({8: NOW}, marks={3: SEEN}))
    rig.listen()
    rig.call("load_page", NOW, rig.channel, SLOT, 3, SEEN, AFTER, NOW, 1, NOW + 1, 2)
    assert rig.state() == State({8: NOW, 1: NOW, 2: NOW + 1}, marks={3: AFTER})
    assert rig.heard() == []


def test_the_most_pairs_in_one_call(rig: Rig) -> None:
    rig.set(State(marks={3: SEEN}))
    flat = [value for n in range(2000) for value in (NOW + n, n)]
    rig.call("load_page", NOW, rig.channel, SLOT, 3, SEEN, AFTER, *flat)
    assert rig.state() == State({n: NOW + n for n in range(2000)}, marks={3: AFTER})
