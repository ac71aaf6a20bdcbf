"""Rows whose lease was lost: taken over one at a time, the last time with nothing else running."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import LONG_AGO, TYPE, Gate, Rig, metric, outage
from tests.worker.waiting import remains, wait_until
from toc.domain.biz_types import type_no_of
from toc.domain.job import Job, Status
from toc.domain.pauses import Pause
from toc.store.pauses import KnownPause, PauseRow
from toc.worker import lease_recovery
from toc.worker.lease_recovery import ALONE
from toc.worker.take_over import SuspectJob
from toc.worker.worker import Worker


def lose(
    rig: Rig, biz_id: int, *, attempts: int = 1, biz_type: str = TYPE, alone: bool = False
) -> int:
    """A job whose worker died: it runs under another token, and its lease is over."""
    job_id = rig.center.schedule(biz_id, LONG_AGO, biz_type=biz_type)
    token = f"gone:{job_id}{ALONE if alone else ''}"
    rig.run_elsewhere(job_id, token=token, attempts=attempts, lease_s=-1)
    return job_id


def test_lost_jobs_are_taken_over_one_at_a_time(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"concurrency": 8})
    lock, most, now, seen = threading.Lock(), 0, 0, []

    @rig.handler()
    def handle(job: Job) -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        seen.append(job)
        threading.Event().wait(0.02)
        with lock:
            now -= 1

    worker = rig.alone()
    before = metric("toc_jobs_taken_over_total")
    lost = [lose(rig, n) for n in range(6)]
    assert rig.offer(worker, *lost) == 0  # not with the batch
    rig.wait_for(Status.DONE, *lost)
    assert most == 1
    assert sorted(job.job_id for job in seen) == sorted(lost)
    assert {job.attempts for job in seen} == {2}
    assert metric("toc_jobs_taken_over_total") == before + 6


def test_healthy_jobs_of_the_same_batch_go_on_at_once(make_rig: MakeRig) -> None:
    rig = make_rig()
    gate = Gate()
    rig.handler("suspect")(gate)
    rig.handler()(lambda _: None)
    worker = rig.alone()
    lost = [lose(rig, rig.biz_id_on(0, n), biz_type="suspect") for n in range(2)]
    healthy = [
        rig.center.schedule(rig.biz_id_on(0, 2 + n), LONG_AGO, biz_type=TYPE) for n in range(3)
    ]
    assert rig.offer(worker, *lost, *healthy) == 3
    rig.wait_for(Status.DONE, *healthy)
    gate.wait(1)
    assert [job.job_id for job in gate.begun] == lost[:1]
    gate.open.set()
    rig.wait_for(Status.DONE, *lost)


def test_a_lease_that_holds_is_respected(make_rig: MakeRig) -> None:
    rig = make_rig()
    started: list[Job] = []
    rig.handler()(started.append)
    worker = rig.alone()
    job_id = lose(rig, 1)
    rig.run_elsewhere(job_id, token="alive", attempts=1, lease_s=0.4)
    before = rig.row(job_id)
    assert rig.offer(worker, job_id) == 0
    # Also when somebody believes it lost: the statement itself asks the database's clock.
    databases = rig.databases()
    taken = worker.context.claims.take_over_job(
        databases[0], rig.shard(job_id), job_id, "alive", "mine"
    )
    assert taken is None
    assert not worker.context.claims.bury_expired_job(
        databases[0], rig.shard(job_id), job_id, "alive", "lost", "me"
    )
    assert rig.row(job_id) == before

    assert before.due_ms is not None
    end_ms = before.due_ms
    wait_until(lambda: rig.clock.wall_ms() > end_ms)
    assert rig.offer(worker, job_id) == 0
    rig.wait_for(Status.DONE, job_id)
    assert [job.attempts for job in started] == [2]


def test_a_suspect_that_somebody_else_took_is_left_to_him(make_rig: MakeRig) -> None:
    rig = make_rig()
    started: list[Job] = []
    rig.handler()(started.append)
    worker = rig.alone()
    job_id = lose(rig, 1)
    take_over = worker.context.claims.take_over_job

    def late(*arguments: object) -> object:
        # His lease is over as well: what counts is that the row is not as it was seen.
        rig.run_elsewhere(job_id, token="faster", attempts=2, lease_s=-1)
        return take_over(*arguments)  # type: ignore[arg-type]

    worker.context.claims.take_over_job = late  # type: ignore[method-assign,assignment]
    rig.offer(worker, job_id)
    wait_until(lambda: rig.row(job_id).token == "faster")
    wait_until(lambda: not worker.recoveries[0]._queued_ids)
    assert rig.row(job_id)[:2] == (Status.RUNNING, 2)
    assert started == []


@pytest.mark.parametrize("target", [f"type:{TYPE}", "all"])
def test_a_suspect_that_was_queued_before_a_pause_waits_for_its_end(
    make_rig: MakeRig, target: str
) -> None:
    rig = make_rig()
    started: list[Job] = []
    rig.handler()(started.append)
    worker = rig.alone()
    lost, taken_over = lose(rig, 1), metric("toc_jobs_taken_over_total")
    row = PauseRow(target, 1, "", 0, "c", "ann", None, False, 0)
    gate, recovery = worker.context.process.gate, worker.recoveries[0]
    gate.update_pauses({target: KnownPause(Pause(target, 0), row)})
    # A claim under the pause would not find it: it was seen before.
    recovery.enqueue(SuspectJob(rig.shard(lost), lost, type_no_of(TYPE), 1, f"gone:{lost}"))
    wait_until(lambda: not recovery._queued_ids, "the suspect to be processed")
    # It is not taken over, which the pool would have to undo: it gives back what is paused.
    assert metric("toc_jobs_taken_over_total") == taken_over
    assert rig.row(lost)[:2] == (Status.RUNNING, 1)
    assert started == []
    gate.update_pauses({})
    rig.offer(worker, lost)
    rig.wait_for(Status.DONE, lost)
    assert [job.attempts for job in started] == [2]


def test_a_job_that_lost_its_last_lease_is_buried(make_rig: MakeRig) -> None:
    rig = make_rig()
    started: list[Job] = []
    rig.handler(max_attempts=3)(started.append)
    lost = lose(rig, 2, attempts=3, alone=True)
    worker = rig.alone()
    rig.offer(worker, lost)
    rig.wait_for(Status.DEAD, lost)
    assert started == []
    (letter,) = rig.center.dead()
    assert (letter.job_id, letter.attempts) == (lost, 3)
    assert letter.error.startswith("lease lost")

    assert rig.center.redrive(lost) == "redriven"
    rig.offer(worker, lost)
    rig.wait_for(Status.DONE, lost)


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("most", [1, 3])
def test_a_last_attempt_that_was_shared_ends_no_job(make_rig: MakeRig, most: int) -> None:
    rig = make_rig()
    started: list[Job] = []
    rig.handler(max_attempts=most)(started.append)
    innocent = lose(rig, 2, attempts=most)  # its batch had a poison job in it
    worker = rig.alone()
    rig.offer(worker, innocent)
    rig.wait_for(Status.DONE, innocent)
    (job,) = started
    assert job.attempts == most + 1
    assert job.token is not None
    assert job.token.endswith(ALONE)
    assert rig.center.dead() == []


def test_before_a_last_attempt_everything_else_finishes(make_rig: MakeRig) -> None:
    rig = make_rig()
    gate, last = Gate(), Gate()
    rig.handler("slow")(gate)
    rig.handler("suspect", max_attempts=3)(last)
    worker = rig.alone()
    slow = [rig.center.schedule(n, LONG_AGO, biz_type="slow") for n in range(2)]
    rig.offer(worker, *slow)
    gate.wait(2)
    lost = lose(rig, 9, attempts=2, biz_type="suspect")
    rig.offer(worker, lost)
    wait_until(lambda: worker.permits.hold.is_active)
    assert worker.permits.take_permits(0, 1) == 0  # it takes nothing new
    assert remains(lambda: not last.begun, 0.2)
    assert rig.row(lost)[:2] == (Status.RUNNING, 2)
    gate.open.set()
    last.wait()
    assert worker.jobs_in_flight == 1  # alone
    assert worker.permits.take_permits(0, 1) == 0  # and nothing is taken beside it
    last.open.set()
    rig.wait_for(Status.DONE, lost)
    wait_until(lambda: worker.permits.take_permits(0, 1) == 1)


def test_before_a_last_attempt_a_claim_under_way_finishes_too(make_rig: MakeRig) -> None:
    rig = make_rig()
    last = Gate()
    rig.handler(max_attempts=3)(last)
    worker = rig.alone()
    lost = lose(rig, 9, attempts=2)
    taken = worker.permits.take_permits(0, 2)  # a poller is about to pop and offer
    assert taken == 2
    rig.offer(worker, lost)
    wait_until(lambda: worker.permits.hold.is_active)
    assert remains(lambda: not last.begun, 0.2)
    worker.permits.return_permits(0, taken)
    last.wait()
    last.open.set()
    rig.wait_for(Status.DONE, lost)


# The model found these (tests/model/poison.pml): a job that runs must not be overlooked between two looks.


def test_who_reserves_while_the_worker_is_being_held_gets_no_room(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make_rig().alone()
    adapt = worker.permits.limiter.adapt_limit

    def held_meanwhile(waiting: int) -> None:
        assert worker.permits.hold.try_begin_hold()
        adapt(waiting)

    monkeypatch.setattr(worker.permits.limiter, "adapt_limit", held_meanwhile)
    assert worker.permits.take_permits(0, 2) == 0
    assert worker.permits.reserved_permits == 0
    worker.permits.hold.end_hold()
    worker.permits.hold._free_s = 0.0
    assert worker.permits.take_permits_in_each_database([0], 2) == (0, frozenset())
    assert worker.permits.reserved_permits == 0


def quiet_while(worker: Worker, step: Callable[[], None]) -> list[bool]:
    """What `no_handler_runs` says, again and again, while another thread repeats a step."""
    over, switch_s = threading.Event(), sys.getswitchinterval()

    def repeat() -> None:
        while not over.is_set():
            step()

    thread = threading.Thread(target=repeat)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        return [worker.permits.no_handler_runs for _ in range(30_000)]
    finally:
        over.set()
        thread.join(10)
        sys.setswitchinterval(switch_s)


def test_what_is_settled_between_two_looks_hides_no_job_that_runs(make_rig: MakeRig) -> None:
    worker = make_rig().alone()
    permits = worker.permits
    permits.add_jobs_in_flight(0, 1, permits=0)  # it runs all the time

    def end_another() -> None:
        permits.add_jobs_in_flight(0, 1, permits=0)
        permits.note_handler_ended()
        permits.remove_jobs_in_flight(0, 1)

    assert not any(quiet_while(worker, end_another))
    permits.note_handler_ended()
    assert permits.no_handler_runs
    permits.remove_jobs_in_flight(0, 1)


def test_what_is_claimed_between_two_looks_is_not_overlooked(make_rig: MakeRig) -> None:
    worker = make_rig().alone()
    permits = worker.permits
    assert permits.take_permits(0, 1) == 1

    def claim_and_fetch_again() -> None:
        permits.add_jobs_in_flight(0, 1, permits=1)
        permits._change_counts(0, fetched=1, in_flight=-1)  # back, to be claimed again

    assert not any(quiet_while(worker, claim_and_fetch_again))
    permits.return_permits(0, 1)
    assert permits.no_handler_runs


def test_an_outcome_that_moves_into_a_batch_is_counted_once(make_rig: MakeRig) -> None:
    """From the queue into a batch, which cannot be written, and is tried again and again."""
    rig = make_rig()
    ends, runs = Gate(), Gate()
    rig.handler("ends", timeout=30)(ends)
    rig.handler("runs", timeout=30)(runs)
    worker = rig.alone()
    jobs = [rig.center.schedule(1, LONG_AGO, biz_type=name) for name in ("ends", "runs")]
    rig.offer(worker, *jobs)
    ends.wait()
    runs.wait()
    with outage(worker.context.process.databases[0]) as broken:
        ends.open.set()
        wait_until(lambda: worker.permits.unsettled_count == 1)
        seen = set[int]()

        def is_tried() -> bool:
            seen.add(worker.permits.unsettled_count)
            return broken.refused > 3

        wait_until(is_tried)
        assert seen == {1}
        assert not worker.permits.no_handler_runs
    wait_until(lambda: worker.permits.unsettled_count == 0)
    assert worker.jobs_in_flight == 1
    assert not worker.permits.no_handler_runs
    runs.open.set()
    rig.wait_for(Status.DONE, *jobs)
    wait_until(lambda: worker.permits.no_handler_runs)


def test_an_earlier_attempt_waits_for_nobody(make_rig: MakeRig) -> None:
    rig = make_rig()
    gate = Gate()
    rig.handler("slow")(gate)
    rig.handler("suspect", max_attempts=3)(lambda _: None)
    worker = rig.alone()
    slow = rig.center.schedule(1, LONG_AGO, biz_type="slow")
    rig.offer(worker, slow)
    gate.wait()
    lost = lose(rig, 9, attempts=1, biz_type="suspect")
    rig.offer(worker, lost)
    rig.wait_for(Status.DONE, lost)
    gate.open.set()


@pytest.mark.invariant("I8")
def test_a_worker_that_is_never_quiet_is_not_held_for_long(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_recovery, "QUIET_S_MAX", 0.1)
    monkeypatch.setattr(lease_recovery, "PAUSE_S_MIN", 0.3)
    rig = make_rig()
    gate = Gate()
    rig.handler("long")(gate)
    rig.handler("suspect", max_attempts=2)(lambda _: None)
    worker = rig.alone()
    rig.offer(worker, rig.center.schedule(1, LONG_AGO, biz_type="long"))
    gate.wait()
    lost = lose(rig, 9, attempts=1, biz_type="suspect")
    rig.offer(worker, lost)
    wait_until(lambda: worker.permits.hold.is_active)
    wait_until(
        lambda: not worker.permits.hold.is_active
    )  # it gave up for now, and others are claimed
    wait_until(lambda: worker.permits.take_permits(0, 1) == 1)
    worker.permits.return_permits(0, 1)
    # In the end it runs beside the long one, rather than never.
    rig.wait_for(Status.DONE, lost)
    assert not gate.open.is_set()
    gate.open.set()


def test_a_lost_job_without_a_handler_here_holds_up_nobody(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.handler()(lambda _: None)
    worker = rig.alone()
    lost = lose(rig, 3, attempts=1, biz_type="of.another.node")
    rig.offer(worker, lost)
    assert not worker.recoveries[0]._queued_ids
    assert rig.row(lost)[:2] == (Status.RUNNING, 1)


def test_a_hanging_handler_does_not_keep_a_last_attempt_waiting(make_rig: MakeRig) -> None:
    rig = make_rig()
    gate = Gate()
    rig.handler("hangs", timeout=0.1)(gate)
    rig.handler("suspect", max_attempts=3)(lambda _: None)
    worker = rig.alone()
    hangs = rig.center.schedule(1, LONG_AGO, biz_type="hangs")
    rig.offer(worker, hangs)
    gate.wait()
    wait_until(lambda: worker.pool.running.stuck_count == 1)
    lost = lose(rig, 9, attempts=2, biz_type="suspect")
    rig.offer(worker, lost)
    rig.wait_for(Status.DONE, lost)
    # The one that hangs may yet end the process: a lease lost by that would end nobody's job.
    assert not (rig.row(lost).token or "").endswith(ALONE)
    gate.open.set()


def test_its_own_run_that_hangs_still_proves_something(make_rig: MakeRig) -> None:
    """Else a job that never returns would have more attempts than it may."""
    rig = make_rig()
    gate = Gate()
    rig.handler("hangs", timeout=0.1, max_attempts=3)(gate)
    worker = rig.alone()
    lost = lose(rig, 1, attempts=1, biz_type="hangs")
    rig.offer(worker, lost)
    gate.wait()
    wait_until(lambda: worker.pool.running.stuck_count == 1)
    assert worker.pool.running.stuck_job_ids == {lost}
    gate.open.set()


def test_a_suspect_that_hangs_holds_up_the_others_only_for_its_lease(make_rig: MakeRig) -> None:
    rig = make_rig()
    gate = Gate()
    rig.handler("hangs", timeout=0.1)(gate)
    rig.handler()(lambda _: None)
    worker = rig.alone()
    lost = [lose(rig, 1, biz_type="hangs"), lose(rig, 2)]
    rig.offer(worker, lost[0])
    gate.wait()
    rig.offer(worker, lost[1])
    rig.wait_for(Status.DONE, lost[1])
    gate.open.set()


@pytest.mark.parametrize("timer", [True, False])
def test_a_node_finds_lost_jobs_by_itself(make_rig: MakeRig, timer: bool) -> None:
    rig = make_rig(timer={"load_tick_s": 0.1}, **({} if timer else {"redis_url": "none"}))
    rig.handler()(lambda _: None)
    lost = [lose(rig, n) for n in range(5)]
    rig.start()
    rig.wait_for(Status.DONE, *lost)
    assert {rig.row(job_id).attempts for job_id in lost} == {2}


def test_a_failing_take_over_is_tried_again(make_rig: MakeRig) -> None:
    rig = make_rig(redis_url="none")
    rig.handler()(lambda _: None)
    worker = rig.start()
    take_over, tries = worker.context.claims.take_over_job, []

    def broken(*arguments: object) -> object:
        tries.append(arguments)
        if len(tries) == 1:
            raise RuntimeError("not this time")
        return take_over(*arguments)  # type: ignore[arg-type]

    worker.context.claims.take_over_job = broken  # type: ignore[method-assign,assignment]
    lost = lose(rig, 1)
    rig.wait_for(Status.DONE, lost)
    assert len(tries) == 2
