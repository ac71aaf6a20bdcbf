"""Finds the part that was at its limit while workers drained."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from redis.cluster import RedisCluster

from toc.bench.common import WorkerProcesses
from toc.bench.processor_time import machine_cpu_s
from toc.timer.lua_scripts import Client

BUSY = 0.85  # of a part's capacity: from here on it counts as the limit


class Utilisation(NamedTuple):
    """How busy each part was, from 0 to 1. `machine`: all processors of this machine; None: not known."""

    worker: float  # the busiest process, of the one processor that Python uses
    redis: float  # the busiest node, of its one thread
    machine: float | None


class UtilisationMeter:
    """Reads the clocks of all parts when it is made, and again at `stop`."""

    def __init__(self, client: Client, workers: WorkerProcesses) -> None:
        self._client, self._workers = client, workers
        self._before = self._read_cpu_clocks()

    def stop(self) -> Utilisation:
        """Returns how busy each part was, from 0 to 1, since this meter was made."""
        at_s, workers, redis, machine = self._read_cpu_clocks()
        at_0, workers_0, redis_0, machine_0 = self._before
        passed_s = max(at_s - at_0, 1e-6)
        share = None
        if machine is not None and machine_0 is not None:
            share = (machine - machine_0) / passed_s / (os.cpu_count() or 1)
        return Utilisation(
            max(now - then for now, then in zip(workers, workers_0, strict=True)) / passed_s,
            max(redis[name] - redis_0.get(name, 0.0) for name in redis) / passed_s,
            share,
        )

    def _read_cpu_clocks(self) -> tuple[float, list[float], dict[str, float], float | None]:
        return (
            time.monotonic(),
            self._workers.read_cpu_s(),
            _redis_cpu_s(self._client),
            machine_cpu_s(),
        )


def describe_bottleneck(use: Utilisation) -> str:
    """The bottleneck in words, with a remedy. The databases are named if no other part is busy: their
    CPU use cannot be read here.
    """
    if use.worker >= BUSY:
        return f"the worker's Python ({use.worker:.0%} of a processor): more workers"
    if use.redis >= BUSY:
        return f"Redis ({use.redis:.0%} of its thread): a Redis Cluster"
    if use.machine is not None and use.machine >= BUSY:
        return f"this machine ({use.machine:.0%} of its processors): the servers elsewhere, or more of it"
    return (
        f"the databases: workers wait for them, {1 - use.worker:.0%} of the time "
        "(faster commits, more databases)"
    )


def _redis_cpu_s(client: Client) -> dict[str, float]:
    """CPU seconds so far, by node."""
    cluster = isinstance(client, RedisCluster)
    where = {"target_nodes": RedisCluster.PRIMARIES} if cluster else {}
    info: dict[str, Any] = client.info("cpu", **where)
    nodes = {"": info} if "used_cpu_user" in info else info
    return {
        name: float(node["used_cpu_user"]) + float(node["used_cpu_sys"])
        for name, node in nodes.items()
    }
