"""Last attempts run alone, and yet the rest of the process goes on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import LONG_AGO, TYPE, Gate, metric, outage
from tests.worker.test_suspects import lose
from tests.worker.waiting import remains, wait_until
from toc.domain.claim_tokens import ALONE
from toc.domain.job import Job, Status
from toc.testing import TestClock
from toc.worker import lease_recovery, permits
from toc.worker.permits import HOLD_REST_S_MAX, ProcessHold


def test_a_process_that_was_held_rests_for_longer() -> None:
    clock = TestClock()
    one = ProcessHold(clock)
    assert one.try_begin_hold()
    assert not one.try_begin_hold()  # another lane
    clock.advance(2)
    one.end_hold()
    assert not one.is_active
    assert one.hold_wait_s == 2 * permits.HOLD_REST
    assert not one.try_begin_hold()
    clock.advance(2 * permits.HOLD_REST)
    assert one.try_begin_hold()
    clock.advance(1000)
    one.end_hold()
    assert one.hold_wait_s == HOLD_REST_S_MAX


@pytest.mark.invariant("I8")
def test_between_two_last_attempts_the_others_have_their_turn(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permits, "HOLD_REST", 1e9)  # one rest of a minute
    rig = make_rig()
    gate = Gate()
    rig.handler("lost", max_attempts=1)(gate)
    rig.handler()(lambda _: None)
    worker = rig.alone()
    rig.offer(worker, *[lose(rig, n, biz_type="lost") for n in range(2)])
    gate.wait()
    assert worker.permits.take_permits(0, 1) == 0
    gate.open.set()
    wait_until(lambda: worker.permits.take_permits(0, 1) == 1)
    worker.permits.return_permits(0, 1)
    job_id = rig.center.schedule(9, LONG_AGO, biz_type=TYPE)
    rig.offer(worker, job_id)
    rig.wait_for(Status.DONE, job_id)
    assert len(gate.begun) == 1
    worker.permits.hold._free_s = 0.0  # the minute is over
    worker.recoveries[0].wake()
    gate.wait(2)


@pytest.mark.invariant("I7")
def test_a_last_attempt_that_takes_long_goes_on_beside_the_others(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_recovery, "HOLD_S_MAX", 0.1)
    rig = make_rig()
    gate = Gate()
    rig.handler("lost", max_attempts=1)(gate)
    worker = rig.alone()
    refused = metric("toc_settles_refused_total")
    job_id = lose(rig, 1, biz_type="lost")
    rig.offer(worker, job_id)
    gate.wait()
    assert (gate.begun[0].token or "").endswith(ALONE)
    wait_until(lambda: worker.permits.take_permits(0, 1) == 1)
    worker.permits.return_permits(0, 1)
    # A death that it shares from now on proves nothing against it.
    assert rig.row(job_id).token == (gate.begun[0].token or "").removesuffix(ALONE)
    gate.open.set()
    rig.wait_for(Status.DONE, job_id)
    wait_until(lambda: worker.jobs_in_flight == 0)
    assert metric("toc_settles_refused_total") == refused


@pytest.mark.invariant("I7")
def test_the_process_is_held_until_the_row_has_lost_its_mark(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_recovery, "HOLD_S_MAX", 0.1)
    rig = make_rig()
    gate = Gate()
    rig.handler("lost", max_attempts=1)(gate)
    worker = rig.alone()
    job_id = lose(rig, 1, biz_type="lost")
    rig.offer(worker, job_id)
    gate.wait()
    with outage(worker.context.process.databases[0]) as broken:
        wait_until(lambda: broken.refused > 2)
        assert worker.permits.hold.is_active
    wait_until(lambda: not worker.permits.hold.is_active)
    assert not (rig.row(job_id).token or "").endswith(ALONE)
    gate.open.set()


@pytest.mark.invariant("I7")
def test_one_that_hangs_beyond_its_lease_has_nobody_else_to_blame(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a job that never returns would have more attempts than it may."""
    monkeypatch.setattr(lease_recovery, "HOLD_S_MAX", 0.1)
    rig = make_rig()
    gate = Gate()
    rig.handler("hangs", timeout=0.3, max_attempts=1)(gate)
    worker = rig.alone()
    job_id = lose(rig, 1, biz_type="hangs")
    rig.offer(worker, job_id)
    gate.wait()
    wait_until(lambda: not (rig.row(job_id).token or "").endswith(ALONE))
    wait_until(lambda: worker.pool.running.stuck_count == 1)
    wait_until(lambda: (rig.row(job_id).token or "").endswith(ALONE))
    gate.open.set()


@pytest.mark.parametrize("most", [1, 5])
def test_a_database_that_hangs_holds_up_its_own_suspects_only(make_rig: MakeRig, most: int) -> None:
    rig = make_rig(databases=2)
    rig.handler(max_attempts=most)(lambda _: None)
    worker = rig.alone()
    asked, go_on = threading.Event(), threading.Event()
    database = worker.context.process.databases[0]
    now_ms, run = database.now_ms, database.run_transaction

    def hang(work: Any) -> Any:
        asked.set()
        assert go_on.wait(30)
        return work()

    database.now_ms = lambda: hang(now_ms)  # type: ignore[method-assign]
    database.run_transaction = lambda work: hang(lambda: run(work))  # type: ignore[method-assign]
    away = [lose(rig, rig.biz_id_on(0, n)) for n in range(3)]
    here = [lose(rig, rig.biz_id_on(2, n)) for n in range(2)]
    rig.offer(worker, *away)
    assert asked.wait(10)
    rig.offer(worker, *here)
    rig.wait_for(Status.DONE, *here)
    assert {rig.status(job_id) for job_id in away} == {Status.RUNNING}
    # The lane of the second database ends its hold only after the commit that made the row DONE.
    wait_until(lambda: worker.permits.take_permits(1, 1) == 1)
    worker.permits.return_permits(1, 1)
    go_on.set()
    rig.wait_for(Status.DONE, *away)


@pytest.mark.invariant("I7")
def test_the_lane_of_another_database_starts_nothing_beside_what_is_alone(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(databases=2)
    last, started = Gate(), list[Job]()
    rig.handler("last", max_attempts=1)(last)
    rig.handler(max_attempts=5)(started.append)
    worker = rig.alone()
    rig.offer(worker, lose(rig, rig.biz_id_on(0), biz_type="last"))
    last.wait()
    other = lose(rig, rig.biz_id_on(2))
    rig.offer(worker, other)
    assert remains(lambda: not started and rig.row(other).attempts == 1, 0.4)
    assert worker.jobs_in_flight == 1
    last.open.set()
    rig.wait_for(Status.DONE, other)


def test_a_take_over_under_way_is_not_quiet(make_rig: MakeRig) -> None:
    rig = make_rig(databases=2)
    rig.handler(max_attempts=5)(lambda _: None)
    worker = rig.alone()
    asked, go_on = threading.Event(), threading.Event()
    take_over = worker.context.claims.take_over_job

    def slow(*arguments: Any) -> Any:
        asked.set()
        assert go_on.wait(30)
        return take_over(*arguments)

    worker.context.claims.take_over_job = slow  # type: ignore[method-assign]
    job_id = lose(rig, rig.biz_id_on(0))
    rig.offer(worker, job_id)
    assert asked.wait(10)
    assert not worker.permits.no_handler_runs
    go_on.set()
    rig.wait_for(Status.DONE, job_id)
    wait_until(lambda: worker.permits.no_handler_runs)


@pytest.mark.invariant("I7")
def test_a_burial_leaves_time_to_give_a_take_over_back(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_recovery, "BURY_AFTER_S", 0.5)
    rig = make_rig()
    rig.handler(max_attempts=2)(lambda _: None)
    worker = rig.alone()
    job_id = lose(rig, 1, attempts=2, alone=True)
    rig.offer(worker, job_id)
    wait_until(lambda: worker.recoveries[0]._later)
    rig.run_elsewhere(job_id, token="before", attempts=1, lease_s=-1)  # whoever took it over
    wait_until(lambda: not worker.recoveries[0]._queued_ids)
    assert rig.row(job_id)[:2] == (Status.RUNNING, 1)
    assert rig.center.dead() == []
