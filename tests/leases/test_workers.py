"""Workers leave the jobs of pull types to remote consumers; reconciliation knows their topic."""

from __future__ import annotations

import threading
from datetime import timedelta

from tests.leases.conftest import MakeLeaseRig
from tests.leases.rig import TYPE
from tests.worker.waiting import wait_until
from toc.admin.job_explanation import explain_job
from toc.domain.job import Job, Status
from toc.domain.pull_types import topic_of_pull_type
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.reconcile.compare import ShardComparer
from toc.reconcile.databases_and_redis import DatabasesAndRedis
from toc.runtime.settings import Settings


def test_a_worker_for_every_type_runs_no_job_of_a_pull_type(make_rig: MakeLeaseRig) -> None:
    rig = make_rig(scanner={"grace_s": 0.1, "tick_s": 0.05})
    rig.declare()
    handlers, other_ran = Registry(), threading.Event()
    ran: list[str] = []

    def handle(job: Job) -> None:
        ran.append(job.biz_type)
        if job.biz_type == "other":
            other_ran.set()

    handlers.handler("*")(handle)
    handlers.handler(TYPE)(handle)
    (job_id,) = rig.schedule(action_time=timedelta(seconds=-60))
    # It was armed in the topic of other types too, by a client that did not know of the declaration.
    rig.remind("default", job_id)
    node = Node(Settings(**rig.values), handlers=handlers)
    node.start()
    try:
        assert node.work_sources is not None
        fallback = node.work_sources.fallbacks[0]
        wait_until(lambda: fallback.overdue.shards, "the fallback to see the overdue job")
        rig.schedule(first=2, biz_type="other")
        assert other_ran.wait(60)
        assert TYPE not in ran
        row = rig.row(job_id)
        assert (row.status, row.attempts) == (Status.PENDING, 0)
        (job,) = rig.lease(rig.replica())
        assert (job.job_id, job.attempt) == (job_id, 1)
        rig.expire(job_id, 60)  # no worker takes it over either
        rig.schedule(first=3, biz_type="other")
        wait_until(lambda: ran.count("other") == 2, "another job")
        assert rig.row(job_id).token == job.token
        assert TYPE not in ran
    finally:
        node.stop()


def test_reconciliation_expects_the_reminder_in_the_types_own_topic(make_rig: MakeLeaseRig) -> None:
    rig = make_rig()
    rig.declare()
    (job_id,) = rig.schedule(action_time=timedelta(minutes=5))
    settings = Settings(**rig.values)
    with DatabasesAndRedis.open(settings, rig.center._clock) as sides:
        compared = ShardComparer(sides).compare_shard(rig.shard(job_id))
        assert not compared.findings
        sides.reminders.ack(topic_of_pull_type(TYPE), [job_id])
        compared = ShardComparer(sides).compare_shard(rig.shard(job_id))
        assert [finding.topic for finding in compared.findings] == [topic_of_pull_type(TYPE)]


def test_explain_shows_the_reminder_in_the_types_own_topic(make_rig: MakeLeaseRig) -> None:
    rig = make_rig()
    rig.declare()
    (job_id,) = rig.schedule(action_time=timedelta(minutes=5))
    found = explain_job(Settings(**rig.values), job_id)
    (place,) = found.places
    assert place.topic == topic_of_pull_type(TYPE)
    assert place.armed_ms == rig.row(job_id).due_ms
