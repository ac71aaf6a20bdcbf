"""Many jobs that are due at one instant: how fast workers get through them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from toc.bench.bottleneck import Utilisation, UtilisationMeter, bottleneck_words
from toc.bench.common import (
    DRAINERS,
    Bench,
    Rates,
    Workers,
    check_starts,
    check_statuses,
    clock_offset,
    run_in_threads_s,
    schedule_all,
    worker_processes,
)
from toc.bench.load import group_by_database, job_specs, plan_rows
from toc.bench.report import BenchCheck, Target
from toc.center.center import TimeoutCenter
from toc.domain.job import Status

NAME = "drain"
SCANNER_TICK_S = 1.0


def drain(bench: Bench) -> None:
    """Run by one worker process, by several, and without Redis; beside the statements alone.

    toc's time runs from the instant, by the timer's clock, until the last job is settled; without Redis
    from the first start, since the scanner's tick is a setting and no speed.
    """
    options, report = bench.options, bench.report
    done = 0
    alone = Rates(bench)
    with TimeoutCenter(bench.scratch.ours) as center:
        with worker_processes(bench, 1) as workers:
            drain_race = DrainRace(bench, center, workers)
            # A warm-up: the first jobs of a process connect, compile and load scripts.
            drain_race.run(min(options.jobs, options.batch))
            for _ in range(options.rounds):
                alone.add(_drain_floor(bench), drain_race.run(options.jobs))
            done += drain_race.done
        assert drain_race.use is not None  # noqa: S101 - it ran
        report.notes.append(f"one worker's drain is bounded by {bottleneck_words(drain_race.use)}")
        what = "one worker, due to settled"
        report.add_rounds(NAME, what, "jobs/s", alone.rounds, Target("ratio", ">=", 0.7))
        report.add_rounds(
            NAME, "its memory", "MB", [(None, drain_race.memory_mb)], Target("toc", "<", 150)
        )
        count, several = options.workers or 2, Rates(bench)
        with worker_processes(bench, count) as workers:
            drain_race = DrainRace(bench, center, workers)
            drain_race.run(min(options.jobs, options.batch * count))
            for _, one in alone.rounds:
                several.add(one, drain_race.run(options.jobs))
            done += drain_race.done
        assert drain_race.use is not None  # noqa: S101 - it ran
        report.notes.append(f"that of {count} workers by {bottleneck_words(drain_race.use)}")
        what = f"{count} workers beside one"
        report.add_rounds(NAME, what, "jobs/s", several.rounds, Target("ratio", ">=", 1))
    without = Rates(bench)
    ours = bench.scratch.ours
    bare = {
        "redis_url": "none",
        "scanner": ours.scanner.model_copy(update={"tick_s": SCANNER_TICK_S}),
    }
    with (
        TimeoutCenter(ours.model_copy(update=bare)) as center,
        worker_processes(bench, 1, **bare) as workers,
    ):
        drain_race = DrainRace(bench, center, workers)
        drain_race.run(min(options.jobs, options.batch))
        for _, one in alone.rounds:
            without.add(one, drain_race.run(options.jobs, from_first=True))
        done += drain_race.done
    what = "without Redis beside with"
    report.add_rounds(NAME, what, "jobs/s", without.rounds, Target("ratio", ">=", 0.9))
    check_statuses(bench, NAME, {Status.DONE: done})


def _drain_floor(bench: Bench) -> float | None:
    """Jobs per second of two threads: one works in Python while the other waits for a server."""
    if bench.scratch.floor is None:
        return None
    jobs, size, floors = bench.options.jobs, bench.options.batch, bench.floors[:DRAINERS]
    rows = plan_rows(bench.ids, bench.reserve_biz_ids(jobs), jobs, int(bench.redis_ms()))
    for at in range(0, jobs, size):
        floors[0].insert_many(group_by_database(bench.scratch.floor, rows[at : at + size]))
    counts: list[int] = []

    def part(n: int) -> None:
        counts.append(floors[n].drain(size, n, len(floors)))

    took_s = run_in_threads_s([partial(part, n) for n in range(len(floors))])
    settled = sum(counts)
    bench.report.checks.append(
        BenchCheck(NAME, f"the floor settled {settled:,} of {jobs:,} rows", settled == jobs)
    )
    return settled / took_s


class DrainRace:
    """Runs drains on some workers. `done`: how many jobs they were given in total."""

    def __init__(self, bench: Bench, center: TimeoutCenter, workers: Workers) -> None:
        self._bench, self._center, self._workers = bench, center, workers
        self._lead_ms_per_job = 0.2
        self.done = 0
        self.memory_mb = 0.0
        self.use: Utilisation | None = None
        """Of the last drain."""

    def run(self, jobs: int, *, from_first: bool = False) -> float:
        """Drains; returns jobs per second. Repeats if scheduling took longer than the time until the jobs
        were due.
        """
        while True:
            due_ms = int(self._bench.redis_ms() + 1000 + jobs * self._lead_ms_per_job)
            ids = schedule_all(
                self._center, job_specs(self._bench.reserve_biz_ids(jobs), jobs, due_ms)
            )
            ahead = self._bench.redis_ms() < due_ms
            time.sleep(max(0.0, (due_ms - self._bench.redis_ms()) / 1000))
            meter = UtilisationMeter(self._bench.scratch.client, self._workers)
            first_ms, settled_ms = self._finish(ids, meter)
            if ahead:
                return jobs / (settled_ms - (first_ms if from_first else due_ms)) * 1000
            self._lead_ms_per_job *= 2

    def _measured(self, meter: UtilisationMeter) -> None:
        self.use = meter.stop()

    def _finish(self, ids: Sequence[int], meter: UtilisationMeter) -> tuple[float, float]:
        """Waits until all are settled; the first start and the last settle, by the timer's clock."""
        offset_ms, unsure_ms = clock_offset(self._bench.scratch.client)
        ran = self._workers.wait_until_settled(
            len(ids), 60 + len(ids) / 100, lambda: self._measured(meter)
        )
        self.done += len(ids)
        self.memory_mb = max(self.memory_mb, ran.memory_mb)
        self._bench.report.checks += check_starts(NAME, ids, ran, offset_ms, unsure_ms)
        first_ms = min((at for *_, at in ran.starts), default=ran.settled_ms)
        return first_ms + offset_ms, ran.settled_ms + offset_ms
