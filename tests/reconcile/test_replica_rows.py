"""Rows that are read on a real replica: one that follows, lags, differs, stands still, is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from secrets import token_hex
from typing import NamedTuple

import pytest

from tests.invariants.conftest import _started
from tests.reconcile.test_run import Damaged, database_on, own_redis_url, settings_of
from tests.servers import Server, start_mysql_replica, start_mysql_source
from tests.servers.mysql import execute, wait_for_replica
from tests.worker.waiting import wait_until
from toc.center.center import TimeoutCenter
from toc.reconcile.findings import ReconcileResult
from toc.reconcile.reconciliation import Reconciliation
from toc.store.replica import Replica

__all__ = ["own_redis_url"]

pytestmark = pytest.mark.timeout(120)

SMALL = "--innodb-buffer-pool-size=64M"


class Pair(NamedTuple):
    """A database with damage, on a server with a replica."""

    source: Server
    replica: Server
    database: str
    damaged: Damaged

    def run(self, lag_s_max: float) -> ReconcileResult:
        settings = self.damaged.settings
        changes = {
            "reconcile": settings.reconcile.model_copy(update={"replica_lag_s_max": lag_s_max}),
            "retention": settings.retention.model_copy(
                update={"replicas": {0: (self.replica.url,)}}
            ),
        }
        changed = settings.model_copy(update=changes)
        return Reconciliation(changed, None, repair=False, actor="test").run()

    def change_replica(self, sql: str) -> None:
        """Changes the replica alone."""
        execute(self.replica, "SET GLOBAL super_read_only = 0")
        execute(self.replica, sql)
        execute(self.replica, "SET GLOBAL super_read_only = 1")

    def delay_replica(self, delay_s: int) -> None:
        execute(self.replica, "STOP REPLICA SQL_THREAD")
        execute(self.replica, f"CHANGE REPLICATION SOURCE TO SOURCE_DELAY = {delay_s}")
        execute(self.replica, "START REPLICA SQL_THREAD")

    def schedule(self, first: int, number: int) -> list[int]:
        with TimeoutCenter(self.damaged.settings) as center:
            jobs = [(first + n, timedelta(seconds=200)) for n in range(number)]
            return center.schedule_many(jobs, biz_type="order.close")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """A source and its replica. A test breaks only what is of its own database, or the replica."""
    directory = tmp_path_factory.mktemp("pair")
    for source in _started(lambda: start_mysql_source(directory / "source", SMALL)):
        with start_mysql_replica(directory / "replica", source, SMALL) as replica:
            yield source, replica


@pytest.fixture
def pair(servers: tuple[Server, Server], own_redis_url: tuple[Server, str]) -> Iterator[Pair]:
    """A damaged database on them."""
    source, replica = servers
    if not replica.is_running:
        replica.start()
        execute(replica, "SET GLOBAL super_read_only = 1")
    url = database_on(source, f"toc_{token_hex(4)}")
    pair = Pair(
        source, replica, url.rpartition("/")[2], Damaged(settings_of((url,), own_redis_url[1]))
    )
    wait_for_replica(source, replica)
    yield pair
    if replica.is_running:
        pair.delay_replica(0)


def found(outcome: ReconcileResult) -> set[int]:
    assert outcome.failures == []
    return {finding.job_id for finding in outcome.findings}


def test_one_that_follows_is_read_and_accuses_nobody(pair: Pair) -> None:
    lost, rows = set(pair.damaged.lost), 400
    outcome = pair.run(60)
    assert found(outcome) == lost
    assert outcome.counts["replica"] == outcome.counts["rows"] == rows
    assert found(pair.damaged.run()) == lost
    assert pair.damaged.run().counts["replica"] == 0

    # A replica that differs: a healthy row is gone there, and another one is due at another time.
    healthy = f"WHERE job_id NOT IN ({', '.join(map(str, lost))})"
    pair.change_replica(f"DELETE FROM {pair.database}.toc_job_0003 {healthy} LIMIT 2")
    pair.change_replica(
        f"UPDATE {pair.database}.toc_job_0004 SET due_time = NULL {healthy} LIMIT 2"
    )
    differs = pair.run(60)
    assert (found(differs), differs.counts["replica"]) == (lost, rows - 4)
    assert differs.counts["suspects"] > outcome.counts["suspects"]


def test_one_that_lags_hides_only_what_is_new(pair: Pair) -> None:
    pair.delay_replica(3600)
    new = pair.schedule(5000, 40)
    with TimeoutCenter(pair.damaged.settings) as center:
        assert center.cancel(new[0])
    with closing(pair.damaged.slots()) as slots:
        slots.ack("default", [new[1]])
    replica = Replica(pair.replica.url, timeout_s=3)
    wait_until(lambda: (replica.read_lag_s() or 0) > 0)

    behind = pair.run(3600)
    assert found(behind) == set(pair.damaged.lost)
    assert behind.counts["replica"] == 400
    within = pair.run(0)
    assert within.counts["replica"] == 0
    assert found(within) == {*pair.damaged.lost, new[1]}


def test_one_that_stands_still_or_is_gone_is_not_read(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    execute(pair.replica, "STOP REPLICA SQL_THREAD")
    still = pair.run(3600)
    assert (found(still), still.counts["replica"]) == (set(pair.damaged.lost), 0)
    execute(pair.replica, "START REPLICA SQL_THREAD")
    pair.change_replica(f"RENAME TABLE {pair.database}.toc_job_0003 TO {pair.database}.away")
    lacks = pair.run(3600)
    assert found(lacks) == set(pair.damaged.lost)
    assert 0 < lacks.counts["replica"] < lacks.counts["rows"] == 400
    change = "SET value = 'x' WHERE name = 'database_id'"
    pair.change_replica(f"UPDATE {pair.database}.toc_meta {change}")
    other = pair.run(3600)
    assert (found(other), other.counts["replica"]) == (set(pair.damaged.lost), 0)
    assert "it is no replica of it" in caplog.text
    pair.replica.kill()
    gone = pair.run(3600)
    assert (found(gone), gone.counts["replica"]) == (set(pair.damaged.lost), 0)
