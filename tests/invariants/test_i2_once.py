"""I2: a handler runs again only after a failure; never because two workers saw the same job."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from tests.invariants.conftest import MakeStack
from tests.invariants.harness import TYPE
from tests.worker.waiting import wait_until
from toc.domain.job import Status

pytestmark = pytest.mark.invariant("I2")

JOBS = 1000
HEALTHY = {TYPE: {"timeout": 60}}  # no lease ends, however slow the machine is


@pytest.mark.parametrize("due", ["spread", "at_once"])
def test_two_workers_and_two_engines_start_each_job_once(make_stack: MakeStack, due: str) -> None:
    # Both processes own every slot and every shard, and the scanner waits for no timer.
    stack = make_stack(scanner={"grace_s": 0, "tick_s": 0.05})
    workers = [stack.worker(HEALTHY), stack.worker(HEALTHY)]
    for worker in workers:
        worker.wait_ready()
    jobs: list[int] = []
    for n in range(10 if due == "spread" else 1):
        count = JOBS // 10 if due == "spread" else JOBS
        jobs += stack.schedule(count, timedelta(milliseconds=500 + 100 * n), first=n * count)
    stack.wait_for({Status.DONE: JOBS})
    starts = Counter(line.job_id for line in stack.starts)
    assert starts == Counter(jobs)
    assert {line.attempt for line in stack.starts} == {1}
    # The test shows something only if both took part.
    assert {line.pid for line in stack.starts} == {worker.pid for worker in workers}


def test_every_reminder_twice_starts_each_job_once(make_stack: MakeStack) -> None:
    stack = make_stack(scanner={"grace_s": 600})
    workers = [stack.worker(HEALTHY).wait_ready() for _ in range(2)]
    jobs = stack.schedule(100, timedelta(milliseconds=300), sleep_s=0.02)
    slots = stack.center._open_connections().reminders
    assert slots is not None
    # As after a wipe, or a stay that is over while the handler runs: all is announced again.
    for _ in range(4):
        slots.delete_marks("default", range(4))
        seen = len(stack.starts)
        wait_until(lambda seen=seen: len(stack.starts) > seen or len(stack.ends) == 100)  # type: ignore[misc]
    stack.wait_for({Status.DONE: 100})
    assert Counter(line.job_id for line in stack.starts) == Counter(jobs)
    assert not any(worker.ended for worker in workers)
