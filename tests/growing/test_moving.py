"""A database moves while three workers fire its jobs, and another's, and clients schedule more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.deep import deep
from tests.growing.dying_mover import mover_dies
from tests.invariants.conftest import _started
from tests.invariants.harness import ROOT
from tests.reliability.conftest import MakeFleet, Report
from tests.reliability.fleet import Account, Fleet, shard_of
from tests.servers import Server, start_mysql_replica, start_mysql_source
from tests.servers.mysql import execute, wait_for_replica
from tests.worker.waiting import wait_until
from toc.store.database_home import FENCED_S_MAX

pytestmark = [pytest.mark.alone, pytest.mark.timeout(300)]

MOVES = 1  # the index of the database that moves
SCHEMA = "toc_own"
RATE = 200
AFTER_S = 6.0


class Servers(NamedTuple):
    old: Server
    new: Server

    def url(self, server: Server) -> str:
        return f"{server.url}/{SCHEMA}"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    small = "--innodb-buffer-pool-size=128M"
    for old in _started(lambda: start_mysql_source(tmp_path / "old", small)):
        execute(old, f"CREATE DATABASE {SCHEMA}")
        with start_mysql_replica(tmp_path / "new", old, small) as new:
            yield Servers(old, new)
            new.kill()  # saves the seconds of a stop in good order: all has been read
            old.kill()


def toc_move(fleet: Fleet, *options: str) -> dict[str, Any]:
    """The command, in a process of its own, with the fleet's settings."""
    settings = fleet.stack.settings
    environment = {
        "TOC_DATABASES": ",".join(settings.databases),
        f"TOC_MOVING__{MOVES}": settings.moving[MOVES],
        "TOC_SHARDS": str(settings.shards),
        "TOC_NAMESPACE": settings.namespace,
        "TOC_ZOOKEEPER_HOSTS": settings.zookeeper_hosts,
        "PYTHONPATH": str(ROOT),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOC_")}
    done = subprocess.run(
        [sys.executable, "-m", "toc", "move", str(MOVES), "--json", *options],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def reads_from_now_on(fleet: Fleet, urls: Mapping[int, str]) -> None:
    """The account of the jobs is drawn up where the databases are now."""
    databases = [urls.get(n, url) for n, url in enumerate(fleet.stack.settings.databases)]
    fleet.stack.settings = fleet.stack.settings.model_copy(update={"databases": tuple(databases)})


def widest_gap_s(account: Account, ids: set[int], from_s: float, to_s: float) -> float:
    """The longest time without a handler's start among these jobs."""
    times = [start / 1000 for j in ids for start in account.starts.get(j, ())]
    times = sorted(t for t in times if from_s - 2 <= t <= to_s)
    return max((b - a for a, b in pairwise(times)), default=0.0)


def test_it_moves_under_load(
    make_fleet: MakeFleet, servers: Servers, mysql_database: str, report: Report
) -> None:
    fleet = make_fleet(
        databases=[mysql_database, servers.url(servers.old)],
        moving={MOVES: servers.url(servers.new)},
    )
    fleet.wait_until_shared(fleet.workers)
    with fleet.load(RATE, sleep_s=0.02) as load:
        wait_until(lambda: fleet.started() >= 3 * RATE, "load", 60)
        wait_for_replica(servers.old, servers.new)
        checked = toc_move(fleet, "--check")
        assert checked["ready"]
        (nodes,) = [each for each in checked["checks"] if each["check"] == "nodes in ZooKeeper"]
        assert (nodes["level"], nodes["found"]) == ("ok", "3 of 3 know of it")
        began_s, scheduled = time.time(), len(load.ids)
        moved = toc_move(fleet, "--go")
        ended_s = time.time()
        frozen = executed(servers.old)
        time.sleep(AFTER_S)
        assert len(load.ids) > scheduled + AFTER_S * RATE / 2
    account, its = drawn_up(fleet, servers, load.ids)

    others = set(load.ids) - its
    figures = account.figures(load.ids)
    during = account.due(load.ids, began_s, ended_s + 2)
    here, there = account.figures(during & its), account.figures(during & others)
    gap_s = widest_gap_s(account, its, began_s, ended_s + 3)
    report(
        f"one of two databases moved to another MySQL, {RATE} jobs/s, three workers",
        figures,
        f"its writes paused for {moved['pause_ms']} ms; of {here.jobs} of its jobs due meanwhile p99 "
        f"{here.late_p99_s:.2f} s late, {here.late_max_s:.2f} s at most, longest gap {gap_s:.2f} s; of "
        f"{there.jobs} of the other's p99 {there.late_p99_s:.2f} s, {there.late_max_s:.2f} s at most; "
        f"{load.refused} jobs refused to the client, whose slowest call took {load.slowest_call_s:.2f} s",
    )
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
    assert min(here.jobs, there.jobs) > 100
    # As long as the pause, and what connecting anew takes three workers on this machine.
    calm_s = account.late_before_s(load.ids, began_s)
    assert here.late_max_s < moved["pause_ms"] / 1000 + 5 + calm_s
    assert there.late_max_s < 2 + calm_s
    assert not load.refused or moved["pause_ms"] > FENCED_S_MAX * 1000, load.last_refusal
    check_that_nothing_went_astray(servers, frozen)


@deep
def test_the_mover_dies_under_load_and_is_run_again(
    make_fleet: MakeFleet, servers: Servers, mysql_database: str, report: Report
) -> None:
    """A pause that is longer than calls wait: what is refused is refused with a retryable error."""
    urls = {"old": servers.url(servers.old), "new": servers.url(servers.new)}
    # What has run meanwhile is settled afterwards, as long as its lease lasts.
    worker = {"lease_s": 31}
    fleet = make_fleet(
        databases=[mysql_database, urls["old"]], moving={MOVES: urls["new"]}, worker=worker
    )
    fleet.wait_until_shared(fleet.workers)
    with fleet.load(RATE, sleep_s=0.02) as load:
        wait_until(lambda: fleet.started() >= 3 * RATE, "load", 60)
        wait_for_replica(servers.old, servers.new)
        began_s = time.time()
        mover_dies("wait", urls, SCHEMA, MOVES)
        time.sleep(FENCED_S_MAX + 2)
        moved = toc_move(fleet, "--go")
        ended_s = time.time()
        frozen, scheduled = executed(servers.old), len(load.ids)
        wait_until(
            lambda: len(load.ids) > scheduled + AFTER_S * RATE / 2, "the client to go on", 40
        )
    account, its = drawn_up(fleet, servers, load.ids)

    figures = account.figures(load.ids)
    during = account.due(load.ids, began_s, ended_s)
    here, there = account.figures(during & its), account.figures(during - its)
    report(
        f"the same, but the mover was killed and run again {ended_s - began_s:.1f} s later",
        figures,
        f"of {here.jobs} of its jobs due meanwhile {here.late_max_s:.1f} s late at most, of {there.jobs} of "
        f"the other's {there.late_max_s:.2f} s; {load.refused} jobs refused to the client, whose slowest "
        f"call took {load.slowest_call_s:.1f} s",
    )
    assert moved["answer"] == "moved"
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
    assert load.refused > 0
    # Only the first calls wait.
    assert load.slowest_call_s < 2 * FENCED_S_MAX
    assert there.jobs > 100
    assert there.late_max_s < 2 + account.late_before_s(load.ids, began_s)
    check_that_nothing_went_astray(servers, frozen)


def executed(server: Server) -> str:
    ((found,),) = execute(server, "SELECT @@GLOBAL.gtid_executed")
    return str(found)


def drawn_up(fleet: Fleet, servers: Servers, ids: list[int]) -> tuple[Account, set[int]]:
    """The account of all jobs, with the rows of the new server; and the jobs of the database that moved."""
    reads_from_now_on(fleet, {MOVES: servers.url(servers.new)})
    fleet.wait_until_all_ended()
    account = fleet.account()
    for worker in fleet.workers:
        worker.kill()
    routing = fleet.stack.settings.routing
    its = {j for j in ids if routing.database_index(shard_of(fleet.stack, j)) == MOVES}
    assert its <= account.rows.keys()  # whatever was acknowledged is there
    return account, its


def check_that_nothing_went_astray(servers: Servers, frozen: str) -> None:
    """The old server has nothing since the fence, and the new one has all from before."""
    assert executed(servers.old) == frozen
    lacks = execute(servers.new, f"SELECT GTID_SUBTRACT('{frozen}', @@GLOBAL.gtid_executed)")
    assert lacks == [("",)]
