"""MySQL dies and comes back, or fails over; one of two databases is away."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from tests.deep import deep
from tests.invariants.conftest import _started
from tests.reliability.conftest import MakeFleet, Report
from tests.reliability.fleet import CALM_S, RATE, Account, Fleet, Load, shard_of
from tests.reliability.wire import Wire
from tests.servers import Server, start_mysql_replica, start_mysql_source
from tests.servers.mysql import execute, wait_for_replica
from tests.worker.waiting import wait_until

pytestmark = [pytest.mark.alone, pytest.mark.timeout(240)]

DOWN_S = 6
LEASE_S = 7.0
SMALL = "--innodb-buffer-pool-size=128M"


def database_on(server: Server) -> str:
    """The URL of a new database there."""
    name = "toc_own"
    engine = create_engine(server.url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    return f"{server.url}/{name}"


def end(server: Server, fleet: Fleet) -> None:
    """Saves the seconds of a stop in good order: all has been read."""
    for worker in fleet.workers:
        worker.kill()
    server.kill()


def judge(
    report: Report,
    what: str,
    account: Account,
    load: Load,
    in_flight: set[int],
    began_s: float,
    back_s: float,
) -> None:
    """What must hold after the only database was away, and writes its line."""
    figures, away_s = account.figures(load.ids), back_s - began_s
    on_time_s = account.late_until_s(load.ids, back_s)
    report(
        what,
        figures,
        f"away for {away_s:.1f} s, on time again {on_time_s:.1f} s later; "
        f"{load.refused} jobs refused to the client meanwhile",
    )
    assert (figures.lost, figures.early) == (0, 0)
    # What ran meanwhile is settled afterwards, as long as its lease lasts.
    assert account.twice(load.ids) <= (in_flight if away_s > LEASE_S - 3 else set())
    assert figures.late_max_s < away_s + LEASE_S + 8 + account.late_before_s(load.ids, began_s)
    assert on_time_s < 10


@deep
def test_mysql_is_killed_and_started(
    make_fleet: MakeFleet, own_mysql: Server, report: Report
) -> None:
    fleet = make_fleet(database=database_on(own_mysql), worker={"lease_s": LEASE_S})
    with fleet.load(RATE, sleep_s=0.05) as load:
        wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
        own_mysql.kill()
        killed_s = time.time()
        own_mysql.start()
        back_s = time.time()
        in_flight = fleet.running()
        scheduled = len(load.ids)
        wait_until(lambda: len(load.ids) >= scheduled + 800, "the client to go on", 40)
        time.sleep(2)
    fleet.wait_until_all_ended()
    account = fleet.account()
    end(own_mysql, fleet)
    what = f"the only MySQL killed (kill -9) and started, three workers, {RATE} jobs/s"
    judge(report, what, account, load, in_flight, killed_s, back_s)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """A server and its replica."""
    for source in _started(lambda: start_mysql_source(tmp_path / "source", SMALL)):
        with start_mysql_replica(tmp_path / "replica", source, SMALL) as replica:
            yield source, replica


def test_mysql_fails_over_to_its_replica(
    make_fleet: MakeFleet, pair: tuple[Server, Server], report: Report
) -> None:
    """As operators do it: no more writes, wait for the replica, let the address lead there."""
    source, replica = pair
    url = make_url(database_on(source))
    with Wire(f"{url.host}:{url.port}") as wire:
        host, _, port = wire.url.rpartition(":")
        moved = url.set(host=host, port=int(port)).render_as_string(hide_password=False)
        fleet = make_fleet(database=moved, worker={"lease_s": LEASE_S})
        with fleet.load(RATE, sleep_s=0.05) as load:
            wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
            execute(source, "SET GLOBAL super_read_only = 1")
            began_s = time.time()
            time.sleep(1)
            wait_for_replica(source, replica)
            execute(replica, "STOP REPLICA")
            execute(replica, "SET GLOBAL super_read_only = 0")
            execute(replica, "SET GLOBAL read_only = 0")
            in_flight = fleet.running()
            wire.lead(f"127.0.0.1:{make_url(replica.url).port}")
            back_s = time.time()
            source.kill()
            scheduled = len(load.ids)
            wait_until(lambda: len(load.ids) >= scheduled + 800, "the client to go on", 40)
        fleet.wait_until_all_ended()
        account = fleet.account()
        for worker in fleet.workers:
            worker.kill()
    what = f"MySQL fails over to its replica, three workers, {RATE} jobs/s"
    judge(report, what, account, load, in_flight, began_s, back_s)
    assert load.refused > 0  # it was met


@deep
@pytest.mark.parametrize("dead", [0, 1])
def test_one_of_two_databases_is_away(
    make_fleet: MakeFleet, own_mysql: Server, mysql_database: str, report: Report, dead: int
) -> None:
    databases = [mysql_database]
    databases.insert(dead, database_on(own_mysql))
    fleet = make_fleet(databases=databases)
    routing = fleet.stack.settings.routing

    def lies_there(job_id: int) -> bool:
        return routing.database_index(shard_of(fleet.stack, job_id)) == dead

    with fleet.load(RATE, sleep_s=0.02) as load:
        wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
        own_mysql.kill()
        killed_s = time.time()
        time.sleep(DOWN_S)
        own_mysql.start()
        back_s = time.time()
        time.sleep(5)
    fleet.wait_until_all_ended()
    account = fleet.account()
    end(own_mysql, fleet)
    figures = account.figures(load.ids)
    its = {j for j in load.ids if lies_there(j)}
    during = account.due(load.ids, killed_s, back_s)
    others, of_dead = account.figures(during - its), during & its
    last_s = max((min(account.starts[j]) / 1000 for j in of_dead if j in account.starts), default=0)
    on_time_s = account.late_until_s(its, back_s)
    report(
        f"one of two databases (number {dead}) killed, back after {back_s - killed_s:.0f} s; {RATE} jobs/s",
        figures,
        f"{others.jobs} jobs of the other meanwhile: p99 {others.late_p99_s:.2f} s late, "
        f"{others.late_max_s:.2f} s at most; {len(of_dead)} of the dead one, the last of them "
        f"{last_s - back_s:.1f} s after its return; {load.refused} jobs refused to the client, "
        f"whose slowest call took {load.slowest_call_s:.1f} s",
    )
    assert (figures.lost, figures.early) == (0, 0)
    assert not account.twice(set(load.ids) - its)
    assert others.jobs >= DOWN_S * 50
    assert others.late_max_s < 1 + account.late_before_s(load.ids, killed_s)
    assert of_dead
    assert last_s - back_s < 10
    assert on_time_s < 10
