"""Many threads of several processes ask for the same few places: never more hold than the limit allows."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.limits.conftest import LimitRig, MakeLimitRig
from tests.limits.test_limits import TYPE, Declared
from toc.limits.keeper import LimitKeeper
from toc.limits.limits import Limits, Wanted
from toc.runtime.clock import SystemClock
from toc.timer.limit_store import LimitStore

LIMIT, PROCESSES, THREADS, JOBS = 5, 3, 4, 15
LONG_MS = 3_600_000  # no hold ends by itself, however slow the machine is


class Places:
    """How many jobs run at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0

    def enter(self, jobs: int) -> None:
        with self._lock:
            self._now += jobs
            self.most = max(self.most, self._now)

    def leave(self, jobs: int) -> None:
        with self._lock:
            self._now -= jobs


def _run_jobs(limits: Limits, places: Places, name: str, first: int) -> int:
    """Runs JOBS jobs, up to three at once; another fetcher may have found the same ones."""
    left, turn = list(range(first, first + JOBS)), 0
    while left:
        turn += 1
        token = f"{name}:{turn}"
        wanted = [Wanted(job_id, job_id, "") for job_id in left[:3]]
        taken = limits.take(TYPE, wanted, token)
        admitted = taken.admitted
        places.enter(len(admitted))
        SystemClock().sleep_s(0.001)  # the work
        places.leave(len(admitted))  # before the release: what holds is never less than what runs
        for n, job_id in enumerate(sorted(admitted)):
            if n == 2:  # found by another fetcher, which has claimed it
                limits.give_back([job_id], TYPE, token, "", taken.time)
            else:
                limits.job_ended(job_id, token)
                left.remove(job_id)
    return turn


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Python changes threads in the middle of things, so that a missing lock shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
@pytest.mark.parametrize("has_redis", [True, False], ids=["redis", "no redis"])
def test_no_thread_takes_the_place_of_another(
    make_limit_rig: MakeLimitRig, *, has_redis: bool
) -> None:
    rig: LimitRig = make_limit_rig()
    clock, places = SystemClock(), Places()
    all_limits, keepers = [], []
    for index in range(PROCESSES):
        store = None
        if has_redis:
            store = LimitStore(rig.server, rig.namespace, clock, settle_ms=0, partitions_max=10)
        limits = Limits(
            Declared(concurrency=LIMIT), store, clock, hold_ms=LONG_MS, partitions_max=10
        )
        limits.set_nodes(index, PROCESSES)
        all_limits.append(limits)
        keepers.append(LimitKeeper(limits, clock))
    for keeper in keepers:
        keeper.start()
    with ThreadPoolExecutor(PROCESSES * THREADS) as pool:
        turns = [
            pool.submit(_run_jobs, limits, places, f"{n}-{thread}", 1000 * n + 100 * thread)
            for n, limits in enumerate(all_limits)
            for thread in range(THREADS)
        ]
        assert all(turn.result(100) for turn in turns)
    for keeper in keepers:
        assert keeper.stop(20)
    assert 0 < places.most <= LIMIT
    assert not any(limits.holders.count_by_type() for limits in all_limits)
    if has_redis:
        assert rig.store.read_use([TYPE])[TYPE].holders == 0
