"""The oracle's judgement of a job that starts again after its handler has returned."""

from __future__ import annotations

import random

import pytest

from tests.simulation.kernel import Kernel, Process
from tests.simulation.oracle import SETTLE_S, Oracle, Terms, Violation
from toc.domain.job import Job, Status

JOB_ID, BIZ_TYPE = 7, "slow"
LEASE_END_S = 10.0


def starts_again_after(ended_s: float) -> None:
    """A run returns at `ended_s`; another node takes the job over 10 ms after the lease has ended.

    Raises Violation.
    """
    kernel, node = Kernel(random.Random(1)), Process("node-1")
    token = ""

    def row_of(job_id: int) -> tuple[int, str, int]:
        return int(Status.RUNNING), token, round((kernel.now_s + LEASE_END_S) * 1000)

    oracle = Oracle(kernel, {BIZ_TYPE: Terms(1.0, 4)}, 0.0, 1.0, row_of)

    def start(attempt: int) -> tuple[Job, float]:
        nonlocal token
        token, now_ms = f"node-{attempt}:1", round(kernel.now_s * 1000)
        job = Job(JOB_ID, 1, BIZ_TYPE, Status.RUNNING, 0, {}, 0, attempt, token)
        end_s = kernel.now_s + LEASE_END_S
        run = oracle.starts_now(job, now_ms, now_ms, lambda: end_s)
        if attempt == 1:
            kernel.wait(ended_s)
            oracle.succeeds(job, run)
        return job, end_s

    def work() -> None:
        _, end_s = start(1)
        kernel.wait(end_s + 0.01 - kernel.now_s)
        start(2)

    kernel.spawn(work, node)
    try:
        kernel.run(lambda: not kernel.tasks, 60)
    finally:
        kernel.close()


@pytest.mark.parametrize("before_s", [0.0, 0.005, SETTLE_S])
def test_who_returns_as_the_lease_ends_may_come_too_late_to_be_recorded(before_s: float) -> None:
    starts_again_after(LEASE_END_S - before_s)


@pytest.mark.parametrize("before_s", [SETTLE_S + 0.01, LEASE_END_S])
def test_who_returns_in_time_must_be_recorded(before_s: float) -> None:
    with pytest.raises(Violation, match=r"I2: .*was started again, and nobody was hurt"):
        starts_again_after(LEASE_END_S - before_s)
