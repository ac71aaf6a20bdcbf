"""Pauses of types, topics and everything: what waits, what goes on, and the order afterwards (ADR 44)."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import LATER, LONG_AGO, NOW, TYPE, Gate, Rig, metric
from tests.worker.test_declared import declare
from tests.worker.waiting import wait_until
from toc.domain.job import Job, Status
from toc.domain.pauses import hold_topic_of
from toc.handlers.verdicts import Retry
from toc.store import pauses
from toc.timer.reminder import Reminder

OTHER = "order.remind"
TOPICS = {"slow": {"biz_types": [OTHER]}}
HOLD = hold_topic_of(TYPE)


def change_and_wait(rig: Rig, verb: str, biz_type: str | None, **options: Any) -> None:
    """Pauses or resumes, and waits until the node knows it."""
    getattr(rig.center, verb)(biz_type, **options)
    wait_until_known(rig, closed=verb == "pause", topic=options.get("topic"), biz_type=biz_type)


def wait_until_known(
    rig: Rig, *, closed: bool, topic: str | None = None, biz_type: str | None = None
) -> None:
    assert rig.node is not None
    assert rig.node.pauses is not None
    gate = rig.node.pauses.gate
    name = OTHER if topic == "slow" else biz_type or TYPE
    wait_until(lambda: gate.is_closed(name) == closed, "the node to know the change")


@pytest.fixture(params=["redis", "no redis"])
def rig(request: pytest.FixtureRequest, make_rig: MakeRig) -> Rig:
    if request.param == "redis":
        return make_rig(topics=TOPICS)
    return make_rig(redis_url="none", topics=TOPICS)


def test_a_paused_type_waits_and_others_run(rig: Rig) -> None:
    ran: list[str] = []
    rig.handler()(lambda _: ran.append(TYPE))
    rig.handler("order.check")(lambda _: ran.append("order.check"))
    rig.start()
    change_and_wait(rig, "pause", TYPE)
    waiting = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(20)]
    others = [rig.center.schedule(n, NOW, biz_type="order.check") for n in range(20)]
    rig.wait_for(Status.DONE, *others)
    assert set(ran) == {"order.check"}
    assert {rig.row(job_id).status for job_id in waiting} == {Status.PENDING}
    assert rig.center.cancel(waiting[0]) == "cancelled"
    change_and_wait(rig, "resume", TYPE, now=True)
    rig.wait_for(Status.DONE, *waiting[1:])
    assert {rig.row(job_id).attempts for job_id in waiting[1:]} == {1}  # no attempt was lost
    assert ran.count(TYPE) == 19


@pytest.mark.parametrize("target", ["topic", "everything"])
def test_a_paused_topic_waits(rig: Rig, target: str) -> None:
    rig.handler()(lambda _: None)
    rig.handler(OTHER)(lambda _: None)
    rig.start()
    options: dict[str, Any] = {"topic": "slow"} if target == "topic" else {"everything": True}
    change_and_wait(rig, "pause", None, **options)
    waiting = [rig.center.schedule(n, NOW, biz_type=OTHER) for n in range(10)]
    other = rig.center.schedule(1, NOW, biz_type=TYPE)
    if target == "topic":
        rig.wait_for(Status.DONE, other)
    else:
        waiting.append(other)
    assert {rig.row(job_id).status for job_id in waiting} == {Status.PENDING}
    change_and_wait(rig, "resume", None, now=True, **options)
    rig.wait_for(Status.DONE, *waiting)
    assert {rig.row(job_id).attempts for job_id in waiting} == {1}


def test_a_pause_ends_by_itself(rig: Rig) -> None:
    rig.handler()(lambda _: None)
    rig.start()
    change_and_wait(rig, "pause", TYPE)
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.center.pause(TYPE, until=timedelta(seconds=1.5))
    rig.wait_for(Status.DONE, job_id)
    (info,) = rig.center.pauses()
    assert (info.target, info.state) == (f"type:{TYPE}", "ramping")
    end_ms = info.until_ms
    assert end_ms is not None
    assert rig.now_ms(job_id) >= end_ms


def test_what_runs_ends_and_what_waits_for_a_thread_is_given_back(make_rig: MakeRig) -> None:
    rig = make_rig(worker={"concurrency": 2, "queue_max": 16})
    gate = Gate()
    rig.handler()(gate)
    rig.start()
    jobs = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(6)]
    gate.wait(2)
    change_and_wait(rig, "pause", TYPE)
    gate.open.set()
    begun = [job.job_id for job in gate.begun]
    rig.wait_for(Status.DONE, *begun)
    rest = [job_id for job_id in jobs if job_id not in begun]
    rig.wait_for(Status.PENDING, *rest)
    assert len(rest) == 4
    assert {rig.row(job_id).attempts for job_id in rest} == {0}
    change_and_wait(rig, "resume", TYPE, now=True)
    rig.wait_for(Status.DONE, *rest)


def test_reminders_of_a_paused_type_wait_in_its_hold_topic_in_their_order(
    make_rig: MakeRig,
) -> None:
    rig = make_rig(worker={"concurrency": 1, "queue_max": 1})
    ran: list[int | str] = []
    rig.handler()(lambda job: ran.append(job.biz_id))
    rig.start()
    change_and_wait(rig, "pause", TYPE)
    jobs = {
        n: rig.center.schedule(rig.biz_id_on(0, n), LONG_AGO + timedelta(seconds=s), biz_type=TYPE)
        for n, s in enumerate([5, 3, 4, 1, 2])
    }
    due_ms = {n: rig.row(job_id).due_ms for n, job_id in jobs.items()}
    wait_until(
        lambda: all(rig.armed_ms(job_id, HOLD) == due_ms[n] for n, job_id in jobs.items()),
        "the reminders to be in the hold topic",
    )
    assert all(rig.armed_ms(job_id) is None for job_id in jobs.values())
    assert all(rig.out_ms(job_id) is None for job_id in jobs.values())
    change_and_wait(rig, "resume", TYPE, now=True)
    rig.wait_for(Status.DONE, *jobs.values())
    assert ran == [rig.biz_id_on(0, n) for n in (3, 4, 1, 2, 0)]
    wait_until(lambda: all(rig.out_ms(job_id, HOLD) is None for job_id in jobs.values()))


@pytest.mark.parametrize("restriction", ["pause", "limit"])
def test_no_reminder_goes_to_a_hold_topic_that_will_not_be_popped(
    make_rig: MakeRig, restriction: str
) -> None:
    """After the end of a restriction its hold topic is popped for a while, and nothing is added to it."""
    rig = make_rig(catalogue={"refresh_s": 0.1})

    def fail_once(job: Job) -> object:
        return None if job.attempts > 1 else Retry(LATER)

    rig.handler()(fail_once)
    if restriction == "limit":
        declare(rig, TYPE, rate="1/h", burst=1)
    rig.start()
    assert rig.node is not None
    assert rig.node.pauses is not None
    gate = rig.node.pauses.gate
    if restriction == "pause":
        change_and_wait(rig, "pause", TYPE)
    held = rig.center.schedule(1, NOW, biz_type=TYPE)
    wait_until(lambda: rig.armed_ms(held, HOLD) is not None, "the reminder to be held")
    if restriction == "pause":
        change_and_wait(rig, "resume", TYPE, now=True)
    else:
        declare(rig, TYPE)
        wait_until(lambda: not gate.is_moved(TYPE), "the node to know the change")
    later = rig.center.schedule(2, NOW, biz_type=TYPE)
    for job_id in held, later:
        wait_until(lambda job_id=job_id: rig.row(job_id).attempts == 1, "the first attempt")
        wait_until(lambda job_id=job_id: rig.armed_ms(job_id) is not None, "the retry to be armed")
        wait_until(lambda job_id=job_id: rig.out_ms(job_id, HOLD) is None, "the hold to be empty")
        assert rig.armed_ms(job_id, HOLD) is None
    assert hold_topic_of(TYPE) in hold_topics(rig)  # it is still popped


def hold_topics(rig: Rig) -> frozenset[str]:
    assert rig.node is not None
    assert rig.node.work_sources is not None
    assert rig.node.work_sources.hold_sources is not None
    return rig.node.work_sources.hold_sources.topics


def test_only_due_reminders_move_to_a_hold_topic(make_rig: MakeRig) -> None:
    """A job that was rescheduled while its reminder was due: the hold topic may be gone at its new time."""
    rig = make_rig()
    rig.handler()(lambda _: None)
    job_id = rig.center.schedule(1, LATER, biz_type=TYPE)
    due_ms = rig.row(job_id).due_ms
    assert due_ms is not None
    slots = rig.slots()
    assert slots is not None
    slots.put_back("default", [Reminder(due_ms - 700_000, job_id)])  # an old one
    rig.start()
    change_and_wait(rig, "pause", TYPE)
    slots.put_back("default", [Reminder(due_ms - 700_000, job_id)])
    wait_until(lambda: rig.armed_ms(job_id) == due_ms, "the reminder to be put back")
    assert rig.armed_ms(job_id, HOLD) is None


def test_a_paused_type_is_not_popped_again_and_again(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.handler()(lambda _: None)
    rig.start()
    change_and_wait(rig, "pause", TYPE)
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    wait_until(lambda: rig.armed_ms(job_id, HOLD) is not None)
    assert rig.node is not None
    assert rig.node.work_sources is not None
    hold = rig.node.work_sources.hold_sources
    assert hold is not None
    steps: list[float] = []
    told = threading.Event()
    (poller,) = hold.pollers
    run_once = poller.run_once

    def counted() -> float:
        steps.append(run_once())
        if len(steps) >= 3:
            told.set()
        return steps[-1]

    poller.run_once = counted  # type: ignore[method-assign]
    assert told.wait(30)
    assert min(steps) >= 0.5  # it asks again after a second, and not at once
    assert rig.out_ms(job_id, HOLD) is None


def test_a_job_whose_lease_is_lost_is_not_taken_over_during_a_pause(rig: Rig) -> None:
    seen: list[Job] = []
    rig.handler()(seen.append)
    rig.handler(OTHER)(seen.append)
    rig.start()
    change_and_wait(rig, "pause", TYPE)
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    rig.run_elsewhere(job_id, token="gone:1", attempts=1, lease_s=-1)
    other = rig.center.schedule(1, NOW, biz_type=OTHER)
    rig.wait_for(Status.DONE, other)
    assert rig.status(job_id) is Status.RUNNING
    change_and_wait(rig, "resume", TYPE, now=True)
    rig.wait_for(Status.DONE, job_id, seconds=60)


def test_lateness_during_a_pause_counts_apart(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.handler()(lambda _: None)
    rig.start()
    name = "toc_job_lateness_seconds_count"
    paused_name = "toc_job_lateness_paused_seconds_count"
    change_and_wait(rig, "pause", TYPE)
    job_id = rig.center.schedule(1, NOW, biz_type=TYPE)
    wait_until(lambda: rig.armed_ms(job_id, HOLD) is not None)
    before, paused_before = metric(name), metric(paused_name)
    change_and_wait(rig, "resume", TYPE)
    rig.wait_for(Status.DONE, job_id)
    assert (metric(name), metric(paused_name)) == (before, paused_before + 1)


def test_a_node_that_starts_during_a_pause_claims_nothing(rig: Rig) -> None:
    seen: list[Job] = []
    rig.handler()(seen.append)
    rig.handler(OTHER)(seen.append)
    rig.center.pause(TYPE, reason="the shop is down")
    jobs = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(5)]
    rig.start()
    other = rig.center.schedule(1, NOW, biz_type=OTHER)
    rig.wait_for(Status.DONE, other)
    assert {rig.row(job_id).attempts for job_id in jobs} == {0}
    (info,) = rig.center.pauses()
    assert info.reason == "the shop is down"


def test_run_now_goes_through_a_pause(rig: Rig) -> None:
    seen: list[Job] = []
    rig.handler()(seen.append)
    rig.start()
    change_and_wait(rig, "pause", TYPE)
    jobs = [rig.center.schedule(n, timedelta(hours=1), biz_type=TYPE) for n in range(5)]
    due = rig.center.schedule(9, NOW, biz_type=TYPE)
    assert rig.center.run_now(jobs[2], reason="the customer waits") == "rescheduled"
    assert rig.center.run_now(due) == "rescheduled"
    rig.wait_for(Status.DONE, jobs[2], due)
    rest = [job_id for job_id in jobs if job_id != jobs[2]]
    assert {rig.row(job_id).attempts for job_id in rest} == {0}
    assert sorted(job.job_id for job in seen) == sorted([jobs[2], due])
    ((actor, reason),) = rig.sql(
        due, "SELECT actor, reason FROM toc_pause WHERE target = :it", it=f"job:{jobs[2]}"
    )
    assert reason == "the customer waits"
    assert actor


def test_any_number_of_jobs_goes_through_a_pause(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "PASSES_MAX", 3)  # that are read at once
    rig = make_rig(redis_url="none")
    rig.handler()(lambda _: None)
    rig.start()
    change_and_wait(rig, "pause", TYPE)
    jobs = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(8)]
    for job_id in jobs:
        assert rig.center.run_now(job_id) == "rescheduled"
    rig.wait_for(Status.DONE, *jobs, seconds=40)


def test_run_now_writes_no_pass_for_a_type_that_is_open(rig: Rig) -> None:
    rig.handler()(lambda _: None)
    rig.start()
    rig.center.pause(OTHER)
    job_id = rig.center.schedule(1, timedelta(hours=1), biz_type=TYPE)
    rig.center.run_now(job_id)
    rig.wait_for(Status.DONE, job_id)
    assert rig.sql(job_id, "SELECT 1 FROM toc_pause WHERE target LIKE 'job:%'") == []


@pytest.mark.parametrize("redis", [True, False])
def test_what_a_ramp_does_not_admit_waits_and_others_run(make_rig: MakeRig, redis: bool) -> None:
    """The ramp allows a job in a hundred seconds."""
    slow: dict[str, Any] = {"pauses": {"ramp_rate_min": 0.01}}
    rig = make_rig(**slow) if redis else make_rig(redis_url="none", **slow)
    rig.handler()(lambda _: None)
    rig.handler(OTHER)(lambda _: None)
    rig.start()
    change_and_wait(rig, "pause", TYPE)
    change_and_wait(rig, "resume", TYPE)
    jobs = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(10)]
    others = [rig.center.schedule(n, NOW, biz_type=OTHER) for n in range(10)]
    rig.wait_for(Status.DONE, *others)
    if redis:
        wait_until(lambda: all(rig.armed_ms(job_id, HOLD) is not None for job_id in jobs))
    assert sum(rig.row(job_id).attempts for job_id in jobs) <= 1
    assert rig.center.run_now(jobs[5]) == "rescheduled"
    rig.wait_for(Status.DONE, jobs[5])
    rig.center.resume(TYPE, now=True)
    rig.wait_for(Status.DONE, *jobs)
    assert {rig.row(job_id).attempts for job_id in jobs} == {1}


@pytest.mark.parametrize("redis", [True, False])
def test_a_ramp_keeps_its_rate(make_rig: MakeRig, redis: bool) -> None:
    terms: dict[str, Any] = {"pauses": {"ramp_rate_min": 20}, "topics": TOPICS}
    rig = make_rig(**terms) if redis else make_rig(redis_url="none", **terms)
    rig.handler(OTHER)(lambda _: None)
    rig.start()
    change_and_wait(rig, "pause", None, topic="slow")
    jobs = [rig.center.schedule(n, NOW, biz_type=OTHER) for n in range(40)]
    info = rig.center.resume(topic="slow")
    assert (info.state, info.rate_per_s) == ("ramping", 20)
    rig.wait_for(Status.DONE, *jobs, seconds=60)
    assert info.until_ms is not None
    claimed_ms = [_claimed_ms(rig, job_id) for job_id in jobs]
    # At most 4 at once, and then 20 in a second: by the database's clock, which both times are of.
    assert max(claimed_ms) - info.until_ms >= 1000 * (40 - 4 - 1) / 20


def _claimed_ms(rig: Rig, job_id: int) -> int:
    ((text,),) = rig.sql(
        job_id, "SELECT CAST(claim_time AS CHAR) FROM {table} WHERE job_id = :id", id=job_id
    )
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def test_the_peak_before_a_pause_is_in_its_row(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.handler()(lambda _: None)
    rig.start()
    assert rig.node is not None
    assert rig.node.pauses is not None
    meter = rig.node.pauses.services[-1]._meter  # type: ignore[attr-defined]
    jobs = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(30)]
    rig.wait_for(Status.DONE, *jobs)
    wait_until(lambda: rig.clock.monotonic_s() - meter._measured_s > 1, "a measurement to count")
    cache = rig.node.pauses.cache
    rig.center.pause(TYPE)

    def peak() -> int:
        found = cache.all().get(f"type:{TYPE}")
        return 0 if found is None else found.row.peak_per_min

    wait_until(lambda: peak() > 0, "the peak to be in the row")
    assert peak() <= 30 * 60
    resumed = rig.center.resume(TYPE)
    assert resumed.rate_per_s == 50  # ramp_rate_min: a tenth of the peak is less
