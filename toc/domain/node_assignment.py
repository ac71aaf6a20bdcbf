"""Assigns slots and shards to the members of a cluster by rendezvous hashing.

Every node computes the same assignment from the same members, so no coordinator is needed. For each slot or
shard (a resource), each member has a score; the member with the highest score owns it. A member that joins
or leaves changes no score of other members, so only its own share moves (Thaler and Ravishankar, "Using
Name-Based Mappings to Increase Hit Rates", 1998). The member with the second highest score is the deputy:
the member that would own the resource if the owner left.

Members with handlers of the same types form a group, and share the slots and shards with each other. Each
group owns all slots and shards, so that each type has an owner for each slot and shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import nlargest


@dataclass(frozen=True, slots=True)
class Assignment:
    """The slots (by topic) and shards that one node owns, and those of which this node is the deputy."""

    slots: Mapping[str, Sequence[int]]
    deputised: Mapping[str, Sequence[int]]
    shards: Sequence[int]
    deputised_shards: Sequence[int]


def owner_and_deputy(resource: str, members: Iterable[str]) -> list[str]:
    """The owner and the deputy of a resource: at most two members, the owner first."""
    return nlargest(2, members, key=lambda member: (_rendezvous_score(resource, member), member))


def compute_assignment(
    member: str, members: Sequence[str], slot_amounts: Mapping[str, int], shards: int
) -> Assignment:
    """The assignment of `member` among the members of its group. `slot_amounts`: by topic."""
    peers = [peer for peer in members if group_of_member(peer) == group_of_member(member)]
    shares = {
        topic: _owned_and_deputised(
            member, peers, [slot_name(topic, slot) for slot in range(amount)]
        )
        for topic, amount in slot_amounts.items()
    }
    owned, deputised = _owned_and_deputised(
        member, peers, [shard_name(shard) for shard in range(shards)]
    )
    return Assignment(
        {topic: share[0] for topic, share in shares.items()},
        {topic: share[1] for topic, share in shares.items()},
        owned,
        deputised,
    )


def _owned_and_deputised(
    member: str, peers: Sequence[str], resources: Sequence[str]
) -> tuple[list[int], list[int]]:
    """The indexes of the resources that the member owns, and of those of which it is the deputy."""
    owned, deputised = [], []
    for index, resource in enumerate(resources):
        first, *second = owner_and_deputy(resource, peers)
        if first == member:
            owned.append(index)
        elif member in second:
            deputised.append(index)
    return owned, deputised


def add_group_to_name(identity: str, biz_types: Iterable[str]) -> str:
    """Appends a hash of the types to a member's name: members with the same types are one group."""
    types = "\n".join(sorted(biz_types))
    return f"{identity}~{blake2b(types.encode(), digest_size=4).hexdigest()}"


def group_of_member(member: str) -> str:
    return member.partition("~")[2]


def place_in_group(member: str, members: Sequence[str]) -> tuple[int, int]:
    """The place of a member among the members of its group, from 0, and how many these are (at least 1)."""
    peers = sorted({peer for peer in members if group_of_member(peer) == group_of_member(member)})
    return sum(peer < member for peer in peers), max(1, len(peers))


def process_of_member(member: str) -> str:
    """The process name in a member's name; the tokens of its claims begin with it."""
    return member.partition("~")[0]


def slot_name(topic: str, slot: int) -> str:
    return f"{topic}_{slot}"


def shard_name(shard: int) -> str:
    return f"shard {shard}"  # no topic has a space in its name


def _rendezvous_score(resource: str, member: str) -> bytes:
    return blake2b(f"{member}\n{resource}".encode(), digest_size=8).digest()
