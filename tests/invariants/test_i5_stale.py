"""I5: a worker that lost its lease changes nothing any more."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.invariants.conftest import MakeStack
from tests.invariants.harness import TYPE
from tests.worker.waiting import wait_until
from toc.domain.job import Status

pytestmark = pytest.mark.invariant("I5")


@pytest.mark.parametrize("late", ["returns", "raises"])
@pytest.mark.parametrize("other", ["has finished", "still runs"])
def test_the_outcome_of_a_worker_that_stood_still_is_refused(
    make_stack: MakeStack, tmp_path: Path, late: str, other: str
) -> None:
    stack = make_stack()
    gates = [tmp_path / "first", tmp_path / "second"]
    stale = stack.worker({TYPE: {"timeout": 1, "retry": [0], "max_attempts": 2}}).wait_ready()
    wants = {"gates": [str(gate) for gate in gates], "fail": 1 if late == "raises" else 0}
    job_id = stack.center.schedule(1, timedelta(), biz_type=TYPE, attribute=wants)
    wait_until(lambda: stack.starts_of(job_id), "the handler to start")
    stale.freeze()

    fresh = stack.worker({TYPE: {"timeout": 60, "max_attempts": 2}})
    wait_until(lambda: len(stack.starts_of(job_id)) == 2, "another to take the job over", 40)
    assert stack.starts_of(job_id)[1].pid == fresh.pid
    if other == "has finished":
        gates[1].touch()
        wait_until(lambda: stack.row(job_id).status is Status.DONE, "the other to finish")
    before = stack.row(job_id)
    assert before.attempts == 2

    gates[0].touch()
    stale.thaw()
    wait_until(lambda: any(load.refused for load in stack.loads(stale)), "the late outcome")
    assert stack.row(job_id) == before
    assert "came too late: refused" in stale.log.read_text()

    gates[1].touch()
    stack.wait_for({Status.DONE: 1})
    assert stack.row(job_id).attempts == 2
    assert stack.row(job_id).token == before.token
    assert len(stack.starts_of(job_id)) == 2
    assert stack.center.dead() == []
