"""A client process of the rig: `python -m tests.chaos.client FILE`, its plan as JSON.

One thread schedules in bulk, some others live small stories: schedule, think, cancel, postpone. What
they ask and what is answered goes into the journal. What was asked and not yet answered stands in the
file `asked`, so that the rig knows what a client that was killed may have done.

Commands, a JSON line each: {"do": "die"}: at the next schedule(), between commit and reminder.
{"do": "rest"}, {"do": "go on"}: between them it begins nothing new. {"do": "stop"}: asks no more and ends.
"""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import os
import queue
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.chaos.calls import Calls, RemoteCalls
from tests.chaos.plan import (
    ASYNC,
    BATCH,
    BULK,
    LENGTHY,
    MOODY,
    PULL,
    PULL_LATE,
    PULL_LONG,
    SLOW,
    STUBBORN,
    Lines,
    chance,
    dump_threads_when_asked,
    true_clock,
)
from tests.chaos.restricted import LIMITS, PAUSED, PLACES, RATE, SHOP_IDS, SHOPS
from toc.center.center import TimeoutCenter
from toc.center.reminder_queue import ReminderQueue
from toc.client.remote_center import RemoteCenter
from toc.domain.priorities import PRIORITIES
from toc.errors import StoreUnavailable
from toc.runtime.settings import Settings
from toc.testing import Journal
from toc.timer.reminders import Reminder

PERIOD_S = 0.2
BULK_MAX = 2000
BURST = 2.5  # times the rate
TOUCHED = 0.02  # of the jobs in bulk somebody cancels or postpones so many
REDRIVE_S = 3.0
DISCARDED = 0.25  # of the dead jobs that are changed
CLERKS = 3
PULL_PART = 0.25  # of the rate of single jobs: by each clerk of pull types
PULL_BULK = 20
BUNCHES_PER_S = 0.8  # of restricted types, by each client

log = logging.getLogger(__name__)


class Step(NamedTuple):
    at_ms: float
    number: int
    act: Callable[[], object]


class Clerk:
    """Lives stories in a thread, one step after the other by time."""

    def __init__(
        self,
        calls: Calls,
        rng: random.Random,
        first_biz: int,
        rate: float,
        resting: threading.Event,
    ) -> None:
        self._calls, self._rng, self._rate, self._resting = calls, rng, rate, resting
        self._biz, self._numbers = itertools.count(first_biz), itertools.count()
        self._steps: list[Step] = []
        self.touched: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()

    def run(self, ended: threading.Event) -> None:
        now = self._calls.now
        next_ms = now()
        while not ended.is_set():
            with_bulk = self._take_touched()
            if self._steps and self._steps[0].at_ms <= now():
                heapq.heappop(self._steps).act()
            elif next_ms <= now() and not self._resting.is_set():
                next_ms = max(next_ms + self._rng.expovariate(self._rate) * 1000, now() - 1000)
                self._begin()
            elif not with_bulk:
                ended.wait(0.01)

    def _take_touched(self) -> bool:
        try:
            job_id, action_ms = self.touched.get_nowait()
        except queue.Empty:
            return False
        if self._rng.random() < 0.5:
            self._cancel_about(job_id, action_ms)
        else:
            self._move_before(job_id, action_ms)
        return True

    def _later(self, at_ms: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._steps, Step(at_ms, next(self._numbers), act))

    def _begin(self) -> None:
        rng, calls = self._rng, self._calls
        biz_id, action_ms = next(self._biz), round(calls.now() + rng.uniform(300, 5000))
        draw = rng.random()
        if draw < 0.15:
            biz_type, sleep_s = (ASYNC, 60) if draw < 0.10 else (SLOW, 1.5)
            calls.schedule(biz_id, biz_type, action_ms, {"sleep_s": sleep_s})
        elif draw < 0.16:
            calls.schedule(biz_id, LENGTHY, action_ms, {"leases": rng.uniform(0.5, 2)})
        elif draw < 0.20:
            calls.schedule(biz_id, STUBBORN, action_ms, {"fail_until_ms": action_ms + 6000})
        elif draw < 0.45:
            calls.schedule(biz_id, MOODY, action_ms, {"fail": rng.randint(1, 3)})
        elif draw < 0.65:
            wants = {"sleep_s": rng.choice([0, 0.05]), "fail": rng.choice([0, 0, 1])}
            self._cancel_if_known(calls.schedule(biz_id, MOODY, action_ms, wants), action_ms)
        elif draw < 0.85:
            wants = {"fail": rng.choice([0, 0, 1])}
            self._move_if_known(calls.schedule(biz_id, MOODY, action_ms, wants), action_ms)
        else:
            self._schedule_twice(biz_id, MOODY, action_ms)

    def _schedule_twice(self, biz_id: int, biz_type: str, action_ms: int) -> None:
        """Under one key, the second time with another action_time."""
        rng, calls = self._rng, self._calls
        job_id = calls.schedule_once(biz_id, biz_type, action_ms, "once")
        if job_id is None:
            return
        again_ms = action_ms + rng.randint(-2000, 3000)
        act = rng.choice([calls.schedule_again, calls.replace])
        self._later(
            action_ms - rng.uniform(-500, 2000),
            lambda: act(job_id, biz_id, biz_type, again_ms, "once"),
        )

    def _cancel_if_known(self, job_id: int | None, action_ms: int) -> None:
        if job_id is not None:
            self._cancel_about(job_id, action_ms)

    def _move_if_known(self, job_id: int | None, action_ms: int) -> None:
        if job_id is not None:
            self._move_before(job_id, action_ms)

    def _cancel_about(self, job_id: int, action_ms: int) -> None:
        self._later(
            action_ms + self._rng.choice([self._rng.uniform(-2000, 300), self._rng.uniform(-30, 60)]),
            lambda: self._calls.cancel(job_id),
        )  # fmt: skip

    def _move_before(self, job_id: int, action_ms: int) -> None:
        to_ms = action_ms + self._rng.randint(-1500, 4000)

        def move() -> None:
            self._calls.reschedule(job_id, to_ms)
            if self._rng.random() < 0.2:
                self._cancel_about(job_id, to_ms)

        self._later(action_ms - self._rng.uniform(-50, 2000), move)


class PullClerk(Clerk):
    """The same with jobs that remote consumers do."""

    def _begin(self) -> None:
        rng, calls = self._rng, self._calls
        biz_id, action_ms = next(self._biz), round(calls.now() + rng.uniform(300, 5000))
        draw = rng.random()
        if draw < 0.02:
            calls.schedule(biz_id, PULL_LATE, action_ms, {"late": rng.uniform(1, 2)})
        elif draw < 0.04:
            calls.schedule(biz_id, PULL_LONG, action_ms, {"leases": rng.uniform(0.5, 2)})
        elif draw < 0.11:
            jobs = [(next(self._biz), action_ms + 50 * n) for n in range(PULL_BULK)]
            calls.schedule_many(jobs, PULL)
        elif draw < 0.40:
            calls.schedule(biz_id, PULL, action_ms, {"fail": rng.randint(0, 3)})
        elif draw < 0.60:
            self._cancel_if_known(calls.schedule(biz_id, PULL, action_ms, {}), action_ms)
        elif draw < 0.80:
            self._move_if_known(calls.schedule(biz_id, PULL, action_ms, {"fail": 1}), action_ms)
        else:
            self._schedule_twice(biz_id, PULL, action_ms)


class RestrictedClerk(Clerk):
    """Bunches of jobs of restricted types and for batches, due at one moment; stories of the paused type."""

    def _begin(self) -> None:
        rng, calls = self._rng, self._calls
        biz_id, action_ms = next(self._biz), round(calls.now() + rng.uniform(300, 5000))
        draw = rng.random()
        if draw < 0.35:
            self._schedule_bunch(RATE, rng.randint(1, 12), action_ms)
        elif draw < 0.50:
            self._schedule_bunch(PLACES, rng.randint(1, 6), action_ms)
        elif draw < 0.65:
            shops = [rng.choice(SHOP_IDS) for _ in range(rng.randint(1, 6))]
            calls.schedule_many([(shop, action_ms) for shop in shops], SHOPS)
        elif draw < 0.73:
            self._schedule_bunch(PAUSED, rng.randint(1, 10), action_ms)
        elif draw < 0.78:
            self._schedule_bunch(BATCH, rng.randint(10, 60), action_ms)
        elif draw < 0.86:
            biz_type = rng.choice([RATE, PLACES, PAUSED, BATCH])
            calls.schedule(biz_id, biz_type, action_ms, {"fail": 1})
        elif draw < 0.93:
            self._cancel_if_known(calls.schedule(biz_id, PAUSED, action_ms, {}), action_ms)
        else:
            self._move_if_known(calls.schedule(biz_id, PAUSED, action_ms, {}), action_ms)

    def _schedule_bunch(self, biz_type: str, count: int, action_ms: int) -> None:
        jobs = [(next(self._biz), action_ms) for _ in range(count)]
        priorities = [self._rng.choice(PRIORITIES) for _ in jobs] if biz_type in LIMITS else ()
        self._calls.schedule_many(jobs, biz_type, priorities)


def run_bulk(
    calls: Calls, rng: random.Random, rate: float, first_biz: int, clerks: Sequence[Clerk],
    ended: threading.Event, resting: threading.Event,
) -> None:  # fmt: skip
    """At a steady rate, with bursts of a second now and then."""
    timer = calls.center.settings.timer
    near_s = timer.horizon_s + timer.slack_s
    biz, owed, last_s = itertools.count(first_biz), 0.0, time.monotonic()
    burst_s, next_burst_s = 0.0, last_s + 5
    while not ended.wait(PERIOD_S):
        now_s = time.monotonic()
        if resting.is_set():
            owed, last_s = 0.0, now_s
            continue
        if now_s > next_burst_s:
            burst_s, next_burst_s = now_s + 1, now_s + rng.uniform(6, 12)
        owed = min(owed + (now_s - last_s) * rate * (BURST if now_s < burst_s else 1), BULK_MAX)
        last_s = now_s
        count = int(owed)
        if not count:
            continue
        owed -= count
        now_ms = calls.now()
        jobs = [(next(biz), round(now_ms + 1000 * ahead_s(rng, near_s))) for _ in range(count)]
        ids = calls.schedule_many(jobs, BULK)
        if len(ids) == len(jobs):
            for job_id, (_, action_ms) in zip(ids, jobs, strict=True):
                if rng.random() < TOUCHED:
                    rng.choice(clerks).touched.put((job_id, action_ms))


def ahead_s(rng: random.Random, near_s: float) -> float:
    """One in ten is due beyond horizon and slack: it is not armed, the loader brings it."""
    return rng.uniform(0.2, 4) if rng.random() < 0.9 else near_s + rng.uniform(-1, 2)


def run_changes_of_dead(calls: Calls, rng: random.Random, ended: threading.Event) -> None:
    """Redrives and discards dead jobs; the clients meet at the same few."""
    while not ended.wait(REDRIVE_S):
        try:
            dead = calls.center.dead(50, STUBBORN)
        except StoreUnavailable:
            continue
        for job in rng.sample(dead, min(2, len(dead))):
            if rng.random() < DISCARDED:
                calls.discard(job.job_id)
            else:
                calls.redrive(job.job_id)


def guarded(act: Callable[[], None]) -> Callable[[], None]:
    """A call that raised what it never should is the rig's to know: the process dies of it, and says so."""

    def run() -> None:
        try:
            act()
        except BaseException:
            log.exception("a client's call raised what it never should")
            os._exit(3)

    return run


def main(plan: dict[str, Any]) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    dump_threads_when_asked()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    center = TimeoutCenter(Settings(**plan["settings"]))
    now = true_clock(plan["wrong_by_s"])
    journal, asked = Journal(Path(plan["journal"])), Lines(Path(plan["asked"]))
    calls = Calls(center, journal, asked, now)
    # Without repetitions: the one of a lost answer may make a second job when the first has ended meanwhile.
    short = {"connect_s": 2, "read_s": 4, "call_s": 10, "retries": 0}
    remote_settings = Settings(**plan["settings"] | {"client": short})
    remotes = [
        RemoteCenter(url, token=plan["token"], settings=remote_settings) for url in plan["urls"]
    ]
    place = ReminderQueue.arm_near_reminders

    def place_or_die(reminder_queue: ReminderQueue, jobs: Sequence[tuple[str, Reminder]]) -> None:
        calls.before_place(jobs)
        place(reminder_queue, jobs)

    setattr(ReminderQueue, "arm_near_reminders", place_or_die)  # noqa: B010 - to a type checker, no method changes
    ended, resting = threading.Event(), threading.Event()
    first = plan["first_biz"]
    rngs = [chance(f"{plan['seed']}:{n}") for n in range(CLERKS + 2)]
    pull_rate = plan["singles"] * PULL_PART
    span = 10_000_000
    clerks = [
        Clerk(calls, rngs[n], first + n * span, plan["singles"] / CLERKS, resting)
        for n in range(CLERKS)
    ]
    callers = [calls, *(RemoteCalls(remote, journal, asked, now) for remote in remotes)]
    pull_clerks = [
        PullClerk(
            each, chance(f"{plan['seed']}:pull:{n}"), first + (CLERKS + 2 + n) * span,
            pull_rate / len(callers) * 2, resting,
        )
        for n, each in enumerate(callers)
    ]  # fmt: skip
    restricted = RestrictedClerk(
        calls, chance(f"{plan['seed']}:restricted"), first + 8 * span, BUNCHES_PER_S, resting
    )
    acts = [
        *(lambda clerk=clerk: clerk.run(ended) for clerk in [*clerks, *pull_clerks, restricted]),
        lambda: run_bulk(
            calls, rngs[-1], plan["bulk"], first + CLERKS * span, clerks, ended, resting
        ),
        lambda: run_changes_of_dead(calls, rngs[-2], ended),
    ]
    threads = [threading.Thread(target=guarded(act), daemon=True) for act in acts]
    for thread in threads:
        thread.start()
    Path(plan["ready"]).touch()
    for line in sys.stdin:
        command = json.loads(line)["do"]
        if command == "die":
            calls.dying.set()
        elif command == "rest":
            resting.set()
        elif command == "go on":
            resting.clear()
        elif command == "stop":
            ended.set()
            for thread in threads:
                thread.join()
            for each in (center, *remotes):
                each.close()
            return
    os._exit(1)  # the rig was killed


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
