"""Many jobs behind a pause, then resumed with a ramp: is its rate kept in each second, is a job lost?

python -m tests.bench.ramp --jobs 1000000

On a MySQL and a Redis of its own. Some jobs run first, so that there is a peak. Then the type is paused, all
jobs are scheduled and come due, and the pause ends. Exit code 1: a job was lost or ran early, or a second
had more jobs than the ramp allows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import create_engine, text

from tests.servers.fixtures import redis_client
from tests.servers.mysql import start_mysql
from tests.servers.redis import start_redis
from toc.bench.child_node import settings_message
from toc.bench.child_process import ChildProcess
from toc.center.center import TimeoutCenter
from toc.domain.job import Status
from toc.limits.ramp_starts import BURST_S
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store import migrate
from toc.store.databases import Databases
from toc.store.pauses import KnownPause, PauseCache

TYPE = "bench.ramp"
BATCH = 20_000
WARM_MIN, WARM_MAX = 1000, 50_000  # jobs that run before the pause
ANSWER_S = 100.0
PEAK_S = 5.0  # a worker reports its peak within this time from the pause
WAIT_S_MAX = 3600.0
EDGE_MS = 100  # after a step begins: processes learn the time of the step within so long
LIVE = (Status.PENDING.value, Status.RUNNING.value)

Events = Sequence[tuple[int, int]]
"""(ms, jobs) in the order of time; jobs may be negative: they came back."""


class Run(NamedTuple):
    """One run. `known`: the pause and its peak. `claims`: of all jobs; `admitted`: by the ramp."""

    known: KnownPause
    claims: Events
    admitted: Events
    jobs: int
    lost: int
    early: int


class Step(NamedTuple):
    """One step of the ramp. `allowed`, `admitted`, `claimed`: jobs in a second, at most."""

    from_s: float
    to_s: float
    rate: float
    allowed: int
    admitted: int
    claimed: int
    jobs: int


def most_in_a_second(events: Events, from_ms: int, to_ms: int) -> int:
    """The largest number of jobs in any second (a whole one) between two times."""
    inside = [each for each in events if from_ms <= each[0] < to_ms]
    most = now = first = 0
    for at_ms, jobs in inside:
        now += jobs
        while inside[first][0] <= at_ms - 1000:
            now -= inside[first][1]
            first += 1
        most = max(most, now)
    return most


def steps_of(run: Run) -> list[Step]:
    """The ramp's steps, and what happened in each."""
    ramp, until_ms = run.known.pause.ramp, run.known.pause.until_ms
    assert ramp is not None
    assert until_ms is not None
    steps, step_ms = [], round(ramp.step_s * 1000)
    for number in range(ramp.steps):
        from_ms = until_ms + number * step_ms
        to_ms, rate = from_ms + step_ms, rate_of(run.known, number * step_ms)
        whole = from_ms + EDGE_MS, to_ms
        steps.append(
            Step(
                number * ramp.step_s, (number + 1) * ramp.step_s, rate,
                int(rate + max(1.0, rate * BURST_S)) + 1,
                most_in_a_second(run.admitted, *whole), most_in_a_second(run.claims, *whole),
                sum(jobs for at_ms, jobs in run.claims if from_ms <= at_ms < to_ms),
            )
        )  # fmt: skip
    return steps


def rate_of(known: KnownPause, elapsed_ms: int) -> float:
    assert known.pause.ramp is not None
    return known.pause.ramp.rate_at(elapsed_ms, known.row.peak_per_min / 60)


class RampBench:
    """The servers, the workers and the jobs of a run."""

    def __init__(self, stack: ExitStack, folder: Path, given: argparse.Namespace) -> None:
        self._jobs, self._wipes, self._began_s = given.jobs, given.wipe, time.monotonic()
        mysql, redis = start_mysql(folder / "mysql"), start_redis(folder / "redis")
        stack.callback(mysql.stop)
        stack.callback(redis.stop)
        self._engine = create_engine(mysql.url)
        stack.callback(self._engine.dispose)
        with self._engine.begin() as connection:
            connection.execute(text("CREATE DATABASE bench"))
        self.settings = Settings(
            databases=(mysql.url.rstrip("/") + "/bench",), redis_url=redis.url, namespace="bench",
            shards=16,
            worker={"concurrency": 8, "queue_max": 2000},
            pauses={
                "ramp_start": given.start, "ramp_growth": given.growth,
                "ramp_step_s": given.step_s, "ramp_rate_min": 50,
            },
        )  # fmt: skip
        migrate.upgrade(self.settings)
        self._center = stack.enter_context(TimeoutCenter(self.settings))
        first = settings_message(self.settings) | {"biz_type": TYPE}
        self._workers = [
            stack.enter_context(ChildProcess("tests.bench.ramp_worker", first))
            for _ in range(given.workers)
        ]
        for worker in self._workers:
            worker.receive_message(ANSWER_S)

    def run(self) -> Run:
        warm = max(WARM_MIN, min(WARM_MAX, self._jobs // 20))
        due = datetime.now(UTC) + timedelta(seconds=1 + warm / 10_000)
        self._schedule(0, warm, due)
        self._wait_until_all_ended("the jobs before the pause ran")
        self._center.pause(TYPE, reason="benchmark")
        self._ask_workers("keep")
        time.sleep(PEAK_S)
        self._schedule(warm, self._jobs, timedelta(seconds=1))
        time.sleep(2)
        self._tell(f"{self._jobs:,} jobs are due behind the pause")
        self._center.resume(TYPE)
        known = self._read_pause()
        self._tell(f"the ramp begins; peak: {known.row.peak_per_min / 60:,.0f} jobs/s")
        if self._wipes:
            time.sleep(1.5 * self.settings.pauses.ramp_step_s)
            with redis_client(self.settings.redis_url, is_cluster=False) as client:
                client.flushall()
            self._tell("Redis has lost all data")
        self._wait_until_all_ended("all jobs ran")
        admitted = [
            (at_ms, jobs)
            for answer in self._ask_workers("admissions")
            for at_ms, jobs in answer["admitted"]
        ]
        return self._account(known, sorted(admitted))

    def _schedule(self, first: int, count: int, when: datetime | timedelta) -> None:
        for at in range(first, first + count, BATCH):
            end = min(at + BATCH, first + count)
            self._center.schedule_many(((n, when) for n in range(at, end)), biz_type=TYPE)
        self._tell(f"{count:,} jobs scheduled")

    def _ask_workers(self, command: str) -> list[dict[str, Any]]:
        for worker in self._workers:
            worker.send_message({"do": command})
        return [worker.receive_message(ANSWER_S) for worker in self._workers]

    def _wait_until_all_ended(self, what: str) -> None:
        statuses = ", ".join(map(str, LIVE))
        deadline_s = time.monotonic() + WAIT_S_MAX
        while any(
            self._select(f"SELECT 1 FROM {table} WHERE status IN ({statuses}) LIMIT 1")
            for table in self._tables
        ):
            if time.monotonic() > deadline_s:
                return  # what has not ended is lost
            time.sleep(0.5)
        self._tell(what)

    @property
    def _tables(self) -> list[str]:
        return [f"bench.toc_job_{shard:04d}" for shard in range(self.settings.shards)]

    def _select(self, statement: str) -> list[Any]:
        with self._engine.begin() as connection:
            return list(connection.execute(text(statement)))

    def _account(self, known: KnownPause, admitted: Events) -> Run:
        until_ms = known.pause.until_ms
        assert until_ms is not None
        claims: list[tuple[int, int]] = []
        lost = early = 0
        at_ms = "CAST(ROUND(UNIX_TIMESTAMP(claim_time) * 1000) AS SIGNED)"
        for table in self._tables:
            claims += map(
                tuple, self._select(f"SELECT {at_ms} t, COUNT(*) FROM {table} GROUP BY t")
            )
            ((ended, soon),) = self._select(
                f"SELECT SUM(status = {Status.DONE.value}), SUM(claim_time < action_time) FROM {table}"
            )
            ((rows,),) = self._select(f"SELECT COUNT(*) FROM {table}")
            lost, early = lost + rows - int(ended or 0), early + int(soon or 0)
        behind = sorted(each for each in claims if each[0] >= until_ms)
        done = sum(jobs for _, jobs in behind)
        return Run(known, behind, admitted, done, lost + self._jobs - done, early)

    def _read_pause(self) -> KnownPause:
        with closing(Databases.from_settings(self.settings, SystemClock())) as databases:
            cache = PauseCache(databases)
            cache.read_all_copies()
            return cache.all()[f"type:{TYPE}"]

    def _tell(self, what: str) -> None:
        print(f"{time.monotonic() - self._began_s:6.0f} s  {what}", flush=True)  # noqa: T201


def format_run(run: Run) -> str:
    lines = ["  seconds  |  jobs/s | allowed in a second | most admitted | most claimed |    jobs"]
    lines += [
        f"{step.from_s:4.0f}-{step.to_s:<5.0f} | {step.rate:7,.0f} | {step.allowed:19,} "
        f"| {step.admitted:13,} | {step.claimed:12,} | {step.jobs:7,}"
        for step in steps_of(run)
    ]
    lines.append(f"{run.jobs:,} jobs ran after the pause; lost: {run.lost}; early: {run.early}")
    return "\n".join(lines)


def find_faults(run: Run) -> list[str]:
    """What must not be; empty: the run shows what it should."""
    faults = []
    if run.lost or run.early:
        faults.append(f"{run.lost} jobs were lost, {run.early} ran early")
    for step in steps_of(run):
        if step.admitted > step.allowed:
            faults.append(f"{step.admitted} jobs were admitted in one second of {step}")
    if not any(step.jobs for step in steps_of(run)[1:]):
        faults.append("all jobs ran in the first step: more jobs are needed")
    return faults


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m tests.bench.ramp")
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs behind the pause")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--start", type=float, default=0.2, help="part of the peak at first")
    parser.add_argument("--growth", type=float, default=0.5, help="growth in each step")
    parser.add_argument("--step-s", type=float, default=20.0, help="length of a step")
    parser.add_argument("--wipe", action="store_true", help="FLUSHALL in the second step")
    given = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run = RampBench(stack, folder, given).run()
    print(format_run(run))  # noqa: T201
    faults = find_faults(run)
    for fault in faults:
        print(f"fault: {fault}")  # noqa: T201
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
