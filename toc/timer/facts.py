"""What a server says of itself, and why it may be unfit to hold reminders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

VERSION_MIN = (6, 2)
KEEPS_ALL = "noeviction"


def of_nodes(infos: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Of INFO from each node: the oldest version, and the first eviction policy that is wrong."""
    policies = {str(info["maxmemory_policy"]) for info in infos}
    return {
        "version": min((str(info["redis_version"]) for info in infos), key=version),
        "maxmemory_policy": min(policies - {KEEPS_ALL}, default=KEEPS_ALL),
    }


def unfit(facts: Mapping[str, str]) -> str:
    """Why such a server cannot hold reminders safely; '' if it can."""
    if version(facts["version"]) < VERSION_MIN:
        return f"Redis is {facts['version']}, toc needs 6.2 or later"
    policy = facts["maxmemory_policy"]
    if policy != KEEPS_ALL:
        return (
            f"Redis' maxmemory-policy is {policy}: it must be {KEEPS_ALL}, "
            "else Redis throws reminders away and keeps the marks that say they are there"
        )
    return ""


def version(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
