"""A recurring schedule whose workers are killed again and again: one job for each nominal time, none left
out."""

from __future__ import annotations

from datetime import timedelta

import redis

from tests.deep import deep
from tests.invariants.conftest import MakeStack
from tests.invariants.harness import TYPE
from tests.servers import Server
from tests.worker.waiting import wait_until
from toc.domain.job import Status

NAME = "7"  # the journal reads business ids as numbers
KILLS = 4
RUNS_BETWEEN = 3


@deep
def test_workers_that_are_killed_leave_no_time_out_and_make_none_twice(
    make_stack: MakeStack, own_redis: Server
) -> None:
    stack = make_stack(worker={"recurring_check_s": 0.2})
    stack.center.recur(
        NAME, every=1, biz_type=TYPE, overlap="queue", catch_up=86_400, attribute={"sleep_s": 0.2}
    )
    for _ in range(KILLS):
        worker = stack.worker().wait_ready()
        seen = len(stack.starts)
        wait_until(lambda seen=seen: len(stack.starts) >= seen + RUNS_BETWEEN, "runs", 60)  # type: ignore[misc]
        worker.kill()
        with redis.Redis.from_url(own_redis.url) as client:
            client.flushall()
    stack.worker().wait_ready()
    seen = len(stack.ends)
    wait_until(lambda: len(stack.ends) >= seen + RUNS_BETWEEN, "runs after the last kill", 60)
    stack.center.recurring.pause(NAME)
    jobs = sorted(stack.center.find(NAME, limit=500), key=lambda job: job.dedup_key or "")
    made = [job for job in jobs if job.status is not Status.CANCELLED]  # by the pause
    times = [job.nominal_time for job in made]
    first = times[0]
    assert first is not None
    assert times == [first + number * timedelta(seconds=1) for number in range(len(times))]
    assert len(made) > KILLS * (RUNS_BETWEEN - 1)
    assert {job.status for job in made} <= {Status.DONE, Status.RUNNING}
    # Only what ran when its worker was killed has run twice.
    assert len(stack.starts) - len({line.job_id for line in stack.starts}) <= KILLS
