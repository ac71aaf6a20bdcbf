"""Occurrences of recurring schedules whose type remote consumers lease."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.leases.rig import TYPE, LeaseRig
from tests.worker.waiting import wait_until
from toc.center.connections import Connections
from toc.domain.job import Job, Status
from toc.errors import StoreUnavailable
from toc.leases.settlement import Then
from toc.store.databases import Database

NAME = "rec.pull"


def occurrences(rig: LeaseRig) -> list[Job]:
    """By nominal time."""
    return sorted(rig.center.find(NAME), key=lambda job: job.dedup_key or "")


def test_each_finished_lease_makes_the_next_occurrence(rig: LeaseRig) -> None:
    server = rig.replica()
    rig.center.recur(NAME, every=1, biz_type=TYPE, overlap="queue")
    for number in range(1, 4):
        (job,) = rig.lease(server)
        assert job.nominal_time == occurrences(rig)[-1].nominal_time
        assert rig.settle(server.finish, job) == ["settled"]
        assert rig.settle(server.finish, job) == ["settled"]  # again: nothing more is made
        assert len(occurrences(rig)) == number + 1
    first, *others = [job.nominal_time for job in occurrences(rig)]
    assert first is not None
    assert others == [first + number * timedelta(seconds=1) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    ("then", "made"), [("dead", 2), ("cancelled", 2), ("retry", 1), ("snooze", 1)]
)
def test_a_failed_lease_makes_the_next_one_only_if_it_ends_the_job(
    rig: LeaseRig, then: Then, made: int
) -> None:
    server = rig.replica()
    rig.center.recur(NAME, every=1, biz_type=TYPE, overlap="queue")
    (job,) = rig.lease(server)
    assert rig.settle(server.fail, job, then=then, retry_after_s=600.0) == ["settled"]
    assert len(occurrences(rig)) == made


def test_the_first_call_of_a_client_arms_the_first_occurrence(rig: LeaseRig) -> None:
    rig.center.recur(NAME, every=60, biz_type=TYPE)
    (first,) = occurrences(rig)
    assert rig.armed_ms(first.job_id) == first.action_ms


def test_a_job_that_is_committed_is_told_though_its_database_does_not_answer_any_more(
    rig: LeaseRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who got an error would call again, and make one more job."""
    rig.center.recur(NAME, every=60, biz_type=TYPE)

    def away(_state: Connections, database: Database) -> int:
        raise StoreUnavailable(database.index, OSError("away"))

    monkeypatch.setattr(Connections, "database_now_ms", away)
    job_id = rig.center.recurring.run(NAME)
    assert job_id in {job.job_id for job in occurrences(rig)}


def test_the_next_occurrence_is_armed(rig: LeaseRig) -> None:
    server = rig.replica()
    rig.center.recur(NAME, every=60, biz_type=TYPE)
    first = occurrences(rig)[0]
    assert rig.center.run_now(first.job_id).ok
    (job,) = rig.lease(server)
    assert rig.settle(server.finish, job) == ["settled"]
    _, second = occurrences(rig)
    assert second.status is Status.PENDING
    wait_until(lambda: rig.armed_ms(second.job_id) == second.action_ms, "the reminder")
