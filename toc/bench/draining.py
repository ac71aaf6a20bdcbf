"""Many jobs that are due at one instant: how fast workers get through them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from toc.bench.bottleneck import UtilisationMeter, bottleneck_words
from toc.bench.common import (
    Bench,
    Rates,
    Workers,
    check_starts,
    check_statuses,
    clock_offset,
    schedule_all,
    worker_processes,
)
from toc.bench.load import job_specs
from toc.center.center import TimeoutCenter
from toc.domain.job import Status

NAME = "drain"
SCANNER_TICK_S = 1.0


def drain(bench: Bench) -> None:
    """Run by one worker process, by several, and by one without Redis.

    The time runs from the instant, by the timer's clock, until the last job is settled; without Redis from
    the first start, since the scanner's tick is a setting.
    """
    options, report = bench.options, bench.report
    alone, several, without = Rates(bench), Rates(bench), Rates(bench)
    done = 0
    with TimeoutCenter(bench.scratch.settings) as center:
        with worker_processes(bench, 1) as workers:
            race = DrainRace(bench, center, workers)
            race.warm_up()
            for _ in range(options.rounds):
                baseline = None if bench.baseline is None else bench.baseline.drain(options.jobs)
                alone.add(baseline, race.run(options.jobs))
            done += race.done
        report.add_rounds(NAME, "one worker, due to settled", "jobs/s", alone.rounds)
        report.add_rounds(NAME, "its memory", "MB", [(None, race.memory_mb)])
        report.notes.append(f"one worker's drain is bounded by {race.bottleneck}")
        count = options.workers or 2
        with worker_processes(bench, count) as workers:
            race = DrainRace(bench, center, workers)
            race.warm_up(count)
            for _, one in alone.rounds:
                several.add(one, race.run(options.jobs))
            done += race.done
        report.add_rounds(NAME, f"{count} workers beside one", "jobs/s", several.rounds)
        report.notes.append(f"the drain of {count} workers is bounded by {race.bottleneck}")
    settings = bench.scratch.settings
    bare: dict[str, Any] = {
        "redis_url": "none",
        "scanner": settings.scanner.model_copy(update={"tick_s": SCANNER_TICK_S}),
    }
    with (
        TimeoutCenter(settings.model_copy(update=bare)) as center,
        worker_processes(bench, 1, **bare) as workers,
    ):
        race = DrainRace(bench, center, workers)
        race.warm_up()
        for _, one in alone.rounds:
            without.add(one, race.run(options.jobs, from_first=True))
        done += race.done
    report.add_rounds(NAME, "without Redis beside with", "jobs/s", without.rounds)
    check_statuses(bench, NAME, {Status.DONE: done})


class DrainRace:
    """Runs drains on some workers. `done`: how many jobs they were given in total."""

    def __init__(self, bench: Bench, center: TimeoutCenter, workers: Workers) -> None:
        self._bench, self._center, self._workers = bench, center, workers
        self._lead_ms_per_job = 0.2
        self.done = 0
        self.memory_mb = 0.0
        self.bottleneck = ""
        """The part that bounded the last drain, in words."""

    def warm_up(self, workers: int = 1) -> None:
        """A short drain: the first jobs of a process connect, compile and load scripts."""
        self.run(min(self._bench.options.jobs, self._bench.options.batch * workers))

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

    def _find_bottleneck(self, meter: UtilisationMeter) -> None:
        self.bottleneck = bottleneck_words(meter.stop())

    def _finish(self, ids: Sequence[int], meter: UtilisationMeter) -> tuple[float, float]:
        """Waits until all are settled; the first start and the last settle, by the timer's clock."""
        offset_ms, unsure_ms = clock_offset(self._bench.scratch.client)
        ran = self._workers.wait_until_settled(
            len(ids), 60 + len(ids) / 100, lambda: self._find_bottleneck(meter)
        )
        self.done += len(ids)
        self.memory_mb = max(self.memory_mb, ran.memory_mb)
        self._bench.report.checks += check_starts(NAME, ids, ran, offset_ms, unsure_ms)
        first_ms = min((at for *_, at in ran.starts), default=ran.settled_ms)
        return first_ms + offset_ms, ran.settled_ms + offset_ms
