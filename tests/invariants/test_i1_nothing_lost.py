"""I1: what schedule() has returned ends as done, cancelled or dead, whatever dies."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import redis
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.invariants.conftest import MakeStack
from tests.invariants.harness import ROOT, TYPE, Stack
from tests.servers import Server
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.errors import StoreUnavailable

pytestmark = pytest.mark.invariant("I1")

NOW = timedelta()


def test_a_killed_workers_jobs_are_done_by_another(make_stack: MakeStack) -> None:
    stack = make_stack()
    first = stack.worker()
    jobs = stack.schedule(300, timedelta(seconds=1), sleep_s=0.2)
    first.wait_ready()
    wait_until(lambda: len(stack.ends) >= 40, "the first worker to be at it", 30)
    first.kill()
    cut = {line.job_id for line in stack.starts} - {line.job_id for line in stack.ends}
    assert cut, "nothing ran when the worker was killed: the test shows nothing"
    stack.worker()
    stack.wait_for({Status.DONE: 300})
    starts = Counter(line.job_id for line in stack.starts)
    assert starts.keys() == set(jobs)
    # Twice only what was in flight: what had been settled is never run again.
    assert sum(count - 1 for count in starts.values()) <= 32


def test_all_of_redis_is_wiped(make_stack: MakeStack, own_redis: Server) -> None:
    stack = make_stack(scanner={"grace_s": 600})  # the loader alone must bring them back
    stack.worker().wait_ready()
    stack.schedule(100, NOW, sleep_s=0.01)
    stack.schedule(200, timedelta(seconds=1.5), first=1000)
    wait_until(lambda: len(stack.starts) >= 20, "the worker to be at it")
    with redis.Redis.from_url(own_redis.url) as client:
        assert client.keys("*")
        client.flushall()
    stack.wait_for({Status.DONE: 300})
    assert len(stack.starts) == 300


def test_redis_is_away_and_comes_back_empty(make_stack: MakeStack, own_redis: Server) -> None:
    stack = make_stack(scanner={"grace_s": 600, "tick_s": 2})
    stack.worker().wait_ready()
    stack.schedule(50, timedelta(seconds=1))
    stack.schedule(50, timedelta(seconds=6), first=1000)
    own_redis.kill()
    # The client does not fail, and the scanner fires what is due.
    stack.schedule(20, timedelta(seconds=1), first=2000)
    late = stack.schedule(20, timedelta(seconds=7), first=3000)
    wait_until(lambda: len(stack.starts) >= 70, "the scanner to fire without Redis", 20)
    own_redis.start()
    stack.wait_for({Status.DONE: 140})
    assert len(stack.starts) == 140
    assert set(late) <= {line.job_id for line in stack.starts}


DYING_CLIENT = """
import json, os, sys
from datetime import timedelta
from toc.center.reminder_queue import ReminderQueue
from toc.center.center import TimeoutCenter
from toc.runtime.settings import Settings

ReminderQueue.arm_near_reminders = lambda *_: os._exit(9)  # after the commit, before the reminder
center = TimeoutCenter(Settings(**json.loads(sys.argv[1])))
center.schedule(42, timedelta(seconds=float(sys.argv[3])), biz_type=sys.argv[2])
"""


@pytest.mark.parametrize("net", ["loader", "scanner"])
def test_a_client_dies_right_after_its_commit(make_stack: MakeStack, net: str) -> None:
    nets: dict[str, dict[str, Any]] = {
        "loader": {"scanner": {"grace_s": 600}},
        "scanner": {"timer": {"load_tick_s": 60}, "scanner": {"grace_s": 0.2}},
    }
    stack = make_stack(**nets[net])
    stack.worker().wait_ready()
    arguments = [json.dumps(stack.plan), TYPE, "0.5"]
    status = subprocess.run(
        [sys.executable, "-c", DYING_CLIENT, *arguments], cwd=ROOT, check=False, timeout=60
    ).returncode
    assert status == 9
    stack.wait_for({Status.DONE: 1}, 30)  # the loader reads a shard at every thirtieth step


@contextmanager
def locked(stack: Stack) -> Iterator[None]:
    """No row can be written inside the block."""
    engine = create_engine(stack.plan["databases"][0], poolclass=NullPool)
    with engine.connect() as connection:
        names = ", ".join(f"toc_job_{shard:04d} READ" for shard in range(4))
        connection.execute(text(f"LOCK TABLES {names}"))
        try:
            yield
        finally:
            connection.execute(text("UNLOCK TABLES"))


def test_whether_a_job_is_near_is_decided_after_its_commit(make_stack: MakeStack) -> None:
    """A job that is far when schedule() is called, and near when it is committed.

    The loader that looked in between has not seen it and will not look back: its client must arm it.
    """
    stack = make_stack(timer={"horizon_s": 1, "slack_s": 1})
    stack.center.schedule(1, timedelta(days=1), biz_type=TYPE)  # connects
    slots = stack.center._open_connections().reminders
    assert slots is not None
    ids: list[int] = []

    def armed() -> int:
        return sum(depth[1] for depth in slots.read_slot_depths("default", range(4)))

    call = threading.Thread(
        target=lambda: ids.append(stack.center.schedule(2, timedelta(seconds=4), biz_type=TYPE))
    )
    with locked(stack):
        now_ms = slots.read_time_ms()
        call.start()
        wait_until(lambda: armed() or slots.read_time_ms() > now_ms + 2500)
        assert armed() == 0  # no reminder before there is a row: it would be taken for gone
        assert not ids
    call.join(20)
    assert armed() == 1


def test_mysql_is_killed_under_load(make_stack: MakeStack, own_mysql: Server) -> None:
    name = "toc_killed"
    engine = create_engine(own_mysql.url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    stack = make_stack(database=f"{own_mysql.url}/{name}")
    stack.worker().wait_ready()
    jobs: dict[int, int] = {}
    enough = threading.Event()

    def client() -> None:
        biz_id = 0
        while not enough.is_set():
            try:
                jobs[biz_id] = stack.center.schedule(
                    biz_id,
                    timedelta(milliseconds=200),
                    biz_type=TYPE,
                    attribute={"sleep_s": 0.02},
                    dedup_key="once",  # so that a call whose answer was lost can be repeated
                )
                biz_id += 1
            except StoreUnavailable:
                enough.wait(0.05)

    calling = threading.Thread(target=client)
    calling.start()
    wait_until(lambda: len(stack.starts) >= 50, "load")
    own_mysql.kill()
    before = len(jobs)
    own_mysql.start()
    wait_until(lambda: len(jobs) >= before + 50, "the client to go on", 40)
    enough.set()
    calling.join(20)

    def all_done() -> bool:
        return stack.statuses().keys() == {Status.DONE}

    wait_until(all_done, "every job to be done", 60)
    assert set(jobs.values()) <= {line.job_id for line in stack.starts}
    for job_id in list(jobs.values())[:: len(jobs) // 20]:
        assert stack.row(job_id).status is Status.DONE
