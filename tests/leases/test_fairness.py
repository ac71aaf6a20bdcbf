"""Tenants, shares, consumers that vanish, and a replica that stops: no job sits without a taker."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from datetime import timedelta
from typing import Any

import pytest

from tests.leases.conftest import MakeLeaseRig
from tests.leases.rig import TYPE, WAIT_S, LeaseRig, sees_tenant
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.domain.pull_types import topic_of_pull_type
from toc.errors import InvalidInput
from toc.leases import demand
from toc.leases.demand import Reoffer
from toc.leases.expired_leases import BURY_AFTER_MS, ExpiredLeases
from toc.leases.settlement import LeaseItem


def test_foreign_and_unknown_jobs_have_the_same_answer(rig: LeaseRig) -> None:
    server = rig.replica()
    rig.schedule(tenant="a")
    (job,) = rig.lease(server, accept=sees_tenant("a"))
    items = [LeaseItem(job.job_id, job.token), LeaseItem(job.job_id + 1, job.token)]
    for verb in (server.finish, server.fail, server.extend, server.release):
        results = rig.consumers.run(verb(items, sees_tenant("b")))
        assert [result.outcome for result in results] == ["unknown", "unknown"]
    assert rig.row(job.job_id).token == job.token


def test_a_consumer_gets_its_tenants_job_behind_a_backlog_of_another_tenant(
    rig: LeaseRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = list[int]()
    record = Reoffer.record_batch

    def record_and_note(reoffer: Reoffer, refused: int, others: int) -> None:
        refusals.append(refused)
        record(reoffer, refused, others)

    monkeypatch.setattr(Reoffer, "record_batch", record_and_note)
    server = rig.replica()
    rig.center.schedule_many(
        [
            {"biz_id": number, "action_time": timedelta(seconds=-60), "tenant": "loud"}
            for number in range(1200)
        ],
        biz_type=TYPE,
    )
    (mine,) = rig.schedule(first=9000, tenant="quiet")
    (job,) = rig.lease(server, accept=sees_tenant("quiet"))
    assert job.job_id == mine
    assert (
        max(refusals) > 100
    )  # one consumer wants one job, but the backlog is passed in large steps
    # None of the others was claimed; their own consumer gets them within the longest delay.
    (loud, *_) = rig.lease(server, 10, accept=sees_tenant("loud"))
    assert (loud.tenant, loud.attempt) == ("loud", 1)


def test_a_job_that_nobody_here_may_see_is_put_back_for_a_while(
    rig: LeaseRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demand, "REOFFER_S_MIN", 3600.0)  # longer than any test takes
    monkeypatch.setattr(demand, "REOFFER_S_MAX", 7200.0)
    server = rig.replica()
    (job_id,) = rig.schedule(tenant="loud")
    call = rig.waits(server, accept=sees_tenant("quiet"))
    again_ms = rig.row(job_id).action_ms + 3_600_000
    wait_until(lambda: (rig.armed_ms(job_id) or 0) >= again_ms, "the reminder to be put back")
    call.cancel()
    assert rig.row(job_id).attempts == 0


def test_consumers_share_a_backlog_whatever_their_maximum(rig: LeaseRig) -> None:
    server = rig.replica()
    calls = [rig.waits(server, 100), rig.waits(server, 100)]
    wait_until(lambda: server.waiters_count == 2, "both to wait")
    rig.center.schedule_many(
        [{"biz_id": number, "action_time": timedelta(seconds=1)} for number in range(40)],
        biz_type=TYPE,
    )
    got = [call.result(100) for call in calls]
    assert all(got)  # each gets a part, though the first could have taken all
    tokens = [{job.token for job in jobs} for jobs in got]
    assert not tokens[0] & tokens[1]  # none can settle the jobs of the other one


def test_only_wanted_jobs_leave_the_queue_and_none_stays_popped(rig: LeaseRig) -> None:
    server, idle = rig.replica(), rig.replica()
    job_ids = rig.schedule(20)
    (job,) = rig.lease(server)
    reminders = rig.node_of(server).reminders
    assert reminders is not None
    topic = topic_of_pull_type(TYPE)
    wait_until(lambda: reminders.read_queue_sizes(topic, range(4)).out == 0, "an empty queue")
    assert reminders.read_queue_sizes(topic, range(4)).armed == 20
    assert [i for i in job_ids if rig.row(i).status is not Status.PENDING] == [job.job_id]
    assert not idle._sources._types[TYPE].pollers  # nobody has waited there


def test_a_last_lease_is_buried_only_after_a_give_back_can_come(rig: LeaseRig) -> None:
    rig.declare("once", max_attempts=1)
    server = rig.replica()
    (job_id,) = rig.schedule(biz_type="once")
    (job,) = rig.lease(server, types=["once"])
    database = rig.node_of(server).databases[0]
    rows = server._context.claims.read_rows(database, {rig.shard(job_id): [job_id]})
    end_ms = round(job.lease_until.timestamp() * 1000)
    expired = ExpiredLeases(database, server._context)
    assert expired.takeable_from_ms(rows[job_id], "once") == end_ms + BURY_AFTER_MS
    assert expired.takeable_from_ms(rows[job_id], TYPE) == end_ms  # it has attempts left


def test_a_job_claimed_for_a_consumer_that_has_vanished_is_given_back(
    rig: LeaseRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = rig.replica(), rig.replica()
    claims = one._context.claims
    claim = claims.claim_for_consumers

    def claim_after_the_call_has_ended(*arguments: Any) -> Any:
        call.cancel()
        wait_until(lambda: one.waiters_count == 0, "the call to end")
        return claim(*arguments)

    monkeypatch.setattr(claims, "claim_for_consumers", claim_after_the_call_has_ended)
    call = rig.waits(one, 2)
    (job_id,) = rig.schedule()
    with pytest.raises(CancelledError):
        call.result(100)
    (job,) = rig.lease(two)
    assert (job.job_id, job.attempt) == (job_id, 1)


def test_the_job_of_a_call_that_is_cancelled_before_it_returns_is_given_back(
    rig: LeaseRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = rig.replica(), rig.replica()
    room, delivered = one._context.room, threading.Event()
    deliver = room.deliver_jobs

    def deliver_while_the_call_cannot_go_on(*arguments: Any) -> Any:
        rig.consumers.loop.call_soon_threadsafe(delivered.wait, 60)
        call.cancel()
        left = deliver(*arguments)
        delivered.set()
        return left

    monkeypatch.setattr(room, "deliver_jobs", deliver_while_the_call_cannot_go_on)
    call = rig.waits(one, 2)
    (job_id,) = rig.schedule()
    assert delivered.wait(60)
    with pytest.raises(CancelledError):
        call.result(100)
    (job,) = rig.lease(two)
    assert (job.job_id, job.attempt) == (job_id, 1)


def test_a_call_that_is_cancelled_while_it_waits_takes_nothing(rig: LeaseRig) -> None:
    one, two = rig.replica(), rig.replica()
    call = rig.waits(one)
    wait_until(lambda: one.waiters_count == 1, "the call to wait")
    call.cancel()
    wait_until(lambda: one.waiters_count == 0, "the call to end")
    (job_id,) = rig.schedule()
    (job,) = rig.lease(two)
    assert (job.job_id, job.attempt) == (job_id, 1)
    with pytest.raises(CancelledError):
        call.result()


def test_jobs_given_back_are_leased_by_a_waiting_consumer_of_another_replica(rig: LeaseRig) -> None:
    one, two = rig.replica(), rig.replica()
    (job_id,) = rig.schedule()
    leased = rig.lease(one)
    call = rig.waits(two)
    one.give_back(leased)
    (job,) = call.result(100)
    assert (job.job_id, job.attempt) == (job_id, 1)
    assert rig.settle(one.finish, *leased) == ["lost"]


def test_a_stop_answers_the_consumers_and_leases_stay_valid(rig: LeaseRig) -> None:
    one, two = rig.replica(), rig.replica()
    (job_id,) = rig.schedule()
    (job,) = rig.lease(one)
    call = rig.waits(one)
    wait_until(lambda: one.waiters_count == 1, "the call to wait")
    assert rig.stop(one)
    assert call.result(WAIT_S / 3) == []  # by itself the call would wait for WAIT_S
    assert rig.settle(two.finish, job) == ["settled"]
    assert rig.row(job_id).status is Status.DONE


def test_a_type_declared_meanwhile_is_served(make_rig: MakeLeaseRig) -> None:
    rig = make_rig(catalogue={"refresh_s": 0.2})
    server = rig.replica()
    with pytest.raises(InvalidInput, match="is not declared as a pull type"):
        rig.lease(server)
    rig.declare()
    wait_until(lambda: rig.node_of(server).catalogue.get(TYPE), "the catalogue")
    (job_id,) = rig.schedule()
    (job,) = rig.lease(server)
    assert job.job_id == job_id


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("types", {"types": []}),
        ("types", {"types": ["unknown"]}),
        ("max", {"max_jobs": 0}),
        ("max", {"max_jobs": 101}),
        ("wait_s", {"wait_s": 61}),
        ("lease_s", {"lease_s": 0.5}),
        ("lease_s", {"lease_s": 61}),
    ],
)
def test_a_call_with_a_wrong_value_is_refused(
    rig: LeaseRig, field: str, changed: dict[str, object]
) -> None:
    server = rig.replica()
    arguments: dict[str, object] = {"types": [TYPE], "max_jobs": 1, "wait_s": 0} | changed
    with pytest.raises(InvalidInput) as refused:
        rig.consumers.run(server.lease(**arguments))  # type: ignore[arg-type]
    assert refused.value.field == field
    assert server.waiters_count == 0


def test_a_settling_call_with_a_wrong_value_is_refused(rig: LeaseRig) -> None:
    server = rig.replica()
    for item, field in (
        (LeaseItem(-1, "t"), "job_id"),
        (LeaseItem(1 << 40, ""), "token"),
        (LeaseItem(1 << 40, "t" * 97), "token"),
        (LeaseItem(1 << 40, "t", reason="x" * 1001), "reason"),
        (LeaseItem(1 << 40, "t", retry_after_s=-1), "retry_after_s"),
        (LeaseItem(1 << 40, "t", retry_after_s=366 * 86_400), "retry_after_s"),
        (LeaseItem(1 << 40, "t", retry_after_s=1e13, then="snooze"), "retry_after_s"),
        (LeaseItem(1 << 40, "t", then="later"), "then"),  # type: ignore[arg-type]
        (LeaseItem(1 << 40, "t", lease_s=3601), "lease_s"),
    ):
        with pytest.raises(InvalidInput) as refused:
            rig.consumers.run(server.fail([item]))
        assert refused.value.field == field
        assert "t" * 97 not in str(refused.value)
    with pytest.raises(InvalidInput):
        rig.consumers.run(server.finish([]))
