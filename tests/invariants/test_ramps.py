"""Ramps and limits over several processes whose Redis is wiped, and whose workers are killed (ADR 44, 45).

The bound of a ramp is cumulative here: so many claims since the end of the pause, by the database's clock. A
busy machine only makes it easier to keep. tests/limits/test_ramp_starts.py has the bound of every window.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from tests.invariants.conftest import MakeStack
from tests.invariants.harness import SHARDS, TYPE, Stack
from tests.servers import Server
from tests.worker.waiting import wait_until
from toc.domain.declared_type import DeclaredType
from toc.domain.job import Status
from toc.leases.settlement import LeaseItem
from toc.limits.ramp_starts import BURST_S
from toc.node.lease_node import LeaseNode
from toc.runtime.settings import Settings
from toc.store.declared_types import DeclaredTypes

pytestmark = pytest.mark.timeout(240)

PULLED = "order.pull"
NOW = timedelta()
RATE = 40
SLOW: dict[str, Any] = {"pauses": {"ramp_rate_min": RATE, "ramp_step_s": 600}}
"""No peak was measured, so that the ramp allows RATE jobs a second for an hour."""


def declare(stack: Stack, biz_type: str, **fields: Any) -> None:
    state = stack.center._open_connections()
    types = DeclaredTypes(state.databases, state.database_metadata.types, 100)
    types.change(biz_type, lambda _: DeclaredType.from_fields(biz_type, fields), "ann")


def read_ms(stack: Stack, column: str) -> list[int]:
    """A time of each job in ms since 1970, by the database's clock, in order."""
    texts = [
        str(value)
        for shard in range(SHARDS)
        for (value,) in stack.sql(
            f"SELECT CAST({column} AS CHAR) FROM toc_job_{shard:04d} WHERE {column} IS NOT NULL"
        )
    ]
    times = [datetime.fromisoformat(text).replace(tzinfo=UTC) for text in texts]
    return sorted(round(time.timestamp() * 1000) for time in times)


def check_claims(stack: Stack, until_ms: int, jobs: int) -> None:
    """Never more claims than burst + rate x time since the end of the pause."""
    claimed_ms = read_ms(stack, "claim_time")
    assert len(claimed_ms) == jobs
    for number, at_ms in enumerate(claimed_ms, start=1):
        assert number <= RATE * BURST_S + RATE * (at_ms - until_ms) / 1000 + 1


def test_redis_is_wiped_during_a_ramp(make_stack: MakeStack, own_redis: Server) -> None:
    jobs = 120
    stack = make_stack(**SLOW)
    stack.center.pause(TYPE)
    stack.worker().wait_ready()
    ids = stack.schedule(jobs, NOW)
    until_ms = stack.center.resume(TYPE).until_ms
    assert until_ms is not None
    for seen in (jobs // 4, jobs // 2):
        wait_until(lambda seen=seen: len(stack.starts) >= seen, "jobs to run", 60)  # type: ignore[misc]
        with redis.Redis.from_url(own_redis.url) as client:
            client.flushall()
    stack.wait_for({Status.DONE: jobs}, 100)
    assert {line.job_id for line in stack.starts} == set(ids)
    assert len(stack.starts) == jobs
    check_claims(stack, until_ms, jobs)


class Consumer(threading.Thread):
    """Leases and finishes jobs in a lease server, until it has finished `wanted` jobs."""

    def __init__(self, node: LeaseNode, wanted: int) -> None:
        super().__init__(daemon=True)
        self._node, self._wanted = node, wanted
        self.finished = 0

    def run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        server = self._node.server
        while self.finished < self._wanted:
            jobs = await server.lease([PULLED], 50, 5.0)
            if jobs:
                await server.finish([LeaseItem(job.job_id, job.token) for job in jobs])
                self.finished += len(jobs)


@contextmanager
def lease_node(stack: Stack) -> Iterator[LeaseNode]:
    node = LeaseNode(Settings(**stack.plan))
    node.start()
    try:
        yield node
    finally:
        node.stop()


def test_two_workers_and_a_lease_server_take_one_ramp_together(make_stack: MakeStack) -> None:
    jobs = 60
    stack = make_stack(**SLOW)
    declare(stack, PULLED, mode="pull", timeout_s=60, retry=[0])
    stack.center.pause(everything=True)
    workers = [stack.worker() for _ in range(2)]
    with lease_node(stack) as node:
        for worker in workers:
            worker.wait_ready()
        consumer = Consumer(node, jobs)
        consumer.start()
        stack.schedule(jobs, NOW)
        stack.center.schedule_many(
            [{"biz_id": n, "action_time": NOW} for n in range(jobs)], biz_type=PULLED
        )
        until_ms = stack.center.resume(everything=True).until_ms
        assert until_ms is not None
        stack.wait_for({Status.DONE: 2 * jobs}, 100)
        consumer.join(60)
        assert consumer.finished == jobs
    check_claims(stack, until_ms, 2 * jobs)


def test_the_places_of_a_killed_worker_come_back_with_its_leases(make_stack: MakeStack) -> None:
    at_once, others, lease_s = 2, 6, 6
    types = {TYPE: {"timeout": 60, "retry": [0]}}
    stack = make_stack(worker={"lease_s": lease_s})
    declare(stack, TYPE, concurrency=at_once)
    victim, other = stack.worker(types), stack.worker(types)
    for worker in (victim, other):
        worker.wait_ready()
    other.freeze()  # so that the victim takes both places, and the other one is there at once
    never = str(stack.directory / "never")
    stack.schedule(at_once, NOW, gates=[never, ""])  # the first attempt does not end
    wait_until(lambda: len(stack.starts) == at_once, "the places to be held", 60)
    victim.kill()
    due_ms = read_ms(stack, "action_time")[0]
    stack.schedule(others, NOW, first=at_once, sleep_s=0.05)
    other.thaw()
    stack.wait_for({Status.DONE: at_once + others}, 100)
    starts = [line for line in stack.starts if line.pid == other.pid]
    assert len(starts) == at_once + others
    # The holds and the leases of the dead were given after its jobs were due, for so long.
    assert starts[0].wall_ns // 1_000_000 >= due_ms + 1000 * lease_s
    assert most_at_once(stack, other.pid) <= at_once


def most_at_once(stack: Stack, pid: int) -> int:
    """How many handlers ran at once in a process; the journal's lines are in the order of events."""
    now = most = 0
    for words in stack.words():
        if words[0] in ("start", "end") and int(words[-1]) == pid:
            now += 1 if words[0] == "start" else -1
            most = max(most, now)
    return most
