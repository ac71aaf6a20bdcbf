"""A repaired job fires, and does so once: a whole node beside the repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.contract.test_mending import with_routing_bits
from tests.reconcile.damage import ACTOR, K, TopicSlot
from tests.servers.endpoint import Endpoint
from tests.worker.rig import LATER, TYPE, Rig
from toc.domain.disagreements import Disagreement
from toc.domain.ids import routing_bits_of
from toc.domain.job import Job, Status
from toc.domain.routing import routing_hash_of
from toc.reconcile.databases_and_redis import DatabasesAndRedis
from toc.reconcile.findings import Finding
from toc.reconcile.repair import Repairer
from toc.store.events import read_events
from toc.store.reconcile_reads import ReconcileReads


@pytest.fixture(params=["sqlite", "mysql"])
def rig(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: Endpoint, redis_namespace: str
) -> Iterator[Rig]:
    """Neither scanner nor loader takes what the damage has hidden: that is for the repair."""
    url = f"sqlite:///{tmp_path}/toc.db"
    if request.param == "mysql":
        url = request.getfixturevalue("mysql_database")
    rig = Rig([url], redis_server.url, redis_namespace, timer={"load_tick_s": 0.1})
    yield rig
    rig.close()


class Yard:
    """Damage on a stack that is at work. Jobs are due at once; nothing reminds of them in time."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        opened = rig.center._open_connections()
        assert opened.reminders is not None
        self.databases, self.slots = opened.databases, opened.reminders
        self.database_metadata = opened.jobs._database_metadata
        self.number = 10_000
        self.findings: list[Finding] = []
        self.jobs: list[int] = []  # that shall run once

    def insert(self, shard: int) -> int:
        """A job that is due, and armed nowhere."""
        self.number += 1
        biz_id = next(n for n in range(self.number, 2**32) if routing_hash_of(n) % 4 == shard)
        self.number = biz_id
        job_id = self.rig.center.schedule(biz_id, timedelta(days=1), biz_type=TYPE)
        self.sql(job_id, "action_time = UTC_TIMESTAMP(3), due_time = UTC_TIMESTAMP(3)")
        return job_id

    def sql(self, job_id: int, change: str) -> None:
        if self.databases[0].sqlite:
            change = change.replace("UTC_TIMESTAMP(3)", "toc_now(0)").replace(
                "LATER", "toc_now(3600000)"
            )
        change = change.replace("LATER", "TIMESTAMPADD(HOUR, 1, UTC_TIMESTAMP(3))")
        self.rig.sql(job_id, f"UPDATE {{table}} SET {change} WHERE job_id = :id", id=job_id)

    def spot(self, job_id: int) -> TopicSlot:
        return "default", routing_bits_of(job_id) % 4

    def put(self, spot: TopicSlot, job_id: int) -> None:
        """A reminder in an hour."""
        key = self.slots._queue_keys(*spot)[0]
        in_an_hour = self.slots.read_time_ms() + 3_600_000
        self.slots.connected_client().execute_command("ZADD", key, in_an_hour, job_id)

    def find(self, kind: Disagreement, job_id: int, spot: TopicSlot | None = None) -> None:
        shard = self.rig.shard(job_id)
        row = next(iter(ReconcileReads(self.databases).read_full_rows(shard, [job_id])))
        self.findings.append(
            Finding(
                kind,
                shard,
                *(spot or self.spot(job_id)),
                job_id,
                row.biz_id,
                TYPE,
                int(row.status),
                row.action_ms,
                row.due_ms,
                row.attempts,
            )
        )

    def mend(self) -> None:
        find_name = self.database_metadata.types.find_name
        sides = DatabasesAndRedis(self.databases, self.slots, self.rig.settings, find_name)
        repairs = Repairer(sides, ACTOR)
        assert [mend for mend in repairs.repair_findings(self.findings) if not mend.done] == []
        self.findings.clear()

    def damage_out(self, shard: int) -> None:
        """One that is stuck in its PrepareQueue."""
        job_id = self.insert(shard)
        self.jobs.append(job_id)
        key = self.slots._queue_keys(*self.spot(job_id))[1]
        self.slots.connected_client().execute_command(
            "ZADD", key, self.slots.read_time_ms() - 600_000, job_id
        )
        self.find(K.STUCK, job_id)

    def damage(self, shard: int) -> None:
        """One of each other kind."""
        other = "default", (shard + 1) % 4
        for kind in (
            K.MISSING,
            K.OVERDUE,
            K.LATE,
            K.WRONG_SLOT,
            K.TWO_SLOTS,
            K.MOVED,
            K.LEASE_OVER,
        ):
            job_id = self.insert(shard)
            self.jobs.append(job_id)
            if kind in (K.LATE, K.TWO_SLOTS):
                self.put(self.spot(job_id), job_id)
            if kind in (K.WRONG_SLOT, K.TWO_SLOTS):
                self.put(other, job_id)
            if kind is K.MOVED:
                self.sql(job_id, "due_time = LATER")
            if kind is K.LEASE_OVER:
                self.rig.run_elsewhere(job_id, token="gone:1:x", attempts=1, lease_s=-1)
            self.find(kind, job_id, other if kind in (K.WRONG_SLOT, K.TWO_SLOTS) else None)
        self._damage_misfit(shard)
        orphan_id = self.insert(shard)
        self.sql(orphan_id, "status = 2, due_time = NULL")
        self.put(self.spot(orphan_id), orphan_id)
        self.find(K.ORPHAN, orphan_id)
        loader_s = self.insert(shard)  # behind the mark: until that is dropped, nobody brings it
        self.jobs.append(loader_s)
        self.findings.append(Finding(K.MARK_AHEAD, shard, *self.spot(loader_s)))

    def _damage_misfit(self, shard: int) -> None:
        job_id = self.insert(shard)
        routing_bits = routing_bits_of(job_id) ^ 0b100
        bad_id = with_routing_bits(job_id, routing_bits)
        self.rig.sql(
            job_id, "UPDATE {table} SET job_id = :bad WHERE job_id = :id", id=job_id, bad=bad_id
        )
        self.jobs.append(job_id)  # the copy gets the id that fits
        self.find(K.MISFIT, bad_id)


def test_what_was_repaired_fires_once(rig: Rig) -> None:
    runs: Counter[int] = Counter()

    @rig.handler(TYPE, timeout=1)
    def handle(job: Job) -> None:
        runs[job.job_id] += 1

    for shard in range(4):  # the loader's marks are beyond all that is due now
        rig.center.schedule(rig.biz_id_on(shard), LATER, biz_type=TYPE)
    yard = Yard(rig)
    for shard in range(4):  # a poller would put these right by itself
        yard.damage_out(shard)
    yard.mend()
    rig.start()
    rig.wait_for_loader()
    rig.wait_for(Status.DONE, *yard.jobs)
    for shard in range(4):
        yard.damage(shard)
    assert runs.total() == 4
    yard.mend()
    rig.wait_for(Status.DONE, *yard.jobs)
    assert runs == Counter(yard.jobs)
    for job_id in yard.jobs:
        database = yard.databases.database_of_shard(rig.shard(job_id))
        whats = [event.what for event in read_events(database, job_id, 10)]
        assert rig.row(job_id).attempts == (2 if "take_over" in whats else 1)
