"""Workers die, freeze, come and go, and live in another time."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.deep import ALL, deep
from tests.invariants.harness import TYPE, Stack, WorkerProcess
from tests.reliability.conftest import MakeFleet, Report
from tests.reliability.fleet import CALM_S, RATE
from tests.reliability.steps import Steps
from tests.reliability.wire import Wire, address
from tests.worker.waiting import wait_until

pytestmark = [pytest.mark.alone, pytest.mark.timeout(240)]

LEASE_S = 3.0
IDLE_TRANSACTION_S = 2
FAILING_RATE = 5
HOUR_S = 3600
CHURN_S = float(os.environ.get("TOC_TEST_CHURN_S", "60"))


@deep
def test_one_of_three_is_killed(make_fleet: MakeFleet, report: Report) -> None:
    fleet = make_fleet()
    victim = fleet.busiest()
    with fleet.load(RATE, sleep_s=0.05) as load:
        wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
        wait_until(lambda: len(fleet.in_flight_of(victim)) >= 3, "the victim to be at it")
        victim.kill()
        killed_s = time.time()
        cut = fleet.cut_off(victim)
        time.sleep(6)
    fleet.wait_until_all_ended()
    account = fleet.account()
    whole = account.figures(load.ids)
    calm_s = account.late_before_s(load.ids, killed_s)
    others = account.figures(set(load.ids) - cut)
    again_s = max((max(account.starts.get(j, [0])) / 1000 - killed_s for j in cut), default=0.0)
    report(
        f"kill -9 of one of three workers, {RATE} jobs/s",
        whole,
        f"{len(cut)} in flight again within {again_s:.1f} s; others late at most {others.late_max_s:.2f} s",
    )
    assert (whole.lost, whole.early) == (0, 0)
    assert cut, "nothing was in flight: the test shows nothing"
    assert again_s <= LEASE_S + 5
    assert account.twice(load.ids) <= cut
    # Its slots' deputies need no word of ZooKeeper, whose session lasts 3 s, and 10 s by default.
    assert others.late_max_s < 3 + calm_s


@deep
def test_one_with_handlers_of_ten_minutes_is_killed(make_fleet: MakeFleet, report: Report) -> None:
    """Jobs of the dead need not wait for the timeout of their type."""
    lease_s, run_s = 30.0, 45.0  # the default lease
    fleet = make_fleet(
        types={TYPE: {"timeout": 600, "retry": [0]}},
        # A thread for each job, though one worker ran all of them.
        worker={"lease_s": lease_s, "lease_margin_s": 5, "concurrency": 24},
    )
    victim = fleet.busiest()
    began_s = time.time()
    ids = fleet.stack.schedule(24, timedelta(), sleep_s=[run_s, 0])
    wait_until(lambda: fleet.started() == len(ids), "all handlers to run")
    time.sleep(lease_s / 2)  # leases are renewed meanwhile
    cut = fleet.in_flight_of(victim)
    victim.kill()
    killed_s = time.time()
    fleet.wait_until_all_ended()
    account = fleet.account()
    figures = account.figures(ids)
    again_s = max((max(account.starts[job_id]) / 1000 - killed_s for job_id in cut), default=0.0)
    report(
        f"kill -9 of one of three workers whose handlers may take 10 minutes, and take {run_s:g} s",
        figures,
        f"{len(cut)} in flight again within {again_s:.1f} s; no other was started again",
    )
    assert (figures.lost, figures.early) == (0, 0)
    assert cut, "nothing was in flight: the test shows nothing"
    assert again_s <= lease_s + 5
    assert time.time() - began_s > run_s > lease_s
    assert account.twice(ids) == cut


@pytest.mark.parametrize("rounds", [3 if ALL else 1])
def test_a_rolling_restart(make_fleet: MakeFleet, report: Report, rounds: int) -> None:
    fleet = make_fleet()
    with fleet.load(RATE, sleep_s=0.02) as load:
        wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
        began_s = time.time()
        for n in range(rounds):
            assert fleet.workers[n].stop() == 0
            fleet.workers[n] = fleet.add().wait_ready()
        time.sleep(1)
    fleet.wait_until_all_ended()
    account = fleet.account()
    figures = account.figures(load.ids)
    report(f"rolling restart of three workers, {RATE} jobs/s", figures)
    assert (figures.lost, figures.early, figures.twice) == (0, 0, 0)
    assert figures.late_max_s < 1 + account.late_before_s(load.ids, began_s)


def refused_by(stack: Stack, worker: WorkerProcess) -> int:
    return max((load.refused for load in stack.loads(worker)), default=0)


@pytest.fixture
def wire(mysql_database: str) -> Iterator[Wire]:
    """A way to the database."""
    url = make_url(mysql_database)
    with Wire(f"{url.host}:{url.port}") as found:
        yield found


@deep
@pytest.mark.parametrize("amid", [False, True], ids=["at any moment", "amid a transaction"])
def test_one_is_frozen_past_its_lease(
    wire: Wire, make_fleet: MakeFleet, report: Report, amid: bool
) -> None:
    """SIGSTOP: it is not dead, knows nothing of the time that has passed, and settles what it had."""
    types = {TYPE: {"timeout": 2, "retry": [0]}}
    fleet = make_fleet(2, types=types, idle_transaction_s=IDLE_TRANSACTION_S)
    stack = fleet.stack
    host, port = address(wire.url)
    url = make_url(stack.settings.databases[0]).set(host=host, port=port)
    databases = [url.render_as_string(hide_password=False)]
    # A transaction of one packet cannot stand still in the middle.
    victim = fleet.add(types=types, databases=databases, packets=not amid).wait_ready()
    fleet.workers.append(victim)
    fleet.wait_until_shared(fleet.workers)
    # What fails is recorded by several statements.
    slow = [0.1, 1.5]  # a second run lasts
    failing = fleet.load(FAILING_RATE if amid else 0, fail=1, sleep_s=slow)
    with fleet.load(RATE, sleep_s=slow) as load, failing:
        wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
        wait_until(lambda: len(fleet.in_flight_of(victim)) >= 4, "the victim to be at it")
        calm_until_s = time.time()
        if amid:
            fleet.freeze_amid_transaction(victim, wire)
        else:
            victim.freeze()
        frozen_s = time.time()
        cut = fleet.cut_off(victim)
        attempts = fleet.attempts_of(victim)
        began = {i for i, attempt in fleet.begun(victim.pid) if attempts.get(i) == attempt}

        def waiting() -> set[int]:
            return began - {i for i, attempt in fleet.begun() if attempt > attempts.get(i, attempt)}

        one_by_one_s = 2 * len(began)  # a suspect's run lasts as long as any second one
        limit_s = LEASE_S + 1 + IDLE_TRANSACTION_S + 5 + one_by_one_s
        wait_until(lambda: not waiting(), "others to run what it had begun", limit_s)
        again_s = time.time() - frozen_s
        running = fleet.running() & began
        victim.thaw()
        wait_until(lambda: refused_by(stack, victim), "its late outcomes to be refused")
        still = fleet.running() & running
        fleet.wait_until_shared(fleet.workers)
        mark = fleet.by_pid()[victim.pid]
        wait_until(lambda: fleet.by_pid()[victim.pid] >= mark + 20, "it to work again")
    fleet.wait_until_all_ended()
    refused = refused_by(stack, victim)
    account = fleet.account()
    figures = account.figures(load.ids)
    others = account.figures(set(load.ids) - cut)
    report(
        f"one of three workers frozen {'amid a transaction ' if amid else ''}for {again_s:.0f} s, "
        f"a lease being 4 s; {RATE} jobs/s",
        figures,
        f"{len(began)} of {len(cut)} in flight had begun and were run by others within {again_s:.1f} s; "
        f"{refused} of its outcomes refused; all others late at most {others.late_max_s:.2f} s",
    )
    assert (figures.lost, figures.early) == (0, 0)
    assert began, "nothing was running when it was frozen: the test shows nothing"
    assert again_s < limit_s
    assert still, "its late outcome ended what another was running"
    assert refused >= len(began)
    assert account.twice(load.ids) <= cut
    assert others.late_max_s < 3 + account.late_before_s(load.ids, calm_until_s)


@deep
def test_clocks_are_an_hour_off(make_fleet: MakeFleet, tmp_path: Path, report: Report) -> None:
    """One worker's is ahead, one's is behind, one's is right."""
    terms = {TYPE: {"timeout": 1, "retry": [1]}}
    fleet = make_fleet(1, types=terms)
    for ahead_s in (HOUR_S, -HOUR_S):
        off = fleet.add(env=Steps(tmp_path / f"{ahead_s}.step", ahead_s).environment)
        fleet.wrong_by_s[off.pid] = ahead_s
        fleet.workers.append(off.wait_ready())
    fleet.wait_until_shared(fleet.workers)
    with fleet.load(RATE, sleep_s=0.02) as load:
        failing = fleet.stack.schedule(100, timedelta(seconds=1), fail=1)
        wait_until(lambda: fleet.started() >= 1000, "load", 40)
    fleet.wait_until_all_ended()
    account = fleet.account()
    figures = account.figures({*load.ids, *failing})
    ran = [fleet.by_pid()[worker.pid] for worker in fleet.workers]
    waited_s = [(starts[1] - starts[0]) / 1000 for starts in (account.starts[j] for j in failing)]
    report(
        f"one worker's clock an hour ahead, one's an hour behind; {RATE} jobs/s",
        figures._replace(twice=len(account.twice(load.ids))),
        f"they ran {ran[1]} and {ran[2]}, the third {ran[0]}; retries wanted after 1 s came "
        f"after {min(waited_s):.2f} to {max(waited_s):.2f} s",
    )
    assert (figures.lost, figures.early) == (0, 0)
    assert not account.twice(load.ids)
    assert min(ran) > 50, "one did nothing: the test shows nothing"
    assert figures.late_max_s < 3
    assert min(waited_s) > 0.85  # a retry's delay has a jitter of a tenth
    assert max(waited_s) < 5


@deep
def test_nodes_join_and_leave_in_turn(make_fleet: MakeFleet, report: Report) -> None:
    fleet = make_fleet()
    rng = random.Random()  # noqa: S311 - when, not what
    cut: set[int] = set()
    leaving = itertools.cycle(("killed", "stopped"))
    done = {"killed": 0, "stopped": 0, "joined": 0}
    with fleet.load(RATE, sleep_s=0.05) as load:
        wait_until(lambda: fleet.started() >= CALM_S * RATE, "load")
        began_s = time.time()
        end_s = time.monotonic() + CHURN_S
        while time.monotonic() < end_s:
            worker, way = fleet.workers.pop(0), next(leaving)
            if way == "killed":
                worker.kill()
                cut |= fleet.cut_off(worker)
            else:
                assert worker.stop() == 0
            done[way] += 1
            time.sleep(rng.uniform(0, 2))
            fleet.workers.append(fleet.add().wait_ready())
            done["joined"] += 1
            time.sleep(rng.uniform(0, 1))
        shares = fleet.wait_until_shared(fleet.workers)
        ran = fleet.by_pid()
        time.sleep(3)
        ran = fleet.by_pid() - ran
    fleet.wait_until_all_ended()
    account = fleet.account()
    figures = account.figures(load.ids)
    others = account.figures(set(load.ids) - cut)
    report(
        f"three nodes, one leaving and one joining in turn for {CHURN_S:.0f} s, {RATE} jobs/s",
        figures,
        f"{done['killed']} killed, {done['stopped']} stopped, {done['joined']} joined; "
        f"{len(cut)} cut off in flight, all others late at most {others.late_max_s:.2f} s; "
        "every slot and shard has one owner at the end",
    )
    assert (figures.lost, figures.early) == (0, 0)
    assert account.twice(load.ids) <= cut
    calm_s = account.late_before_s(load.ids, began_s)
    assert figures.late_max_s < LEASE_S + 10 + calm_s
    assert others.late_max_s < 4 + calm_s
    assert all(share.slots and share.shards for share in shares.values())
    assert ran.keys() == shares.keys(), "somebody starves"
