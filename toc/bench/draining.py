"""Many jobs that are due at one instant: how fast workers get through them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from toc.bench.bottleneck import UtilisationMeter, describe_bottleneck
from toc.bench.common import (
    BenchContext,
    RateRounds,
    WorkerProcesses,
    check_starts,
    check_statuses_and_clear,
    measure_clock_offset,
    schedule_in_batches,
    start_worker_processes,
)
from toc.bench.job_specs import make_job_specs
from toc.bench.processor_time import ProcessorTime
from toc.center.center import TimeoutCenter
from toc.domain.job import Status

NAME = "drain"
SCANNER_TICK_S = 1.0


def measure_drain(bench: BenchContext) -> None:
    """Measures drains by one worker process, by several, and by one without Redis.

    The time runs from the instant, by the timer's clock, until the last job is settled; without Redis from
    the first start, since the scanner's tick is a setting.
    """
    options, report = bench.options, bench.report
    alone, several, without = RateRounds(bench), RateRounds(bench), RateRounds(bench)
    done = 0
    with TimeoutCenter(bench.scratch.settings) as center:
        with start_worker_processes(bench, 1) as workers:
            race = DrainMeasurement(bench, center, workers)
            race.warm_up()
            for _ in range(options.rounds):
                baseline = None if bench.baseline is None else bench.baseline.drain(options.jobs)
                alone.add_round(baseline, race.drain_jobs(options.jobs))
            done += race.done
        report.add_measurement(NAME, "one worker, due to settled", "jobs/s", alone.rounds)
        race.processor_time.add_to_report(report, NAME)
        report.add_measurement(NAME, "its memory", "MB", [(None, race.memory_mb)])
        report.notes.append(f"one worker's drain is bounded by {race.bottleneck}")
        count = options.workers or 2
        with start_worker_processes(bench, count) as workers:
            race = DrainMeasurement(bench, center, workers)
            race.warm_up(count)
            for _, one in alone.rounds:
                several.add_round(one, race.drain_jobs(options.jobs))
            done += race.done
        report.add_measurement(NAME, f"{count} workers beside one", "jobs/s", several.rounds)
        report.notes.append(f"the drain of {count} workers is bounded by {race.bottleneck}")
    settings = bench.scratch.settings
    bare: dict[str, Any] = {
        "redis_url": "none",
        "scanner": settings.scanner.model_copy(update={"tick_s": SCANNER_TICK_S}),
    }
    with (
        TimeoutCenter(settings.model_copy(update=bare)) as center,
        start_worker_processes(bench, 1, **bare) as workers,
    ):
        race = DrainMeasurement(bench, center, workers)
        race.warm_up()
        for _, one in alone.rounds:
            without.add_round(one, race.drain_jobs(options.jobs, from_first=True))
        done += race.done
    report.add_measurement(NAME, "without Redis beside with", "jobs/s", without.rounds)
    check_statuses_and_clear(bench, NAME, {Status.DONE: done})


class DrainMeasurement:
    """Runs drains on some workers. `done`: how many jobs they were given in total."""

    def __init__(
        self, bench: BenchContext, center: TimeoutCenter, workers: WorkerProcesses
    ) -> None:
        self._bench, self._center, self._workers = bench, center, workers
        self._lead_ms_per_job = 0.2
        self.done = 0
        self.memory_mb = 0.0
        self.bottleneck = ""
        """The part that bounded the last drain, in words."""
        self.processor_time = ProcessorTime()

    def warm_up(self, workers: int = 1) -> None:
        """A short drain: the first jobs of a process connect, compile and load scripts."""
        self.drain_jobs(min(self._bench.options.jobs, self._bench.options.batch * workers))
        self.processor_time = ProcessorTime()

    def drain_jobs(self, jobs: int, *, from_first: bool = False) -> float:
        """Schedules jobs that are due at one instant, waits for their end; returns jobs per second.

        Repeats this if scheduling took longer than the time until the jobs were due.
        """
        while True:
            due_ms = int(self._bench.redis_time_ms() + 1000 + jobs * self._lead_ms_per_job)
            ids = schedule_in_batches(
                self._center, make_job_specs(self._bench.reserve_biz_ids(jobs), jobs, due_ms)
            )
            ahead = self._bench.redis_time_ms() < due_ms
            time.sleep(max(0.0, (due_ms - self._bench.redis_time_ms()) / 1000))
            meter = UtilisationMeter(self._bench.scratch.client, self._workers)
            self.processor_time.begin_round()
            first_ms, settled_ms = self._wait_and_check_starts(ids, meter)
            if ahead:
                return jobs / (settled_ms - (first_ms if from_first else due_ms)) * 1000
            self._lead_ms_per_job *= 2

    def _end_meters(self, meter: UtilisationMeter, jobs: int) -> None:
        self.processor_time.end_round(jobs)
        self.bottleneck = describe_bottleneck(meter.stop())

    def _wait_and_check_starts(
        self, ids: Sequence[int], meter: UtilisationMeter
    ) -> tuple[float, float]:
        """Waits until all jobs are settled; returns first start and last settle, by the timer's clock."""
        offset_ms, unsure_ms = measure_clock_offset(self._bench.scratch.client)
        ran = self._workers.wait_until_settled(
            len(ids), 60 + len(ids) / 100, lambda: self._end_meters(meter, len(ids))
        )
        self.done += len(ids)
        self.memory_mb = max(self.memory_mb, ran.memory_mb)
        self._bench.report.checks += check_starts(NAME, ids, ran, offset_ms, unsure_ms)
        first_ms = min((at for *_, at in ran.starts), default=ran.settled_ms)
        return first_ms + offset_ms, ran.settled_ms + offset_ms
