"""All members, with what they say of themselves. Reads only; joins nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toc.cluster.holdings import held
from toc.cluster.membership import MEMBERS, member_of
from toc.cluster.zookeeper import ZooKeeper
from toc.domain.placement import identity_of
from toc.runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class Member:
    """A node as ZooKeeper has it. `slots` (by topic) and `shards`: number -> held since, in ms.

    Times: `joined_ms` by ZooKeeper's clock, the others by the node's own. `http`: its address, if any.
    """

    identity: str
    leads: bool
    joined_ms: int
    version: str = "?"
    http: str | None = None
    handles: Sequence[str] = ()
    slots: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    shards: Mapping[int, int] = field(default_factory=dict)
    moving: Sequence[int] | None = (
        None  # databases that it knows to be moving; None: it does not say
    )


def roster(settings: Settings) -> list[Member]:
    """The members in the order in which they joined, the leader first. Raises ClusterUnavailable."""
    zookeeper = ZooKeeper(settings, lambda: None)
    try:
        zookeeper.wait(settings.connect_timeout_s)
        names = sorted(zookeeper.children(MEMBERS), key=lambda name: name.rpartition("-")[2])
        found: dict[str, Member] = {}
        for name in names:
            child = zookeeper.get(f"{MEMBERS}/{name}")
            if child is not None:  # it may have left meanwhile
                member = _member(
                    identity_of(member_of(name)), not found, child.created_ms, child.data
                )
                found[member.identity] = member
        return list(found.values())
    finally:
        zookeeper.close()


def _member(identity: str, leads: bool, joined_ms: int, data: bytes) -> Member:
    try:
        text: Any = json.loads(data)
        return Member(
            identity,
            leads,
            joined_ms,
            str(text["version"]),
            text["http"],
            [str(name) for name in text["handles"]],
            {topic: held(holding) for topic, holding in text["slots"].items()},
            held(text["shards"]),
            [int(index) for index in text["moving"]] if "moving" in text else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError):  # of another release
        return Member(identity, leads, joined_ms)
