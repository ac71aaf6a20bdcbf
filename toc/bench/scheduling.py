"""schedule_many and schedule."""

from __future__ import annotations

import time
from functools import partial

from toc.bench.child_node import wall_ms
from toc.bench.common import (
    CLIENTS,
    FAR_MS,
    Bench,
    Rates,
    check_statuses,
    run_in_threads_s,
    time_each_ms,
)
from toc.bench.load import job_specs
from toc.bench.statistics import percentile
from toc.center.center import JobSpec, TimeoutCenter
from toc.domain.job import Status

WARM_UP_JOBS = 100


def schedule_many(bench: Bench) -> None:
    """Batches through `schedule_many`."""
    options, rates = bench.options, Rates(bench)
    written = 0
    with TimeoutCenter(bench.scratch.settings) as center:
        for number in range(options.rounds + 1):
            jobs = options.jobs if number else options.batch  # the first round is a warm-up
            baseline = None if bench.baseline is None else bench.baseline.schedule_many(jobs)
            first, due_ms = bench.reserve_biz_ids(jobs), int(wall_ms()) + FAR_MS
            batches = [
                job_specs(first + at, min(options.batch, jobs - at), due_ms)
                for at in range(0, jobs, options.batch)
            ]
            started_s = time.perf_counter()
            for batch in batches:
                center.schedule_many(batch)
            ours = jobs / (time.perf_counter() - started_s)
            written += jobs
            if number:
                rates.add(baseline, ours)
    bench.report.add_rounds("schedule_many", f"{options.batch} a call", "jobs/s", rates.rounds)
    check_statuses(bench, "schedule_many", {Status.PENDING: written})


def schedule(bench: Bench) -> None:
    """One job per call: from one thread, then from several."""
    options, report = bench.options, bench.report
    count = max(options.jobs // 10, 1)
    clients = options.clients or CLIENTS
    each = max(count // clients, 1)
    written = 0
    one_by_one, in_threads = Rates(bench), Rates(bench)
    calls: dict[float, list[tuple[float | None, float]]] = {50: [], 99: []}
    with TimeoutCenter(bench.scratch.settings) as center:
        for number in range(options.rounds + 1):  # the first round is a warm-up
            jobs = count if number else min(count, WARM_UP_JOBS)
            baseline_ms = None if bench.baseline is None else bench.baseline.schedule(jobs)
            load = _load(bench, jobs)
            ours_ms = time_each_ms([partial(center.schedule, **job) for job in load])
            written += jobs
            if number:
                baseline_rate = None if baseline_ms is None else jobs / sum(baseline_ms) * 1000
                one_by_one.add(baseline_rate, jobs / sum(ours_ms) * 1000)
                for percent, found in calls.items():
                    baseline = None if baseline_ms is None else percentile(baseline_ms, percent)
                    found.append((baseline, percentile(ours_ms, percent)))
        for number in range(options.rounds + 1):  # again: each thread has to connect
            baseline = None
            if bench.baseline is not None:
                baseline = bench.baseline.schedule_in_threads(clients, each)
            loads = [_load(bench, each) for _ in range(clients)]
            took_s = run_in_threads_s([partial(_schedule_each, center, load) for load in loads])
            written += each * clients
            if number:
                in_threads.add(baseline, each * clients / took_s)
    report.add_rounds("schedule", "one by one", "jobs/s", one_by_one.rounds)
    for percent, found in calls.items():
        report.add_rounds("schedule", f"one call, p{percent:g}", "ms", found)
    report.add_rounds("schedule", f"{clients} threads", "jobs/s", in_threads.rounds)
    check_statuses(bench, "schedule", {Status.PENDING: written})


def _load(bench: Bench, jobs: int) -> list[JobSpec]:
    return job_specs(bench.reserve_biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS)


def _schedule_each(center: TimeoutCenter, load: list[JobSpec]) -> None:
    for job in load:
        center.schedule(**job)
