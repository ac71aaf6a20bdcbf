"""Who does what: rendezvous hashing of slots and shards over the members of a cluster.

Every node computes the same answer from the same members, so nobody has to hand work out. For each
thing, each member has a score; the highest owns it. A member that joins or leaves changes no score of
the others, so only its own share moves (Thaler and Ravishankar, "Using Name-Based Mappings to
Increase Hit Rates", 1998). The second highest is its deputy: exactly the one that would inherit it.

Only members of one group are compared: those that run handlers of the same types. Each group owns
everything once, so that each type has somebody for each slot and shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import nlargest


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one node does: slots by topic, and shards, that it owns, and those that it is the deputy of."""

    slots: Mapping[str, Sequence[int]]
    deputised: Mapping[str, Sequence[int]]
    shards: Sequence[int]
    deputised_shards: Sequence[int]


def ranking(thing: str, members: Iterable[str]) -> list[str]:
    """The owner of a thing and its deputy: at most two members, the owner first."""
    return nlargest(2, members, key=lambda member: (_score(thing, member), member))


def assign(
    member: str, members: Sequence[str], slot_amounts: Mapping[str, int], shards: int
) -> Assignment:
    """The share of `member` among those of `members` that are of its group. `slot_amounts` by topic."""
    peers = [peer for peer in members if group_of(peer) == group_of(member)]
    shares = {
        topic: _share(member, peers, [slot_name(topic, slot) for slot in range(amount)])
        for topic, amount in slot_amounts.items()
    }
    owned, deputised = _share(member, peers, [shard_name(shard) for shard in range(shards)])
    return Assignment(
        {topic: share[0] for topic, share in shares.items()},
        {topic: share[1] for topic, share in shares.items()},
        owned,
        deputised,
    )


def _share(member: str, peers: Sequence[str], things: Sequence[str]) -> tuple[list[int], list[int]]:
    """The positions of the things that the member owns, and of those that it is the deputy of."""
    owned, deputised = [], []
    for position, thing in enumerate(things):
        first, *second = ranking(thing, peers)
        if first == member:
            owned.append(position)
        elif member in second:
            deputised.append(position)
    return owned, deputised


def in_group(identity: str, biz_types: Iterable[str]) -> str:
    """The name of a member that runs handlers of these types."""
    types = "\n".join(sorted(biz_types))
    return f"{identity}~{blake2b(types.encode(), digest_size=4).hexdigest()}"


def group_of(member: str) -> str:
    return member.partition("~")[2]


def identity_of(member: str) -> str:
    """The process behind a member's name: what the tokens of its claims begin with."""
    return member.partition("~")[0]


def slot_name(topic: str, slot: int) -> str:
    return f"{topic}_{slot}"


def shard_name(shard: int) -> str:
    return f"shard {shard}"  # no topic has a space in its name


def _score(thing: str, member: str) -> bytes:
    return blake2b(f"{member}\n{thing}".encode(), digest_size=8).digest()
