"""Run: how a claimed job knows the time."""

from __future__ import annotations

import pytest

from toc.domain.job import Job, Status
from toc.domain.run_control import RunControl
from toc.handlers.registry import HandlerSpec
from toc.worker.job_run import JobRun

CLAIMED_MS = 1_795_000_000_000
ASKED_S, ANSWERED_S = 100.0, 104.0  # the claim waited for a lock


def run_of(action_ms: int = CLAIMED_MS) -> JobRun:
    job = Job(7, 42, "a", Status.RUNNING, action_ms, {}, CLAIMED_MS + 60_000, 1, "one")
    spec = HandlerSpec("a", print, 30.0, 3)
    return JobRun(
        job, spec, "default", 0, "one", CLAIMED_MS, 160.0, ASKED_S, ANSWERED_S, RunControl(0)
    )


@pytest.mark.parametrize("since_s", [0.0, 0.0004, 4.0, 4.0006, 30.0])
def test_the_time_is_not_behind_the_databases(since_s: float) -> None:
    """The database read its clock, cut it to milliseconds, and only then waited."""
    read_ms = CLAIMED_MS + 0.999
    found_ms = run_of().database_now_ms(ASKED_S + since_s)
    assert 0 <= found_ms - (read_ms + since_s * 1000) < 2


def test_lateness_counts_what_the_claim_took() -> None:
    assert run_of(CLAIMED_MS - 250).lateness_s(ANSWERED_S) == pytest.approx(4.25)
    assert run_of(CLAIMED_MS + 9_000).lateness_s(ANSWERED_S) == 0


@pytest.mark.invariant("I3")
def test_a_machine_that_stood_still_has_lost_its_lease() -> None:
    """Its monotonic clock went on where it was; its own clock has been set."""
    run = run_of()
    run.asked_wall_ms = 5_000_000
    assert run.lease_left_s(ASKED_S + 4, 5_004_000) == pytest.approx(56)
    assert run.lease_left_s(ASKED_S + 4, 5_064_000) < 0
    # A clock that is set back gives no lease longer life.
    assert run.lease_left_s(ASKED_S + 4, 1_000_000) == pytest.approx(56)
