"""Reads a Redis server's INFO, and says why it may be unfit to hold reminders."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

VERSION_MIN = (6, 2)
NO_EVICTION = "noeviction"


def summarize_node_infos(infos: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """From the INFO of each node: the oldest version, and the first wrong eviction policy, if any."""
    policies = {str(info["maxmemory_policy"]) for info in infos}
    return {
        "version": min((str(info["redis_version"]) for info in infos), key=parse_redis_version),
        "maxmemory_policy": min(policies - {NO_EVICTION}, default=NO_EVICTION),
    }


def why_unfit_for_reminders(facts: Mapping[str, str]) -> str:
    """Why a server with these facts cannot hold reminders safely; '' if it can."""
    if parse_redis_version(facts["version"]) < VERSION_MIN:
        return f"Redis is {facts['version']}, toc needs 6.2 or later"
    policy = facts["maxmemory_policy"]
    if policy != NO_EVICTION:
        return (
            f"Redis' maxmemory-policy is {policy}: it must be {NO_EVICTION}, "
            "else Redis deletes reminders and keeps the marks that say that these reminders are there"
        )
    return ""


def parse_redis_version(text: str) -> tuple[int, int]:
    """The first "MAJOR.MINOR" in a text; (0, 0) if there is none."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)
