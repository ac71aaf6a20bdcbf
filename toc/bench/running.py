"""What a worker does when jobs are due: a drain, and a steady rate."""

from __future__ import annotations

import time
from collections.abc import Sequence

from toc.bench.common import (
    START_S,
    Bench,
    check_statuses,
    clock_offset,
    pair,
    schedule_all,
    start_checks,
    worker_process,
)
from toc.bench.load import by_database, planned, spec, specs
from toc.bench.report import Check, Target
from toc.center.center import TimeoutCenter
from toc.domain.job import Status
from toc.trial.child import Child
from toc.trial.figures import histogram, percentile
from toc.trial.worker import wall_ms

DELAY_MS, DELAY_SPREAD_MS = 2000, 1000  # armed well before it is due


def drain(bench: Bench) -> None:
    """Jobs that are due at one instant, run by one worker process, beside the statements alone.

    toc's time runs from that instant, by the timer's clock, until the last job is settled.
    """
    options, name = bench.options, "drain"
    rounds = []
    with TimeoutCenter(bench.scratch.ours) as center, worker_process(bench) as worker:
        race = Race(bench, center, worker)
        # A warm-up: the first jobs of a process connect, compile and load scripts.
        race.run(min(options.jobs, options.batch))
        for number in range(1, options.rounds + 1):
            floor = _drain_floor(bench)
            ours = race.run(options.jobs)
            rounds.append((floor, ours))
            bench.tell(f"round {number}: {pair(floor, ours)} jobs/s")
    bench.report.add_rounds(
        name,
        "one worker, due to settled",
        "jobs/s",
        rounds,
        Target("ratio", ">=", 0.5),
        Target("toc", ">=", 8000),
    )
    check_statuses(bench, name, {Status.DONE: race.done})


def _drain_floor(bench: Bench) -> float | None:
    if bench.floor is None or bench.scratch.floor is None:
        return None
    jobs, size = bench.options.jobs, bench.options.batch
    rows = planned(bench.ids, bench.biz_ids(jobs), jobs, int(bench.redis_ms()))
    for at in range(0, jobs, size):
        bench.floor.insert_many(by_database(bench.scratch.floor, rows[at : at + size]))
    started_s = time.perf_counter()
    settled = bench.floor.drain(size)
    rate = settled / (time.perf_counter() - started_s)
    bench.report.checks.append(
        Check("drain", f"the floor settled {settled:,} of {jobs:,} rows", settled == jobs)
    )
    return rate


class Race:
    """Drains of one worker process. `done`: how many jobs it was given in all."""

    def __init__(self, bench: Bench, center: TimeoutCenter, worker: Child) -> None:
        self._bench, self._center, self._worker = bench, center, worker
        self._lead_ms_per_job = 0.2
        self.done = 0

    def run(self, jobs: int) -> float:
        """Jobs per second. Starts again when scheduling took longer than the time until the instant."""
        while True:
            due_ms = int(self._bench.redis_ms() + 1000 + jobs * self._lead_ms_per_job)
            ids = schedule_all(self._center, specs(self._bench.biz_ids(jobs), jobs, due_ms))
            ahead = self._bench.redis_ms() < due_ms
            settled_ms = self._finish(ids)
            if ahead:
                return jobs / (settled_ms - due_ms) * 1000
            self._lead_ms_per_job *= 2

    def _finish(self, ids: Sequence[int]) -> float:
        """Waits until all are settled; returns when that was, by the timer's clock."""
        offset_ms, unsure_ms = clock_offset(self._bench.scratch.client)
        timeout_s = 60 + len(ids) / 100
        line = {"do": "finish", "count": len(ids), "timeout_s": timeout_s}
        answer = self._worker.ask(line, timeout_s + START_S)
        self.done += len(ids)
        self._bench.report.checks += start_checks("drain", ids, answer, offset_ms, unsure_ms)
        return float(answer["settled_ms"]) + offset_ms


def lateness(bench: Bench) -> None:
    """A steady rate from this process to a worker's: handler start minus action_time."""
    options, name = bench.options, "lateness"
    offset_ms, unsure_ms = clock_offset(bench.scratch.client)
    jobs = round(options.rate * options.seconds)
    first = bench.biz_ids(jobs)
    ids = []
    with TimeoutCenter(bench.scratch.ours) as center, worker_process(bench) as worker:
        center.dead(1)  # connected before the clock runs
        started_s = time.perf_counter()
        for i in range(jobs):
            wait_s = started_s + i / options.rate - time.perf_counter()
            if wait_s > 0:
                time.sleep(wait_s)
            delay_ms = DELAY_MS + i * 7919 % DELAY_SPREAD_MS  # the same in each run
            ids.append(center.schedule(**spec(first + i, int(wall_ms() + offset_ms) + delay_ms)))
        took_s = time.perf_counter() - started_s
        answer = worker.ask({"do": "finish", "count": jobs, "timeout_s": 60}, 60 + START_S)
    late_ms = [at + offset_ms - action for _, action, at in answer["starts"]]
    report = bench.report
    report.checks += start_checks(name, ids, answer, offset_ms, unsure_ms)
    check_statuses(bench, name, {Status.DONE: jobs})
    if not late_ms:
        return
    for what, value, targets in (
        ("p50", percentile(late_ms, 50), (Target("toc", "<=", 5),)),
        ("p99", percentile(late_ms, 99), (Target("toc", "<=", 20),)),
        ("max", max(late_ms), ()),
        ("min", min(late_ms), ()),
    ):
        report.add_rounds(
            name, f"{what} at {options.rate:g} jobs/s", "ms", [(None, value)], *targets
        )
    asked = f"client's rate, asked {options.rate:g}"
    report.add_rounds(name, asked, "jobs/s", [(None, jobs / took_s)])
    bench.tell(f"p50 {percentile(late_ms, 50):.1f} ms, p99 {percentile(late_ms, 99):.1f} ms")
    report.pictures["Lateness: handler start minus action_time"] = histogram(late_ms)
