"""Consumers of two replicas lease jobs and settle them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from tests.leases.rig import LeaseRig
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.leases.settlement import LeaseItem, Then


def test_a_waiting_consumer_gets_a_job_that_becomes_due(rig: LeaseRig) -> None:
    server = rig.replica()
    call = rig.waits(server, lease_s=30)
    (job_id,) = rig.schedule(
        action_time=timedelta(milliseconds=300), attribute={"a": 1}, tenant="t"
    )
    (job,) = call.result(100)
    assert (job.job_id, job.attempt, job.biz_id, job.tenant) == (job_id, 1, 1, "t")
    assert job.attribute == {"a": 1}
    row = rig.row(job_id)
    assert (row.status, row.attempts, row.token) == (Status.RUNNING, 1, job.token)
    assert row.due_ms == round(job.lease_until.timestamp() * 1000)
    ((seconds,),) = rig.sql(
        job_id,
        "SELECT TIMESTAMPDIFF(SECOND, claim_time, lease_end_time) FROM {table} WHERE job_id = :id",
        id=job_id,
    )
    assert seconds == 30
    # The timer fires when the lease ends, and is deleted when the job is done.
    assert rig.armed_ms(job_id) == row.due_ms
    assert rig.settle(server.finish, job) == ["settled"]
    assert rig.row(job_id).status is Status.DONE
    wait_until(lambda: rig.armed_ms(job_id) is None, "the ack")


def test_any_replica_settles_and_the_answer_is_the_same_twice(rig: LeaseRig) -> None:
    one, two = rig.replica(), rig.replica()
    (job_id,) = rig.schedule()
    (job,) = rig.lease(one)
    assert rig.settle(two.finish, job) == ["settled"]
    assert rig.settle(one.finish, job) == ["settled"]
    assert rig.settle(one.fail, job) == ["lost"]
    assert rig.row(job_id).status is Status.DONE


def test_each_replica_serves_its_own_consumers(rig: LeaseRig) -> None:
    servers = [rig.replica(), rig.replica()]
    calls = [rig.waits(server) for server in servers]
    job_ids = rig.schedule(2)
    got = [job.job_id for call in calls for job in call.result(100)]
    assert sorted(got) == sorted(job_ids)


def test_a_call_without_due_jobs_ends_empty(rig: LeaseRig) -> None:
    server = rig.replica()
    (job_id,) = rig.schedule(action_time=timedelta(hours=1))
    assert rig.lease(server, wait_s=0.3) == []
    assert rig.row(job_id).status is Status.PENDING


def test_an_old_token_changes_nothing(rig: LeaseRig) -> None:
    server = rig.replica()
    (job_id,) = rig.schedule()
    (old,) = rig.lease(server)
    assert rig.settle(server.release, old) == ["released"]
    (job,) = rig.lease(server)
    assert job.job_id == job_id
    assert job.token != old.token
    assert job.attempt == 1  # a release does not count
    for verb in (server.finish, server.fail, server.extend, server.release):
        assert rig.settle(verb, old) == ["lost"]
    row = rig.row(job_id)
    assert (row.status, row.token, row.attempts) == (Status.RUNNING, job.token, 1)


@pytest.mark.parametrize("end", [" ", "\xe9"])
def test_a_token_is_compared_as_it_is(rig: LeaseRig, end: str) -> None:
    """MySQL takes no notice of spaces at the end, and refuses to compare what the column cannot hold."""
    server = rig.replica()
    (job_id,) = rig.schedule()
    (job,) = rig.lease(server)
    wrong = replace(job, token=job.token + end)
    for verb in (server.finish, server.fail, server.extend, server.release):
        assert rig.settle(verb, wrong) == ["lost"]
    row = rig.row(job_id)
    assert (row.status, row.token) == (Status.RUNNING, job.token)
    assert rig.settle(server.finish, job) == ["settled"]


def test_a_failed_job_comes_back_by_the_policy_and_then_is_dead(rig: LeaseRig) -> None:
    rig.declare("twice", max_attempts=2, retry=[0])
    server = rig.replica()
    (job_id,) = rig.schedule(biz_type="twice")
    (first,) = rig.lease(server, types=["twice"])
    assert rig.settle(server.fail, first, reason="no paper") == ["settled"]
    (second,) = rig.lease(server, types=["twice"])
    assert second.attempt == 2
    assert rig.settle(server.fail, second, reason="no ink") == ["settled"]
    assert rig.row(job_id).status is Status.DEAD
    (letter,) = rig.center.dead(biz_type="twice")
    assert letter.error == "no ink"


def test_retry_after_wins_over_the_policy(rig: LeaseRig) -> None:
    server = rig.replica()
    (job_id,) = rig.schedule()
    (job,) = rig.lease(server)
    assert rig.settle(server.fail, job, retry_after_s=3600) == ["settled"]
    row = rig.row(job_id)
    assert row.status is Status.PENDING
    assert row.due_ms is not None
    assert row.due_ms - row.action_ms >= 3_600_000


def test_a_repeated_fail_leaves_the_reminder_at_the_time_of_the_first_one(rig: LeaseRig) -> None:
    server = rig.replica()
    (job_id, other_id) = rig.schedule(2)
    jobs = {job.job_id: job for _ in "ab" for job in rig.lease(server)}
    assert rig.settle(server.fail, jobs[job_id], retry_after_s=30) == ["settled"]
    due_ms = rig.row(job_id).due_ms
    assert rig.settle(server.fail, jobs[job_id], retry_after_s=60) == ["settled"]
    # Acks are sent in their order, so the next one shows that those before it have been sent.
    assert rig.settle(server.finish, jobs[other_id]) == ["settled"]
    wait_until(lambda: rig.armed_ms(other_id) is None, "the last ack")
    assert rig.row(job_id).due_ms == rig.armed_ms(job_id) == due_ms


def test_an_expired_lease_goes_to_another_consumer(rig: LeaseRig) -> None:
    one, two = rig.replica(), rig.replica()
    (job_id,) = rig.schedule()
    (lost,) = rig.lease(one, lease_s=1)
    (job,) = rig.lease(two)  # when the lease has ended, by itself
    assert (job.job_id, job.attempt) == (job_id, 2)
    assert rig.settle(one.finish, lost) == ["lost"]
    assert rig.settle(two.finish, job) == ["settled"]


def test_a_job_whose_last_lease_expired_is_dead(rig: LeaseRig) -> None:
    rig.declare("once", max_attempts=1)
    server = rig.replica()
    (job_id,) = rig.schedule(biz_type="once")
    (lost,) = rig.lease(server, types=["once"], lease_s=1)
    call = rig.waits(server, types=["once"])
    wait_until(lambda: rig.row(job_id).status is Status.DEAD, "the burial", 60)
    assert rig.settle(server.finish, lost) == ["lost"]
    call.cancel()


def test_an_extension_moves_the_end_of_the_lease(rig: LeaseRig) -> None:
    server = rig.replica()
    (job_id,) = rig.schedule()
    (job,) = rig.lease(server, lease_s=5)
    (result,) = rig.consumers.run(server.extend([LeaseItem(job_id, job.token, lease_s=50)]))
    assert result.outcome == "extended"
    assert result.lease_until is not None
    assert result.lease_until - job.lease_until > timedelta(seconds=40)
    assert rig.row(job_id).due_ms == round(result.lease_until.timestamp() * 1000)


@pytest.mark.parametrize(
    ("then", "status", "attempts"),
    [
        ("dead", Status.DEAD, 1),
        ("cancelled", Status.CANCELLED, 1),
        ("snooze", Status.PENDING, 0),
        ("retry", Status.PENDING, 1),
    ],
)
def test_a_failed_attempt_may_end_the_job_or_snooze(
    rig: LeaseRig, then: Then, status: Status, attempts: int
) -> None:
    """A repeated call settles nothing again, and the reminder is deleted or follows the row."""
    server = rig.replica()
    (job_id,) = rig.schedule()
    (job,) = rig.lease(server)
    item = LeaseItem(job_id, job.token, f"it is {then}", 30, then=then)
    for _ in "abc":
        (result,) = rig.consumers.run(server.fail([item]))
        assert result.outcome == "settled"
    row = rig.row(job_id)
    assert (row.status, row.attempts) == (status, attempts)
    armed_ms = row.due_ms if status.live else None
    wait_until(lambda: rig.armed_ms(job_id) == armed_ms, "the ack")
    letters = [it.error for it in rig.center.dead() if it.job_id == job_id]
    assert letters == (["it is dead"] if then == "dead" else [])
