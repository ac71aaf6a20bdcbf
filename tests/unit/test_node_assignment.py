"""Rendezvous hashing: the same answer everywhere, and only the share of who comes or goes moves."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from toc.domain.node_assignment import (
    Assignment,
    add_group_to_name,
    compute_assignment,
    group_of_member,
    owner_and_deputy,
    place_in_group,
    process_of_member,
)

AMOUNTS = {"default": 64, "vip": 16}
SHARDS = 64
Owners = dict[tuple[str, int], str]
Members = st.lists(
    st.text("abc:-0189", min_size=1, max_size=12), min_size=1, max_size=6, unique=True
)


def shares(members: list[str]) -> dict[str, Assignment]:
    return {member: compute_assignment(member, members, AMOUNTS, SHARDS) for member in members}


def owners(members: list[str]) -> Owners:
    """Who owns what; fails when something has two owners."""
    found: Owners = {}
    for member, share in shares(members).items():
        things = [(topic, slot) for topic, slots in share.slots.items() for slot in slots]
        for thing in [*things, *(("", shard) for shard in share.shards)]:
            assert thing not in found
            found[thing] = member
    return found


@given(Members)
def test_everything_has_exactly_one_owner(members: list[str]) -> None:
    assert len(owners(members)) == 64 + 16 + SHARDS


@given(Members, st.randoms())
def test_the_order_of_the_members_does_not_matter(members: list[str], random: Random) -> None:
    mixed = list(members)
    random.shuffle(mixed)
    assert owners(members) == owners(mixed)


@given(Members)
def test_who_leaves_moves_only_its_own_share_and_that_to_its_deputies(members: list[str]) -> None:
    before, share = owners(members), shares(members)
    gone, *rest = members
    if not rest:
        return
    after = owners(rest)
    for thing, owner in before.items():
        if owner != gone:
            assert after[thing] == owner
        else:
            heir = share[after[thing]]
            deputised = heir.deputised[thing[0]] if thing[0] else heir.deputised_shards
            assert thing[1] in deputised


@given(Members)
def test_each_slot_has_one_deputy_and_never_its_owner(members: list[str]) -> None:
    deputies: Counter[tuple[str, int]] = Counter()
    for share in shares(members).values():
        for topic, slots in share.deputised.items():
            assert not set(slots) & set(share.slots[topic])
            deputies.update((topic, slot) for slot in slots)
    expected = {(topic, slot) for topic, amount in AMOUNTS.items() for slot in range(amount)}
    assert deputies == (Counter(expected) if len(members) > 1 else Counter())


def test_the_work_is_shared_about_evenly() -> None:
    members = [f"host:{n}:abc" for n in range(8)]
    held = Counter(owner_and_deputy(f"t_{slot}", members)[0] for slot in range(1024))
    # 128 each; the spread of 1024 throws at 8 targets is 10.6.
    assert min(held.values()) > 128 - 5 * 10.6
    assert max(held.values()) < 128 + 5 * 10.6


def test_each_group_owns_everything() -> None:
    """Nodes that run other handlers cannot stand in for each other."""
    orders = [add_group_to_name(f"o:{n}", ["close", "remind"]) for n in range(2)]
    stock = [add_group_to_name("s:1", ["release"])]
    members = orders + stock
    for group in (orders, stock):
        for topic, amount in AMOUNTS.items():
            owned = [
                slot
                for member in group
                for slot in compute_assignment(member, members, AMOUNTS, SHARDS).slots[topic]
            ]
            assert sorted(owned) == list(range(amount))
        shards = [s for m in group for s in compute_assignment(m, members, AMOUNTS, SHARDS).shards]
        assert sorted(shards) == list(range(SHARDS))


def test_the_order_of_types_makes_no_group() -> None:
    one, two = add_group_to_name("h:1:a", ["x", "y"]), add_group_to_name("h:2:b", ["y", "x"])
    assert (
        group_of_member(one)
        == group_of_member(two)
        != group_of_member(add_group_to_name("h:3:c", ["x"]))
    )
    assert process_of_member(one) == "h:1:a"


def test_the_assignment_is_pinned() -> None:
    """Nodes of two releases must agree while one replaces the other."""
    members = ["a:1:x", "b:2:y", "c:3:z"]
    assert [owner_and_deputy(f"default_{slot}", members) for slot in range(3)] == PINNED


PINNED = [["b:2:y", "c:3:z"], ["b:2:y", "c:3:z"], ["c:3:z", "a:1:x"]]


def test_each_member_of_a_group_has_a_place_of_its_own() -> None:
    members = ["c~g", "a~g", "x~other", "b~g"]
    places = {member: place_in_group(member, members) for member in ("a~g", "b~g", "c~g")}
    assert places == {"a~g": (0, 3), "b~g": (1, 3), "c~g": (2, 3)}
    assert place_in_group("x~other", members) == (0, 1)
    assert place_in_group("new~g", []) == (0, 1)
