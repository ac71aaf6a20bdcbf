"""Servers and replicas that fail: no job is lost, and none is leased without its row saying so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.leases.conftest import MakeLeaseRig
from tests.leases.rig import TYPE, LeaseRig
from tests.servers.endpoint import Endpoint
from tests.worker.rig import Outage
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.domain.pull_types import topic_of_pull_type
from toc.leases.waiter import LeasedJob

REPLICA = """
import asyncio, sys
from toc.node.lease_node import LeaseNode
from toc.runtime.settings import load_settings

node = LeaseNode(load_settings())
node.start()

async def serve() -> None:
    calls = [node.server.lease(["order.close"], 5, 60) for _ in range(20)]
    print("waiting", flush=True)
    for call in asyncio.as_completed(calls):
        for job in await call:
            print(job.job_id, job.token, flush=True)

asyncio.run(serve())
"""


def drain(rig: LeaseRig, server: Any, count: int) -> set[int]:
    """Leases and finishes jobs until `count` different ones are done."""
    done: set[int] = set()

    def lease_some() -> bool:
        jobs = rig.lease(server, 100, wait_s=1)
        if jobs:
            outcomes = rig.settle(server.finish, *jobs)
            done.update(
                job.job_id
                for job, outcome in zip(jobs, outcomes, strict=True)
                if outcome == "settled"
            )
        return len(done) >= count

    wait_until(lease_some, f"{count} jobs to be done", 100)
    return done


def test_a_killed_replica_loses_no_job(make_rig: MakeLeaseRig, tmp_path: Path) -> None:
    rig = make_rig()
    rig.declare(timeout_s=2)  # the leases of the consumers that die with it end soon
    script = tmp_path / "replica.py"
    script.write_text(REPLICA)
    settings = rig.settings
    variables = {
        "TOC_DATABASES": ",".join(settings.databases), "TOC_REDIS_URL": str(settings.redis_url),
        "TOC_NAMESPACE": settings.namespace, "TOC_SHARDS": str(settings.shards),
        "TOC_TIMER__STAY_S": "2",
    }  # fmt: skip
    child = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True,
        env=os.environ | variables, start_new_session=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        job_ids = [
            *rig.schedule(30),
            *rig.schedule(30, first=31, action_time=timedelta(seconds=1)),
        ]
        child.stdout.readline()  # at least one is leased; others are popped, or not due yet
        os.killpg(child.pid, signal.SIGKILL)
    finally:
        child.kill()
        child.communicate()
    server = rig.replica()
    assert drain(rig, server, 60) == set(job_ids)
    assert set(rig.statuses(job_ids)) == {Status.DONE}


def test_redis_loses_everything(make_rig: MakeLeaseRig, redis_server: Endpoint) -> None:
    rig = make_rig()
    rig.declare()
    server = rig.replica()
    job_ids = rig.schedule(20, action_time=timedelta(seconds=2))
    client = redis.Redis.from_url(redis_server.url)
    try:
        keys = list(client.scan_iter(match=f"*{rig.settings.namespace}:pull:*"))
        assert keys
        client.delete(*keys)
    finally:
        client.close()
    assert drain(rig, server, 20) == set(job_ids)


def test_without_redis_the_scanner_finds_the_jobs(make_rig: MakeLeaseRig) -> None:
    rig = make_rig(redis_url="none")
    rig.declare()
    server = rig.replica()
    job_ids = rig.schedule(5)
    (lost,) = rig.lease(server, lease_s=1)
    assert drain(rig, server, 5) == set(job_ids)
    assert rig.row(lost.job_id).attempts == 2


def test_a_row_without_a_reminder_is_found_by_the_scanner(make_rig: MakeLeaseRig) -> None:
    rig = make_rig(scanner={"grace_s": 0.5, "tick_s": 0.2}, timer={"horizon_s": 10})
    rig.declare()
    server = rig.replica()
    (job_id,) = rig.schedule(action_time=timedelta(seconds=1))
    reminders, topic = rig.node_of(server).reminders, topic_of_pull_type(TYPE)
    assert reminders is not None

    def is_loaded() -> bool:
        marks = reminders.read_marks(topic, [rig.shard(job_id)])[rig.shard(job_id)]
        return marks.by_shard.get(rig.shard(job_id), "").endswith(f" {job_id}")

    wait_until(is_loaded, "the loader")  # it does not load the row again
    reminders.ack(topic, [job_id])
    (job,) = rig.lease(server)
    assert job.job_id == job_id


def test_a_claim_whose_answer_is_lost_is_given_back(
    rig: LeaseRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = rig.replica(), rig.replica()
    claims, database = one._context.claims, rig.node_of(one).databases[0]
    claim, outage = claims.claim_for_consumers, Outage(database)

    def claim_and_lose_the_answer(*arguments: Any) -> Any:
        claim(*arguments)
        outage.begin()
        monkeypatch.setattr(claims, "claim_for_consumers", claim)
        return database.now_ms()  # raises StoreUnavailable

    monkeypatch.setattr(claims, "claim_for_consumers", claim_and_lose_the_answer)
    call = rig.waits(one)
    (job_id,) = rig.schedule()
    wait_until(lambda: outage.refused, "the outage")
    assert rig.row(job_id).status is Status.RUNNING  # claimed, and no consumer has it
    outage.end()
    wait_until(lambda: rig.row(job_id).status is Status.PENDING or call.done(), "the give-back")
    other = rig.waits(two)
    wait_until(lambda: call.done() or other.done(), "a lease", 60)
    (job,) = (call if call.done() else other).result(0)
    assert (job.job_id, job.attempt) == (job_id, 1)
    for waiting in (call, other):
        waiting.cancel()


def test_a_database_that_is_away_holds_up_no_other(
    make_rig: MakeLeaseRig, mysql_database: str, tmp_path: Path
) -> None:
    urls = [f"sqlite:///{tmp_path}/toc_{index}.db" for index in range(2)]
    rig = make_rig(urls=urls)
    rig.declare()
    server = rig.replica()
    job_ids = rig.schedule(40)
    databases = {
        job_id: rig.settings.routing.database_index(rig.shard(job_id)) for job_id in job_ids
    }
    outage = Outage(rig.node_of(server).databases[0])
    outage.begin()
    there = {job_id for job_id in job_ids if databases[job_id] == 1}
    leased = rig.lease(server, 100, lease_s=60)
    got: list[LeasedJob] = [*leased]
    while {job.job_id for job in got} != there:
        got += rig.lease(server, 100, lease_s=60)
    outcomes = rig.settle(server.finish, *got)
    assert set(outcomes) == {"settled"}
    outage.end()
    assert drain(rig, server, len(job_ids) - len(there)) == set(job_ids) - there


def test_leases_of_a_database_that_is_away_are_unavailable(rig: LeaseRig) -> None:
    server = rig.replica()
    (job_id,) = rig.schedule()
    (job,) = rig.lease(server)
    outage = Outage(rig.node_of(server).databases[0])
    outage.begin()
    assert rig.settle(server.finish, job) == ["unavailable"]
    outage.end()
    assert rig.settle(server.finish, job) == ["settled"]
    assert rig.row(job_id).status is Status.DONE
    assert job.biz_type == TYPE
