"""The state of one Redis server, by its own INFO, for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toc.runtime.server_clock import ClockOffset

REPLICAS_MAX = 100  # replicas whose lag is looked at


@dataclass(frozen=True, slots=True)
class RedisNodeState:
    """A server that holds keys. error: why it does not answer; then all else is unknown.

    max_bytes: None: its memory has no limit. lag_s: of the replica that is furthest behind; None: it has
    none.
    """

    name: str
    version: str = ""
    role: str = ""
    used_bytes: int = 0
    max_bytes: int | None = None
    replicas: int = 0
    lag_s: float | None = None
    clock: ClockOffset | None = None
    error: str = ""


def make_node_state(
    name: str, info: Any, time: Any, asked_s: float, answered_s: float
) -> RedisNodeState:
    """From the answers to INFO and TIME, or the errors in their place."""
    for answer in (info, time):
        if isinstance(answer, Exception):
            return RedisNodeState(name, error=str(answer))
    if info is None:
        return RedisNodeState(name, error="it has left the cluster")
    time_ms = int(time[0]) * 1000 + int(time[1]) // 1000
    return RedisNodeState(
        name,
        str(info["redis_version"]),
        str(info["role"]),
        int(info["used_memory"]),
        int(info["maxmemory"]) or None,
        int(info.get("connected_slaves", 0)),
        max(_replica_lags_s(info), default=None),
        ClockOffset.from_answer(time_ms, asked_s, answered_s),
    )


def _replica_lags_s(info: Any) -> list[float]:
    replicas = [info.get(f"slave{number}") for number in range(REPLICAS_MAX)]
    return [float(each["lag"]) for each in replicas if isinstance(each, dict) and "lag" in each]
