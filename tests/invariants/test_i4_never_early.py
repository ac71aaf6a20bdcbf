"""I4: no handler starts before its time, by the servers' clocks, whatever other clocks say.

The servers run on this machine, so its clock is theirs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.invariants.app import OffClock
from tests.invariants.conftest import MakeStack
from tests.invariants.harness import ROOT, TYPE
from tests.reliability.steps import Steps
from tests.servers import Server
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.domain.times import EPOCH

pytestmark = pytest.mark.invariant("I4")

HOUR_MS = 3_600_000
LATE_S_MAX = 30  # nobody's hour


def us_of(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


@pytest.mark.parametrize("engine", ["timer", "scanner"])
def test_fractions_of_a_millisecond_are_waited_for(make_stack: MakeStack, engine: str) -> None:
    stack = make_stack(
        scanner={"tick_s": 0.05}, **({} if engine == "timer" else {"redis_url": "none"})
    )
    stack.worker().wait_ready()
    first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=2)
    due = {n: first + timedelta(milliseconds=5 * n, microseconds=1 + 9 * n) for n in range(100)}
    for n, when in due.items():
        job = stack.center.get(stack.center.schedule(n, when, biz_type=TYPE))
        assert job is not None
        assert timedelta() <= job.action_time - when < timedelta(milliseconds=1)  # rounded up
    stack.wait_for({Status.DONE: 100})
    early = [line.biz_id for line in stack.starts if line.wall_ns < us_of(due[line.biz_id]) * 1000]
    assert early == []
    assert len(stack.starts) == 100


def test_a_reminder_of_an_older_time_starts_nothing(make_stack: MakeStack) -> None:
    stack = make_stack()
    stack.worker().wait_ready()
    jobs = stack.schedule(20, timedelta(seconds=0.6))
    later = datetime.now(UTC) + timedelta(seconds=2)
    # On a slow machine some are due before their turn comes.
    moved = {job_id for job_id in jobs if stack.center.reschedule(job_id, later) == "rescheduled"}
    assert moved
    stack.wait_for({Status.DONE: 20})
    started_ns = [line.wall_ns for line in stack.starts if line.job_id in moved]
    assert min(started_ns) >= us_of(later) * 1000


@pytest.mark.parametrize("wrong_by_ms", [-HOUR_MS, HOUR_MS])
def test_the_clocks_of_clients_and_workers_do_not_matter(
    make_stack: MakeStack, wrong_by_ms: int
) -> None:
    stack = make_stack()
    stack.worker(wrong_by_ms=wrong_by_ms).wait_ready()
    client = stack.client(OffClock(wrong_by_ms))
    due: dict[int, int] = {}
    for n in range(10):
        due[n] = time.time_ns() // 1000 + 1_000_000  # the client's "now" is not before this one
        client.schedule(n, timedelta(seconds=1), biz_type=TYPE)
        moment = datetime.now(UTC) + timedelta(seconds=1)
        due[100 + n] = us_of(moment)
        client.schedule(100 + n, moment, biz_type=TYPE, attribute={"fail": 1})
    stack.wait_for({Status.DONE: 20}, LATE_S_MAX)
    assert len(stack.starts) == 30
    for line in stack.starts:
        late_s = line.wall_ns / 1e9 - due[line.biz_id] / 1e6
        # A timedelta counts from the server's time as last heard: half a round trip is its error.
        assert -0.1 <= late_s <= LATE_S_MAX if line.biz_id < 100 else 0 <= late_s <= LATE_S_MAX


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_the_clock_of_redis_does_not_matter(
    make_stack: MakeStack, own_redis: Server, tmp_path: Path, ahead_s: int
) -> None:
    """A Redis that is an hour ahead would pop at once all that is due within the hour."""
    own_redis.stop()
    Steps(tmp_path / "redis.step", ahead_s).put_on(own_redis)
    own_redis.start()
    stack = make_stack()
    stack.worker().wait_ready()
    first = datetime.now(UTC) + timedelta(seconds=1)
    due = {n: first + timedelta(milliseconds=100 * n) for n in range(20)}
    for n, when in due.items():
        stack.center.schedule(n, when, biz_type=TYPE)
    stack.wait_for({Status.DONE: 20}, LATE_S_MAX)
    early = [line.biz_id for line in stack.starts if line.wall_ns < us_of(due[line.biz_id]) * 1000]
    assert early == []
    assert len(stack.starts) == 20


CLIENT = """
import json, sys
from datetime import timedelta
from toc.center.center import TimeoutCenter
from toc.runtime.settings import Settings

with TimeoutCenter(Settings(**json.loads(sys.argv[1]))) as center:
    print(center.schedule(42, timedelta(seconds=1), biz_type=sys.argv[2]))
"""


@pytest.mark.parametrize("ahead_s", [-3600, 3600])
def test_a_client_on_a_machine_with_a_wrong_clock(
    make_stack: MakeStack, tmp_path: Path, ahead_s: int
) -> None:
    stack = make_stack()
    stack.worker().wait_ready()
    began_s = time.time()
    subprocess.run(
        [sys.executable, "-c", CLIENT, json.dumps(stack.plan), TYPE],
        cwd=ROOT,
        env=os.environ | Steps(tmp_path / "client.step", ahead_s).environment,
        check=True,
        timeout=60,
        stdout=subprocess.DEVNULL,
    )
    stack.wait_for({Status.DONE: 1}, LATE_S_MAX)
    (start,) = stack.starts
    assert began_s + 0.9 <= start.wall_ns / 1e9 <= began_s + LATE_S_MAX


def test_a_lying_client_still_arms_what_is_near(make_stack: MakeStack) -> None:
    """By a clock that is an hour slow a near job would look far, and nobody would remind of it."""
    stack = make_stack(scanner={"grace_s": 600}, timer={"load_tick_s": 60})
    stack.worker().wait_ready()
    client = stack.client(OffClock(-HOUR_MS))
    client.schedule(1, datetime.now(UTC) + timedelta(seconds=1), biz_type=TYPE)
    wait_until(lambda: stack.starts, "the timer to fire", LATE_S_MAX)
