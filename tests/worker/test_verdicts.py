"""What a handler says, and what its row says then."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from tests.worker.conftest import MakeRig
from tests.worker.rig import FAR, LATER, LONG_AGO, NOW, TYPE, LyingClock, Rig, claimed, metric
from tests.worker.waiting import wait_until
from toc.domain.job import Job, Status
from toc.domain.times import EPOCH
from toc.handlers.verdicts import Dead, Drop, Retry, Snooze, Verdict
from toc.runtime.job_batch import JobBatch

ROUNDED_MS = 100  # up; and by how long a claim took


def fire(rig: Rig, verdict: Verdict | None, how: str) -> int:
    """Runs one job whose handler says `verdict`; returns its id once it was settled."""
    settled = metric("toc_jobs_fired_total", biz_type=TYPE)

    def handle(job: Job) -> Verdict | None:
        del job
        if how == "raised" and verdict is not None:
            raise verdict
        return verdict

    async def later(job: Job) -> Verdict | None:
        await asyncio.sleep(0)
        return handle(job)

    rig.handler(max_attempts=3)(later if how == "async" else handle)
    rig.start()
    rig.wait_for_loader()  # which would remind of the end of the lease as well
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    wait_until(lambda: metric("toc_jobs_fired_total", biz_type=TYPE) > settled)
    wait_until(lambda: rig.status(job_id) is not Status.RUNNING)
    return job_id


HOWS = pytest.mark.parametrize("how", ["returned", "raised", "async"])


@pytest.mark.parametrize("how", ["returned", "async"])
def test_a_return_is_done(make_rig: MakeRig, how: str) -> None:
    rig = make_rig()
    job_id = fire(rig, None, how)
    row = rig.row(job_id)
    assert (row.status, row.attempts, row.due_ms) == (Status.DONE, 1, None)
    wait_until(lambda: rig.armed_ms(job_id) is None and rig.out_ms(job_id) is None)


@HOWS
def test_drop_is_cancelled(make_rig: MakeRig, how: str) -> None:
    rig = make_rig()
    job_id = fire(rig, Drop("paid meanwhile"), how)
    assert rig.row(job_id)[:3] == (Status.CANCELLED, 1, None)
    assert rig.center.cancel(job_id) == "already_cancelled"
    wait_until(lambda: rig.armed_ms(job_id) is None and rig.out_ms(job_id) is None)


@HOWS
def test_dead_is_dead_at_once(make_rig: MakeRig, how: str) -> None:
    rig = make_rig()
    job_id = fire(rig, Dead("no such order"), how)
    assert rig.row(job_id)[:3] == (Status.DEAD, 1, None)
    (letter,) = rig.center.dead()
    assert (letter.job_id, letter.attempts, letter.error) == (job_id, 1, "no such order")
    wait_until(lambda: rig.armed_ms(job_id) is None and rig.out_ms(job_id) is None)


@HOWS
def test_retry_waits_as_it_says_and_counts(make_rig: MakeRig, how: str) -> None:
    rig = make_rig()
    job_id = fire(rig, Retry(after=LATER), how)
    row = rig.row(job_id)
    assert (row.status, row.attempts) == (Status.PENDING, 1)
    assert row.due_ms is not None
    waits_s = (row.due_ms - row.action_ms) / 1000
    assert 600 <= waits_s < 630
    wait_until(lambda: rig.armed_ms(job_id) == row.due_ms and rig.out_ms(job_id) is None)


@pytest.mark.parametrize("wrong_s", [-3600, 3600])
@pytest.mark.parametrize("verdict", [Retry(after=LATER), Snooze(LATER)])
def test_redis_clock_does_not_say_until_when_a_job_waits(
    make_rig: MakeRig, verdict: Verdict, wrong_s: int
) -> None:
    rig = make_rig()
    rig.handler()(lambda job: verdict)
    worker = rig.alone()
    job_id = rig.center.schedule(1, LONG_AGO, biz_type=TYPE)
    shard, before_ms = rig.shard(job_id), rig.now_ms(job_id)
    popped_ms = before_ms + wrong_s * 1000
    batch = JobBatch("default", {shard: [job_id]}, popped_ms, rig.clock.monotonic_s(), popped=True)
    assert claimed(worker, 0, batch) == 1
    wait_until(lambda: rig.status(job_id) is Status.PENDING)
    due_ms = rig.row(job_id).due_ms
    assert due_ms is not None
    assert before_ms + 600_000 <= due_ms <= rig.now_ms(job_id) + 600_000 + ROUNDED_MS


@HOWS
def test_snooze_moves_the_job_and_does_not_count(make_rig: MakeRig, how: str) -> None:
    rig = make_rig()
    until = datetime.now(UTC) + LATER + timedelta(microseconds=1)
    job_id = fire(rig, Snooze(until), how)
    row = rig.row(job_id)
    until_ms = -((EPOCH - until) // timedelta(milliseconds=1))  # rounded up
    assert (row.status, row.attempts) == (Status.PENDING, 0)
    assert row.due_ms == row.action_ms == until_ms
    wait_until(lambda: rig.armed_ms(job_id) == until_ms and rig.out_ms(job_id) is None)


@pytest.mark.parametrize("verdict", [Retry(FAR), Snooze(FAR)])
def test_what_is_far_is_left_to_the_loader(make_rig: MakeRig, verdict: Verdict) -> None:
    rig = make_rig()
    job_id = fire(rig, verdict, "returned")
    assert rig.status(job_id) is Status.PENDING
    # Redis holds what is near (I6).
    wait_until(lambda: rig.out_ms(job_id) is None and rig.armed_ms(job_id) is None)


def test_snooze_for_a_while_counts_from_now(make_rig: MakeRig) -> None:
    rig = make_rig()
    times: list[float] = []

    @rig.handler(max_attempts=1)
    def handle(job: Job) -> Snooze | None:
        times.append(rig.clock.monotonic_s())
        assert job.attempts == 1
        return Snooze(timedelta(milliseconds=100)) if len(times) < 4 else None

    rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.wait_for(Status.DONE, job_id)
    assert len(times) == 4
    assert times[3] - times[0] >= 0.3


@pytest.mark.parametrize("past", [timedelta(days=-1), LONG_AGO])
def test_a_snooze_into_the_past_does_not_spin(
    make_rig: MakeRig, past: timedelta | datetime
) -> None:
    rig = make_rig(worker={"snooze_s_min": 0.5})
    times: list[float] = []

    @rig.handler()
    def handle(job: Job) -> Snooze | None:
        times.append(rig.clock.monotonic_s())
        return Snooze(past) if len(times) < 3 else None

    rig.start()
    rig.wait_for(Status.DONE, rig.center.schedule(1, NOW, biz_type=TYPE))
    assert len(times) == 3
    assert times[2] - times[0] >= 2 * 0.5


def test_the_last_error_is_in_the_dead_letter_and_redrive_gives_a_new_life(
    make_rig: MakeRig,
) -> None:
    rig = make_rig()
    attempts: list[int] = []
    healthy = False

    @rig.handler(max_attempts=3, retry=[0])
    def handle(job: Job) -> None:
        attempts.append(job.attempts)
        if not healthy:
            raise ConnectionError(f"bank \udcff says no, time {job.attempts}")

    rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.wait_for(Status.DEAD, job_id)
    assert attempts == [1, 2, 3]
    assert rig.row(job_id)[:3] == (Status.DEAD, 3, None)
    (letter,) = rig.center.dead(biz_type=TYPE)
    assert (letter.job_id, letter.attempts) == (job_id, 3)
    assert letter.error.startswith("ConnectionError: bank ? says no, time 3\n")
    assert "in handle" in letter.error
    assert rig.center.cancel(job_id) == "dead"

    healthy = True
    assert rig.center.redrive(job_id) == "redriven"
    rig.wait_for(Status.DONE, job_id)
    assert attempts == [1, 2, 3, 1]
    assert rig.center.dead() == []


def test_an_async_handler_beyond_its_timeout_is_tried_again(make_rig: MakeRig) -> None:
    rig = make_rig()
    attempts: list[int] = []

    @rig.handler(timeout=0.1, retry=[0])
    async def handle(job: Job) -> None:
        attempts.append(job.attempts)
        if job.attempts == 1:
            await asyncio.sleep(3600)

    rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.wait_for(Status.DONE, job_id)
    assert attempts == [1, 2]


def test_a_retry_asked_for_at_the_last_attempt_is_dead(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.handler(max_attempts=2)(lambda _: Retry(0, "still busy"))
    rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.wait_for(Status.DEAD, job_id)
    (letter,) = rig.center.dead()
    assert (letter.attempts, letter.error) == (2, "still busy")


def test_a_redriven_job_gives_way_to_a_newer_one(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.handler()(lambda _: Dead("no"))
    rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE, dedup_key="close")
    rig.wait_for(Status.DEAD, job_id)
    rig.center.schedule(1, FAR, biz_type=TYPE, dedup_key="close")
    assert rig.center.redrive(job_id) == "superseded"
    assert rig.status(job_id) is Status.DEAD


@pytest.mark.parametrize("wrong_by_s", [-3600.0, 3600.0])
def test_retries_follow_the_servers_clock(
    make_rig: MakeRig, mysql_database: str, wrong_by_s: float
) -> None:
    rig = make_rig(urls=[mysql_database], clock=LyingClock(wrong_by_s))
    rig.handler(retry=[600])(lambda _: 1 / 0)
    rig.start()
    rig.wait_for_loader()
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    wait_until(lambda: rig.row(job_id)[:2] == (Status.PENDING, 1))
    row = rig.row(job_id)
    assert row.due_ms is not None
    assert 600 <= (row.due_ms - row.action_ms) / 1000 < 630
    wait_until(lambda: rig.armed_ms(job_id) == row.due_ms)


@pytest.mark.parametrize("raises", [False, True])
def test_what_ended_in_its_handlers_transaction_has_ended(make_rig: MakeRig, raises: bool) -> None:
    rig = make_rig()
    stale, said = metric("toc_settles_refused_total"), []

    @rig.handler()
    def handle(job: Job) -> None:
        engine = create_engine(rig.settings.databases[0], poolclass=NullPool)
        with engine.begin() as connection:
            said.append(rig.center.complete(job, connection))
        if raises:
            raise RuntimeError("after its commit")

    rig.start()
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    wait_until(lambda: rig.status(job_id) is Status.DONE)
    if raises:  # what it says after its commit is refused
        wait_until(lambda: metric("toc_settles_refused_total") > stale)
    else:
        wait_until(lambda: rig.armed_ms(job_id) is None and rig.out_ms(job_id) is None)
        assert metric("toc_settles_refused_total") == stale
    assert (said, rig.row(job_id).attempts) == ([True], 1)
