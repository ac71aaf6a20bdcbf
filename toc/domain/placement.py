"""Who does what: rendezvous hashing of slots and shards over the members of a cluster.

Every node computes the same answer from the same members, so nobody has to hand work out. For each
thing, each member has a score; the highest owns it. A member that joins or leaves changes no score of
the others, so only its own share moves (Thaler and Ravishankar, "Using Name-Based Mappings to
Increase Hit Rates", 1998). The second highest is its deputy: exactly the one that would inherit it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import nlargest


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one node does: slots by topic that it owns or is the deputy of, and the shards it scans."""

    slots: Mapping[str, Sequence[int]]
    deputised: Mapping[str, Sequence[int]]
    shards: Sequence[int]


def ranking(thing: str, members: Iterable[str]) -> list[str]:
    """The owner of a thing and its deputy: at most two members, the owner first."""
    return nlargest(2, members, key=lambda member: (_score(thing, member), member))


def assign(
    member: str, members: Sequence[str], slot_amounts: Mapping[str, int], shards: int
) -> Assignment:
    """The share of `member` among `members` (itself too). `slot_amounts` by topic."""
    slots: dict[str, list[int]] = {topic: [] for topic in slot_amounts}
    deputised: dict[str, list[int]] = {topic: [] for topic in slot_amounts}
    for topic, amount in slot_amounts.items():
        for slot in range(amount):
            first, *second = ranking(slot_name(topic, slot), members)
            if first == member:
                slots[topic].append(slot)
            elif member in second:
                deputised[topic].append(slot)
    scanned = [shard for shard in range(shards) if ranking(shard_name(shard), members)[0] == member]
    return Assignment(slots, deputised, scanned)


def slot_name(topic: str, slot: int) -> str:
    return f"{topic}_{slot}"


def shard_name(shard: int) -> str:
    return f"shard {shard}"  # no topic has a space in its name


def _score(thing: str, member: str) -> bytes:
    return blake2b(f"{member}\n{thing}".encode(), digest_size=8).digest()
