"""How far a real replica is behind."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from sqlalchemy.engine import make_url

from tests.invariants.conftest import _started
from tests.servers import Server, start_mysql_replica, start_mysql_source
from tests.servers.mysql import execute
from tests.worker.waiting import wait_until
from toc.retention.replica_lag import ReplicaLag
from toc.store.replica import Replica, ReplicaUnavailable
from toc.testing import TestClock

SMALL = "--innodb-buffer-pool-size=64M"


@pytest.fixture(scope="module")
def replicated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The replica of a pair of servers."""
    directory = tmp_path_factory.mktemp("replicated")
    for source in _started(lambda: start_mysql_source(directory / "source", SMALL)):
        with start_mysql_replica(directory / "replica", source, SMALL) as replica:
            yield replica


def test_one_that_follows_one_that_stands_still_one_that_is_gone(replicated: Server) -> None:
    execute(replicated, "SET GLOBAL super_read_only = 0")
    execute(replicated, "CREATE USER watcher@'127.0.0.1' IDENTIFIED BY 'secret'")
    execute(replicated, "GRANT REPLICATION CLIENT ON *.* TO watcher@'127.0.0.1'")
    url = make_url(replicated.url).set(username="watcher", password="secret")
    replica = Replica(url.render_as_string(hide_password=False), timeout_s=3)
    clock = TestClock()
    replicas = ReplicaLag([replica], clock)
    wait_until(lambda: replica.read_lag_s() == 0)
    assert replicas.lag_s == 0
    execute(replicated, "STOP REPLICA SQL_THREAD")
    assert replica.read_lag_s() is None
    assert replicas.lag_s == 0  # for a second it is not asked again
    clock.advance(1)
    assert replicas.lag_s == math.inf
    execute(replicated, "START REPLICA")
    wait_until(lambda: replica.read_lag_s() == 0)
    replicated.kill()
    with pytest.raises(ReplicaUnavailable):
        replica.read_lag_s()
    clock.advance(1)
    assert replicas.lag_s == math.inf


def test_a_server_that_is_no_replica_says_so(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    for engine in ("mysql", "mariadb"):
        replica = Replica(request.getfixturevalue(f"{engine}_server").url, timeout_s=3)
        assert replica.read_lag_s() is None
        assert ReplicaLag([replica], TestClock()).lag_s == math.inf
        assert f"no purge: {replica.name} does not replicate" in caplog.text


def test_without_replicas_there_is_no_lag() -> None:
    assert ReplicaLag([], TestClock()).lag_s == 0
