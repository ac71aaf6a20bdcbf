"""ZooKeeper is away, cuts one node off, loses its leader: who owns what stays, or is settled anew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deep import deep
from tests.reliability.conftest import MakeFleet, Report
from tests.reliability.fleet import CALM_S, ON_TIME_S, OUTAGE_S, RATE, Fleet
from tests.reliability.wire import Wire
from tests.servers import Server, ZooKeeperEnsemble, start_zookeeper_ensemble
from tests.servers.endpoint import Endpoint
from tests.servers.zookeeper import foreign_members
from tests.worker.waiting import wait_until
from toc.cluster.roster import read_roster

pytestmark = [pytest.mark.alone, pytest.mark.timeout(240)]

LEASE_S = 3.0
SESSION_S = 3.0
FOREIGN = 300
FALLBACK_LATE_S = (
    2 * 1 + 0.5 + 3 * 0.5
)  # twice the grace and a tick, and three ticks between two looks


@deep
def test_zookeeper_is_away_and_a_worker_dies_meanwhile(
    make_fleet: MakeFleet, own_zookeeper: Server, report: Report
) -> None:
    fleet = make_fleet(zookeeper_hosts=own_zookeeper.url)
    before = fleet.wait_until_shared(fleet.workers)
    victim = fleet.busiest()
    living = [worker for worker in fleet.workers if worker is not victim]
    with fleet.load(RATE, sleep_s=0.02) as load:
        wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
        own_zookeeper.kill()
        stopped_s = time.time()
        time.sleep(OUTAGE_S / 2)
        victim.kill()
        killed_s = time.time()
        cut = fleet.cut_off(victim)
        time.sleep(OUTAGE_S / 2)
        own_zookeeper.start()
        started_s = time.time()
        after = fleet.wait_until_shared(living)
        settled_s = time.time() - started_s
        time.sleep(2)
    fleet.wait_until_all_ended()
    account = fleet.account()
    figures = account.figures(load.ids)
    # Who is killed leaves also what came due just before.
    last_s = killed_s - ON_TIME_S
    unnoticed = account.figures(account.due(load.ids, stopped_s, last_s) - cut)
    orphaned = account.figures(account.due(load.ids, last_s, started_s) - cut)
    report(
        f"ZooKeeper stopped for {OUTAGE_S:.0f} s, and a worker killed meanwhile; {RATE} jobs/s",
        figures,
        f"before the kill at most {unnoticed.late_max_s:.2f} s late; after it "
        f"{orphaned.late_max_s:.2f} s (deputies); the dead one's share goes to the others "
        f"{settled_s:.1f} s after ZooKeeper's return",
    )
    assert (figures.lost, figures.early) == (0, 0)
    assert account.twice(load.ids) <= cut
    calm_s = account.late_before_s(load.ids, stopped_s)
    assert unnoticed.late_max_s < 1 + calm_s
    assert orphaned.late_max_s < 4 + calm_s
    for pid, share in after.items():  # the same assignment, but for what the dead one had
        assert before[pid].slots <= share.slots <= before[pid].slots | before[victim.pid].slots
        assert before[pid].shards <= share.shards <= before[pid].shards | before[victim.pid].shards


@deep
def test_the_session_of_one_node_expires(
    make_fleet: MakeFleet, zookeeper_server: Endpoint, report: Report
) -> None:
    """It is cut off from ZooKeeper alone, and works on, while the others do its share as well."""
    fleet = make_fleet(2)
    with Wire(zookeeper_server.url) as wire:
        lone = fleet.add(zookeeper_hosts=wire.url).wait_ready()
        everyone = [*fleet.workers, lone]
        before = fleet.wait_until_shared(everyone)
        joined_ms = fleet.members()[lone.pid].joined_ms
        with fleet.load(RATE, sleep_s=0.02) as load:
            wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
            wire.cut()
            cut_s = time.time()
            fleet.wait_until_shared(fleet.workers)  # so its session is over
            expired_s = time.time() - cut_s
            ran = fleet.by_pid()[lone.pid]
            wait_until(lambda: fleet.by_pid()[lone.pid] >= ran + 50, "the lone node to go on")
            wire.mend()
            mended_s = time.time()
            after = fleet.wait_until_shared(everyone)
            back_s = time.time() - mended_s
            wait_until(lambda: fleet.by_pid()[lone.pid] >= ran + 100, "the lone node to go on")
        fleet.wait_until_all_ended()
        account = fleet.account()
        figures = account.figures(load.ids)
        report(
            f"the ZooKeeper session of one of three nodes expired, {RATE} jobs/s",
            figures,
            f"expired {expired_s:.1f} s after the last word, a member again {back_s:.1f} s "
            "after the next; it fired all the time, two at its slots",
        )
        assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
        assert figures.late_max_s < 1 + account.late_before_s(load.ids, cut_s)
        assert after == before  # the same process has the same share
        assert fleet.members()[lone.pid].joined_ms > joined_ms


@deep
def test_somebody_writes_members_that_nobody_stands_behind(
    make_fleet: MakeFleet, own_zookeeper: Server, report: Report
) -> None:
    """300 of them: nearly every slot and shard has one as its owner, and another one as its deputy."""
    fleet = make_fleet(zookeeper_hosts=own_zookeeper.url, scanner={"grace_s": 1, "tick_s": 0.5})
    before = fleet.wait_until_shared(fleet.workers)
    settings = fleet.stack.settings
    with fleet.load(RATE, sleep_s=0.02) as load:
        wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
        began_s = time.time()
        with foreign_members(own_zookeeper.url, settings.namespace, FOREIGN):
            members = settings.cluster.members_max
            wait_until(lambda: len(read_roster(settings)) == members, "the bound to be reached")
            time.sleep(OUTAGE_S)
        fleet.wait_until_shared(fleet.workers)
        time.sleep(2)
    fleet.wait_until_all_ended()
    account = fleet.account()
    figures = account.figures(load.ids)
    report(
        f"{FOREIGN} members that no process stands behind, for {OUTAGE_S:.0f} s, {RATE} jobs/s",
        figures,
        f"the fallback claims what is overdue by {FALLBACK_LATE_S:g} s",
    )
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
    # What it takes to look again, and to claim what has gathered.
    assert figures.late_max_s < 3 * FALLBACK_LATE_S + account.late_before_s(load.ids, began_s)
    assert fleet.wait_until_shared(fleet.workers) == before


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    with start_zookeeper_ensemble(tmp_path / "ensemble") as found:
        yield found


@deep
def test_an_ensemble_loses_its_leader(
    make_fleet: MakeFleet, ensemble: ZooKeeperEnsemble, report: Report
) -> None:
    fleet = make_fleet(zookeeper_hosts=ensemble.url)
    before = fleet.wait_until_shared(fleet.workers)
    with fleet.load(RATE, sleep_s=0.02) as load:
        wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
        joined_ms = joined_of(fleet)
        leader = ensemble.leader()
        leader.kill()
        killed_s = time.time()
        led = wait_until(lambda: leads(ensemble), "another leader")
        elected_s = time.time() - killed_s
        assert led is not leader
        time.sleep(2 * SESSION_S)
        assert fleet.wait_until_shared(fleet.workers) == before
        assert joined_of(fleet) == joined_ms, "somebody's session did not survive"
        # And it still works: who leaves is followed.
        assert fleet.workers[0].stop() == 0
        left_s = time.time()
        fleet.wait_until_shared(fleet.workers[1:])
        followed_s = time.time() - left_s
    fleet.wait_until_all_ended()
    account = fleet.account()
    figures = account.figures(load.ids)
    report(
        f"a three-server ensemble loses its leader, {RATE} jobs/s",
        figures,
        f"another one leads after {elected_s:.1f} s, all sessions and shares stay; "
        f"a node that leaves then is followed within {followed_s:.1f} s",
    )
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
    assert figures.late_max_s < 1 + account.late_before_s(load.ids, killed_s)


def leads(ensemble: ZooKeeperEnsemble) -> Server | None:
    try:
        return ensemble.leader()
    except ConnectionError:
        return None


def joined_of(fleet: Fleet) -> dict[int, int]:
    return {pid: member.joined_ms for pid, member in fleet.members().items()}
