"""I8: overload makes jobs late, not the process big."""

from __future__ import annotations

from datetime import timedelta

import pytest
from prometheus_client import REGISTRY

from tests.invariants.conftest import MakeStack
from tests.invariants.harness import TYPE
from tests.servers.process import free_port
from tests.worker.waiting import wait_until
from toc.domain.job import Status

pytestmark = pytest.mark.invariant("I8")

JOBS, QUEUE_MAX, THREADS = 5000, 48, 16
GROWTH_KB_MAX = 48 * 1024


def test_five_thousand_due_jobs_stay_outside_the_process(make_stack: MakeStack) -> None:
    stack = make_stack(
        # Two engines feed it, and nothing that is out comes back meanwhile.
        timer={"stay_s": 600},
        scanner={"grace_s": 0, "tick_s": 0.05},
        worker={"queue_max": QUEUE_MAX, "concurrency": THREADS},
    )
    stack.schedule(JOBS, timedelta(), sleep_s=0.01)
    worker = stack.worker({TYPE: {"timeout": 60}})
    slots = stack.center._open_connections().reminders
    assert slots is not None
    out_most = 0

    def all_done() -> bool:
        nonlocal out_most
        out_most = max(
            out_most, sum(depth[2] for depth in slots.read_slot_depths("default", range(4)))
        )
        return stack.statuses() == {Status.DONE: JOBS}

    wait_until(all_done, "all jobs to be done", 90)
    assert len(stack.starts) == JOBS
    loads = stack.loads(worker)
    busy = [load for load in loads if load.in_flight]
    assert len(busy) >= 5
    assert max(load.in_flight for load in loads) <= QUEUE_MAX
    assert max(load.waiting for load in loads) <= QUEUE_MAX
    assert max(load.unsettled for load in loads) <= QUEUE_MAX
    # What a pop takes and finds claimed by the other engine already is out as well, for a moment.
    assert out_most <= 3 * QUEUE_MAX
    early = busy[len(busy) // 4]
    assert loads[-1].peak_kb - early.peak_kb < GROWTH_KB_MAX
    running = most = 0
    for words in stack.words():
        running += (words[0] == "start") - (words[0] == "end")
        most = max(most, running)
    assert most <= THREADS


def count(name: str) -> float:
    return REGISTRY.get_sample_value(name) or 0.0


def test_reminders_that_cannot_be_kept_are_counted(make_stack: MakeStack) -> None:
    kept_max = 10
    stack = make_stack(
        redis_url=f"redis://127.0.0.1:{free_port()}/0", timer={"arm_retries_max": kept_max}
    )
    failed, dropped = count("toc_arms_failed_total"), count("toc_arms_dropped_total")
    for n in range(25):
        stack.center.schedule(n, timedelta(seconds=1), biz_type=TYPE)
    arms = stack.center._open_connections().reminder_queue
    assert arms is not None
    assert sum(map(len, arms._kept.values())) == kept_max
    assert count("toc_arms_failed_total") == failed + 25
    assert count("toc_arms_dropped_total") == dropped + 15
    assert stack.statuses() == {Status.PENDING: 25}  # none is lost: the database has them
