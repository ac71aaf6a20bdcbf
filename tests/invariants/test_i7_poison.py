"""I7: what kills its worker each time ends dead, visible and re-drivable, and alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from tests.invariants.conftest import MakeStack
from tests.invariants.harness import TYPE, Stack
from tests.worker.waiting import wait_until
from toc.domain.job import Status

pytestmark = pytest.mark.invariant("I7")

TERMS = {TYPE: {"timeout": 1, "max_attempts": 3, "retry": [0]}}
INNOCENTS = 50


@contextmanager
def supervised(stack: Stack) -> Iterator[list[int]]:
    """A worker that is started again whenever it has died; the ids of all its processes."""
    stop, pids = threading.Event(), []

    def supervise() -> None:
        while not stop.is_set():
            worker = stack.worker(TERMS)
            pids.append(worker.pid)
            while not worker.ended and not stop.wait(0.05):
                pass
        worker.kill()

    thread = threading.Thread(target=supervise)
    thread.start()
    try:
        yield pids
    finally:
        stop.set()
        thread.join(20)


def test_a_job_that_kills_its_worker_dies_alone(make_stack: MakeStack) -> None:
    stack = make_stack()
    soon = timedelta(seconds=0.5)
    stack.schedule(INNOCENTS // 2, soon, sleep_s=0.05)
    poison = stack.center.schedule(7, soon, biz_type=TYPE, attribute={"kill": True})
    stack.schedule(INNOCENTS // 2, soon, first=1000, sleep_s=0.05)
    with supervised(stack) as pids:
        stack.wait_for({Status.DONE: INNOCENTS, Status.DEAD: 1}, 90)
        assert len(pids) == 4
    assert [line.attempt for line in stack.starts_of(poison)] == [1, 2, 3]
    # Nobody shared its last attempt: all that had begun before it had ended, and nothing else began.
    last = stack.starts_of(poison)[-1]
    beside = {
        line.job_id for line in stack.starts if line.pid == last.pid and line.job_id != poison
    } - {line.job_id for line in stack.ends if line.pid == last.pid}
    assert beside == set()

    (letter,) = stack.center.dead()
    assert (letter.job_id, letter.biz_id, letter.attempts) == (poison, 7, 3)
    assert letter.error.startswith("lease lost")
    assert stack.center.redrive(poison) == "redriven"
    assert stack.row(poison)[:2] == (Status.PENDING, 0)
    assert stack.center.dead() == []
    assert stack.center.cancel(poison) == "cancelled"


def test_a_job_that_never_returns_dies_alone(make_stack: MakeStack) -> None:
    stack = make_stack()
    worker = stack.worker(TERMS).wait_ready()
    hangs = stack.center.schedule(7, timedelta(), biz_type=TYPE, attribute={"sleep_s": 3600})
    wait_until(lambda: stack.starts_of(hangs), "it to hang")
    stack.schedule(INNOCENTS, timedelta(), first=1000, sleep_s=0.01)
    wait_until(lambda: stack.statuses()[Status.DONE] == INNOCENTS, "the innocents")
    stack.wait_for({Status.DONE: INNOCENTS, Status.DEAD: 1})
    assert [line.attempt for line in stack.starts_of(hangs)] == [1, 2, 3]
    (letter,) = stack.center.dead()
    assert (letter.job_id, letter.attempts) == (hangs, 3)
    assert letter.error.startswith("lease lost")
    assert not worker.ended
