"""Redis is told what the database has recorded: late perhaps, but nothing waits for it."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest

from tests.worker.conftest import MakeRig
from tests.worker.rig import FAR, NOW, TYPE, Gate
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.timer.reminders import Reminder
from toc.worker.acks import Ack, AckSender


def test_outcomes_are_recorded_while_redis_keeps_an_ack_waiting(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.handler()(lambda _: None)
    worker = rig.start()
    slots = worker.acks._reminders
    assert slots is not None
    hangs, go_on, ack = threading.Event(), threading.Event(), slots.ack

    def hang(topic: str, ids: Iterable[int]) -> None:
        if threading.current_thread().name == worker.acks.name:  # others meet what is not theirs
            hangs.set()
            assert go_on.wait(20)
        ack(topic, ids)

    slots.ack = hang  # type: ignore[method-assign]
    jobs = [rig.center.schedule(1, NOW, biz_type=TYPE)]
    assert hangs.wait(20)
    jobs += [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(2, 20)]
    rig.wait_for(Status.DONE, *jobs)
    wait_until(lambda: worker.jobs_in_flight == 0)
    assert any(rig.out_ms(job_id) for job_id in jobs)
    go_on.set()
    wait_until(lambda: not any(rig.out_ms(job_id) for job_id in jobs))


def test_a_stop_tells_what_waits(make_rig: MakeRig) -> None:
    rig = make_rig()
    gate = Gate()
    rig.handler()(gate)
    rig.start()
    jobs = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(4)]
    gate.wait(4)
    gate.open.set()
    assert rig.stop()
    assert {rig.status(job_id) for job_id in jobs} == {Status.DONE}
    assert not any(rig.out_ms(job_id) or rig.armed_ms(job_id) for job_id in jobs)


def test_no_more_wait_than_may_and_the_newest_of_them(
    make_rig: MakeRig, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig()
    jobs = [rig.center.schedule(n, NOW, biz_type=TYPE) for n in range(5)]
    acks = AckSender(rig.slots(), rig.clock, batch_max=2, queue_max=3)
    with caplog.at_level("WARNING"):
        acks.enqueue([Ack("default", job_id, None) for job_id in jobs[:3]])
        assert "Redis is slow" not in caplog.text
        acks.enqueue([Ack("default", job_id, None) for job_id in jobs[3:]])
        assert "Redis is slow" in caplog.text
    steps = 0
    while acks.run_once() == 0:
        steps += 1
    assert steps == 1  # two, and then the last one
    assert [rig.armed_ms(job_id) is None for job_id in jobs] == [False, False, True, True, True]


def test_what_is_put_immediately_before_a_stop_is_told(make_rig: MakeRig) -> None:
    rig = make_rig()
    acks = AckSender(rig.slots(), rig.clock, batch_max=2, queue_max=10)
    acks.start()
    jobs = [rig.center.schedule(n, FAR, biz_type=TYPE) for n in range(5)]
    due_ms = rig.row(jobs[0]).action_ms
    acks.enqueue([Ack("default", job_id, Reminder(due_ms, job_id)) for job_id in jobs])
    assert acks.stop(5.0)
    assert [rig.armed_ms(job_id) for job_id in jobs] == [due_ms] * 5


def test_a_broken_key_costs_no_other_topic_its_acks(make_rig: MakeRig) -> None:
    rig = make_rig()
    slots = rig.slots()
    assert slots is not None
    ack, told = slots.ack, list[str]()

    def failing(topic: str, ids: Iterable[int]) -> None:
        told.append(topic)
        if topic != "fine":
            raise ValueError("WRONGTYPE")
        ack(topic, ids)

    slots.ack = failing  # type: ignore[method-assign]
    acks = AckSender(slots, rig.clock, batch_max=10, queue_max=10)
    acks.enqueue([Ack(topic, 1, None) for topic in ("one", "fine", "two")])
    acks.run_once()
    assert sorted(told) == ["fine", "one", "two"]
