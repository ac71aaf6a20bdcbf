"""Reads all members with the facts that they publish, without joining the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from toc.cluster.members import MEMBERS, MemberReader, member_of_node_name
from toc.cluster.ownership_times import parse_ownership_times
from toc.cluster.zookeeper_client import ZooKeeperClient
from toc.domain.node_assignment import process_of_member
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings

# Of one member; a node that owns 1,024 shards and slots publishes about 20,000 bytes.
DATA_BYTES_MAX = 262_144
TEXT_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Member:
    """A node as ZooKeeper has it. `slots` (by topic) and `shards`: number -> held since, in ms.

    `joined_ms` is by ZooKeeper's clock, all other times by the node's own. `http`: its address, if any.
    `moving`: databases that it knows to be moving; None: its release does not publish them.
    """

    identity: str
    leads: bool
    joined_ms: int
    version: str = "?"
    http: str | None = None
    handles: Sequence[str] = ()
    slots: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    shards: Mapping[int, int] = field(default_factory=dict)
    moving: Sequence[int] | None = None


def read_roster(settings: Settings) -> list[Member]:
    """The members in the order in which they joined, the leader first. Raises ClusterUnavailable."""
    with closing(ZooKeeperClient(settings, lambda: None)) as zookeeper:
        zookeeper.wait_until_connected(settings.connect_timeout_s)
        members = MemberReader(zookeeper, settings.cluster.members_max, SystemClock())
        found: dict[str, Member] = {}
        for name, stat in members.read_members().items():
            small = stat.data_bytes <= DATA_BYTES_MAX
            data = zookeeper.read_data(f"{MEMBERS}/{name}") if small else b""
            if data is not None:  # it may have left meanwhile
                member = _parse_member(
                    process_of_member(member_of_node_name(name)), not found, stat.created_ms, data
                )
                found.setdefault(member.identity, member)
        return list(found.values())


def _parse_member(identity: str, leads: bool, joined_ms: int, data: bytes) -> Member:
    """The member with the facts in `data`; without them if they are malformed (another release)."""
    try:
        text: Any = json.loads(data)
        http = text["http"]
        return Member(
            identity,
            leads,
            joined_ms,
            str(text["version"])[:TEXT_CHARS_MAX],
            None if http is None else str(http)[:TEXT_CHARS_MAX],
            [str(name)[:TEXT_CHARS_MAX] for name in text["handles"]],
            {topic: parse_ownership_times(holding) for topic, holding in text["slots"].items()},
            parse_ownership_times(text["shards"]),
            [int(index) for index in text["moving"]] if "moving" in text else None,
        )
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return Member(identity, leads, joined_ms)


Owners = list[tuple[str, int]]
"""Nodes that say they own a slot or shard, and since when in ms: normally one; for a moment none, or two."""


def find_owners(settings: Settings, members: Sequence[Member]) -> Iterator[tuple[str, int, Owners]]:
    """("slot of TOPIC" or "shard", its number, its owners) for each slot and shard."""
    things = [
        (f"slot of {topic}", amount, {m.identity: m.slots.get(topic, {}) for m in members})
        for topic, amount in settings.slot_amounts.items()
    ]
    things.append(("shard", settings.shards, {m.identity: m.shards for m in members}))
    for kind, amount, held in things:
        for number in range(amount):
            owners = [(node, since[number]) for node, since in held.items() if number in since]
            yield kind, number, owners
