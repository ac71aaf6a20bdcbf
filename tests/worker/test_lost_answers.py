"""A claim or a take-over is committed, and its answer is lost: nobody runs it, so it is given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError

from tests.worker.conftest import MakeRig
from tests.worker.rig import LATER, LONG_AGO, SOON, TYPE, Outage, Rig, metric
from tests.worker.test_suspects import lose
from tests.worker.waiting import remains, wait_until
from toc.domain.claim_tokens import ALONE
from toc.domain.job import Job, Status
from toc.errors import StoreUnavailable
from toc.store.claims import Outcome, OutcomeKind
from toc.worker.row_corrections import ChangeAloneMark, GiveBackJobs
from toc.worker.worker import Worker


@contextmanager
def outage_after_commit(worker: Worker, verb: str) -> Iterator[Outage]:
    """Database 0 goes away between the COMMIT of the next `claim_jobs` or `take_over_job` and its read."""
    claims, database = worker.context.claims, worker.context.process.databases[0]
    asks, broken = getattr(claims, verb), Outage(database)
    asked = begun = False

    def asking(*arguments: Any) -> Any:
        nonlocal asked
        asked = True
        return asks(*arguments)

    def go_away(connection: Connection, cursor: Any = None, statement: str = "", *_: Any) -> None:
        nonlocal begun
        if asked and not begun and not statement.startswith("SELECT"):
            begun = True
            broken.begin()  # the COMMIT itself still goes through

    setattr(claims, verb, asking)
    event.listen(database.engine, "commit", go_away)
    event.listen(database.autocommit_engine, "after_cursor_execute", go_away)
    try:
        yield broken
    finally:
        event.remove(database.engine, "commit", go_away)
        event.remove(database.autocommit_engine, "after_cursor_execute", go_away)
        if begun:
            broken.end()


def offered_until_it_ended(rig: Rig, worker: Worker, job_id: int) -> bool:
    rig.offer(worker, job_id)  # as a scanner does, again and again
    return not rig.status(job_id).live


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("most", [1, 2])
def test_a_last_attempt_whose_answer_was_lost_does_not_count(make_rig: MakeRig, most: int) -> None:
    rig = make_rig()
    started: list[Job] = []
    rig.handler(timeout=0.5, max_attempts=most)(started.append)
    worker = rig.alone()
    job_id = lose(rig, 1, attempts=1)
    refused = metric("toc_settles_refused_total")
    with outage_after_commit(worker, "take_over_job") as broken:
        rig.offer(worker, job_id)
        wait_until(lambda: broken.refused > 0)
        assert started == []
    wait_until(lambda: not worker.permits.hold.is_active)
    wait_until(lambda: offered_until_it_ended(rig, worker, job_id))
    assert rig.status(job_id) is Status.DONE
    assert [job.attempts for job in started] == [2]
    assert rig.center.dead() == []
    assert metric("toc_settles_refused_total") == refused


@pytest.mark.invariant("I7")
def test_the_process_is_held_until_its_last_attempt_is_given_back(make_rig: MakeRig) -> None:
    """The row says ":alone" for so long: what began beside it might end the process."""
    rig = make_rig()
    rig.handler(timeout=30, max_attempts=2)(lambda _: None)
    worker = rig.alone()
    job_id = lose(rig, 1, attempts=1)
    with outage_after_commit(worker, "take_over_job") as broken:
        rig.offer(worker, job_id)
        wait_until(lambda: broken.refused > 3)
        assert worker.permits.hold.is_active
        assert worker.permits.take_permits(0, 1) == 0
    wait_until(lambda: not worker.permits.hold.is_active)
    row = rig.row(job_id)
    assert (row.status, row.attempts, row.token) == (Status.RUNNING, 1, f"gone:{job_id}")


def test_a_claim_whose_answer_was_lost_does_not_wait_for_its_lease(make_rig: MakeRig) -> None:
    rig = make_rig(timer={"stay_s": 600})
    started: list[Job] = []
    rig.handler(timeout=3600)(started.append)
    worker = rig.start()
    refused = metric("toc_settles_refused_total")
    with outage_after_commit(worker, "claim_jobs") as broken:
        job_id = rig.center.schedule(1, SOON, biz_type=TYPE)
        wait_until(lambda: broken.refused > 0)
    rig.wait_for(Status.DONE, job_id)
    assert [job.attempts for job in started] == [1]
    assert metric("toc_settles_refused_total") == refused


def test_what_was_not_claimed_is_given_back_in_silence(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig()
    rig.handler()(lambda _: None)
    worker = rig.alone()
    job_id = rig.center.schedule(1, LONG_AGO, biz_type=TYPE)
    before, refused = rig.row(job_id), metric("toc_settles_refused_total")
    claim = worker.context.claims.claim_jobs

    def away(*arguments: object) -> object:
        raise StoreUnavailable(0, OSError("away"))

    worker.context.claims.claim_jobs = away  # type: ignore[method-assign,assignment]
    with pytest.raises(StoreUnavailable):
        rig.offer(worker, job_id)
    worker.context.claims.claim_jobs = claim  # type: ignore[method-assign]
    wait_until(lambda: worker.has_nothing_to_write)
    assert rig.row(job_id) == before
    assert metric("toc_settles_refused_total") == refused
    assert "came too late" not in caplog.text


def test_what_was_claimed_before_the_batch_failed_is_run(make_rig: MakeRig) -> None:
    """Shard by shard it is claimed again, under the same token."""
    rig = make_rig()
    started: list[Job] = []
    rig.handler(timeout=3600)(started.append)
    worker = rig.alone()
    jobs = [rig.center.schedule(rig.biz_id_on(n), LONG_AGO, biz_type=TYPE) for n in (0, 1)]
    claim, tries = worker.context.claims.claim_jobs, 0

    def failing(*arguments: Any) -> Any:
        nonlocal tries
        found, tries = claim(*arguments), tries + 1
        if tries == 1:
            raise RuntimeError("after its commit")
        return found

    worker.context.claims.claim_jobs = failing  # type: ignore[method-assign]
    assert rig.offer(worker, *jobs) == 2
    rig.wait_for(Status.DONE, *jobs)
    assert sorted(job.job_id for job in started) == sorted(jobs)
    assert {job.attempts for job in started} == {1}


@pytest.mark.invariant("I7")
def test_a_take_over_that_is_not_started_leaves_the_row_as_it_was(make_rig: MakeRig) -> None:
    """Pending, it would share a batch again, and that its lease was lost would be forgotten."""
    rig = make_rig()
    started: list[Job] = []
    rig.handler(max_attempts=3)(started.append)
    worker = rig.alone()
    job_id = lose(rig, 1, attempts=2)
    take_over = worker.context.claims.take_over_job

    def stops_meanwhile(*arguments: Any) -> Any:
        row = take_over(*arguments)
        worker.permits.closed = True
        return row

    worker.context.claims.take_over_job = stops_meanwhile  # type: ignore[method-assign]
    rig.offer(worker, job_id)
    wait_until(lambda: worker.permits.closed and worker.jobs_in_flight == 0)
    row = rig.row(job_id)
    assert (row.status, row.attempts, row.token) == (Status.RUNNING, 2, f"gone:{job_id}")
    assert row.due_ms is not None
    assert row.due_ms <= rig.now_ms(job_id)
    assert started == []
    assert not (row.token or "").endswith(ALONE)


@contextmanager
def writes_refused(worker: Worker) -> Iterator[list[str]]:
    """As by a server that is read-only: it answers, and nothing is committed."""
    engine, refused = worker.context.process.databases[0].engine, list[str]()

    def refuse(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE"):
            refused.append(statement)
            error = pymysql.err.OperationalError(1290, "running with the --read-only option")
            raise OperationalError(statement, {}, error)

    event.listen(engine, "before_cursor_execute", refuse)
    try:
        yield refused
    finally:
        event.remove(engine, "before_cursor_execute", refuse)


@pytest.mark.invariant("I8")
def test_a_take_over_that_is_refused_does_not_hold_the_process(make_rig: MakeRig) -> None:
    """Nothing was committed: nothing is given back, nobody waits for it, and the lane rests."""
    rig = make_rig()
    started: list[Job] = []
    rig.handler(timeout=60, max_attempts=1)(started.append)
    worker = rig.alone()
    jobs = [lose(rig, n) for n in range(2)]
    with writes_refused(worker) as refused:
        for job_id in jobs:  # a claim in one shard is no transaction, and is not refused
            rig.offer(worker, job_id)
        wait_until(lambda: bool(refused))
        wait_until(lambda: not worker.permits.hold.is_active, seconds=5)
        assert worker.has_nothing_to_write
        assert worker.permits.take_permits(0, 1) == 1
        worker.permits.return_permits(0, 1)
        assert remains(lambda: len(refused) == 1, 1.0)
    for job_id in jobs:
        wait_until(lambda job_id=job_id: offered_until_it_ended(rig, worker, job_id))  # type: ignore[misc]
    assert [job.attempts for job in started] == [2, 2]


@contextmanager
def locked(rig: Rig, *job_ids: int) -> Iterator[None]:
    """Their rows are locked by somebody's transaction, as by a handler's own (`toc.complete`)."""
    with rig.databases()[0].engine.connect() as connection, connection.begin():
        for job_id in job_ids:
            table = f"toc_job_{rig.shard(job_id):04d}"
            connection.exec_driver_sql(f"SELECT 1 FROM {table} WHERE job_id = {job_id} FOR UPDATE")
        yield


@pytest.mark.invariant("I8")
def test_a_correction_whose_row_is_locked_holds_up_nothing(
    make_rig: MakeRig, mysql_database: str
) -> None:
    """Its settler would wait for 25 s, again and again, and the leases of all others would end."""
    rig = make_rig(urls=[mysql_database])
    rig.handler()(lambda _: None)
    worker = rig.alone()
    settler = worker.settlers[0]
    jobs = [rig.center.schedule(n, LATER, biz_type=TYPE) for n in range(4)]
    for job_id in jobs:
        rig.run_elsewhere(job_id, token="mine", attempts=1, lease_s=30)
    busy, free, marked, also_free = jobs
    lost = [Outcome(job_id, "mine", OutcomeKind.GIVE_BACK) for job_id in jobs]
    both = GiveBackJobs("default", [lost[0], lost[1]])
    change = ChangeAloneMark(rig.shard(marked), marked, "mine", "changed")
    back = ChangeAloneMark(rig.shard(marked), marked, "changed", "mine")
    with locked(rig, busy, marked):
        for each in (both, change, back):
            settler.corrections.enqueue(each)
        settler.corrections.enqueue(GiveBackJobs("default", [lost[3]]))
        rig.wait_for(Status.PENDING, free, also_free, seconds=5)
        other = rig.center.schedule(9, LONG_AGO, biz_type=TYPE)
        rig.offer(worker, other)
        rig.wait_for(Status.DONE, other, seconds=5)
        assert not any(each.written.is_set() for each in (both, change, back))
        assert rig.status(busy) is Status.RUNNING
    wait_until(lambda: worker.has_nothing_to_write)
    assert rig.row(busy)[:2] == (Status.PENDING, 0)
    assert rig.row(marked).token == "mine"  # changed, and back: in order
    assert all(each.written.is_set() for each in (both, change, back))
