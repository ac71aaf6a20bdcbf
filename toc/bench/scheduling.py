"""The cases schedule_many and schedule: how many jobs per second a client can schedule."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from toc.bench.child_node import wall_ms
from toc.bench.common import (
    CLIENTS,
    FAR_MS,
    BenchContext,
    RateRounds,
    check_statuses_and_clear,
    time_each_call_ms,
    time_in_threads_s,
)
from toc.bench.job_specs import make_job_specs
from toc.bench.processor_time import ProcessorTime
from toc.bench.statistics import percentile
from toc.center.async_center import AsyncTimeoutCenter
from toc.center.center import JobSpec, TimeoutCenter
from toc.domain.job import Status

WARM_UP_JOBS = 100
ASYNC_CALLS = 200  # calls of `schedule` that wait at the same time


def measure_schedule_many(bench: BenchContext) -> None:
    """Measures `schedule_many`, a batch per call."""
    options, rates, processor_time = bench.options, RateRounds(bench), ProcessorTime()
    written = 0
    with TimeoutCenter(bench.scratch.settings) as center:
        for number in range(options.rounds + 1):
            jobs = options.jobs if number else options.batch  # the first round is a warm-up
            baseline = None if bench.baseline is None else bench.baseline.schedule_many(jobs)
            first, due_ms = bench.reserve_biz_ids(jobs), int(wall_ms()) + FAR_MS
            batches = [
                make_job_specs(first + at, min(options.batch, jobs - at), due_ms)
                for at in range(0, jobs, options.batch)
            ]
            processor_time.begin_round()
            started_s = time.perf_counter()
            for batch in batches:
                center.schedule_many(batch)
            ours = jobs / (time.perf_counter() - started_s)
            written += jobs
            if number:
                processor_time.end_round(jobs)
                rates.add_round(baseline, ours)
    bench.report.add_measurement("schedule_many", f"{options.batch} a call", "jobs/s", rates.rounds)
    processor_time.add_to_report(bench.report, "schedule_many")
    check_statuses_and_clear(bench, "schedule_many", {Status.PENDING: written})


def measure_schedule(bench: BenchContext) -> None:
    """Measures `schedule`, one job per call: from one thread, from several, from async tasks."""
    options, report = bench.options, bench.report
    count = max(options.jobs // 10, 1)
    clients = options.clients or CLIENTS
    each = max(count // clients, 1)
    written = 0
    one_by_one, in_threads, in_tasks = RateRounds(bench), RateRounds(bench), RateRounds(bench)
    calls: dict[float, list[tuple[float | None, float]]] = {50: [], 99: []}
    with TimeoutCenter(bench.scratch.settings) as center:
        for number in range(options.rounds + 1):  # the first round is a warm-up
            jobs = count if number else min(count, WARM_UP_JOBS)
            baseline_ms = None if bench.baseline is None else bench.baseline.schedule(jobs)
            load = _new_job_specs(bench, jobs)
            ours_ms = time_each_call_ms([partial(center.schedule, **job) for job in load])
            written += jobs
            if number:
                baseline_rate = None if baseline_ms is None else jobs / sum(baseline_ms) * 1000
                one_by_one.add_round(baseline_rate, jobs / sum(ours_ms) * 1000)
                for percent, found in calls.items():
                    baseline = None if baseline_ms is None else percentile(baseline_ms, percent)
                    found.append((baseline, percentile(ours_ms, percent)))
        for number in range(options.rounds + 1):  # again: each thread has to connect
            baseline = None
            if bench.baseline is not None:
                baseline = bench.baseline.schedule_in_threads(clients, each)
            loads = [_new_job_specs(bench, each) for _ in range(clients)]
            took_s = time_in_threads_s(
                [partial(schedule_one_by_one, center, load) for load in loads]
            )
            written += each * clients
            if number:
                in_threads.add_round(baseline, each * clients / took_s)
        for number in range(options.rounds + 1):
            jobs = options.jobs if number else ASYNC_CALLS
            load = _new_job_specs(bench, jobs)
            took_s = asyncio.run(schedule_in_tasks(center, load, ASYNC_CALLS))
            written += jobs
            if number:
                in_tasks.add_round(None, jobs / took_s)
    report.add_measurement("schedule", "one by one", "jobs/s", one_by_one.rounds)
    for percent, found in calls.items():
        report.add_measurement("schedule", f"one call, p{percent:g}", "ms", found)
    report.add_measurement("schedule", f"{clients} threads", "jobs/s", in_threads.rounds)
    what = f"async, {ASYNC_CALLS} calls at a time"
    report.add_measurement("schedule", what, "jobs/s", in_tasks.rounds)
    check_statuses_and_clear(bench, "schedule", {Status.PENDING: written})


def _new_job_specs(bench: BenchContext, jobs: int) -> list[JobSpec]:
    return make_job_specs(bench.reserve_biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS)


def schedule_one_by_one(center: TimeoutCenter, load: list[JobSpec]) -> None:
    """Schedules jobs, one in each call."""
    for job in load:
        center.schedule(**job)


async def schedule_in_tasks(center: TimeoutCenter, load: list[JobSpec], tasks: int) -> float:
    """Schedules jobs one by one in so many tasks; returns the seconds that this took."""
    in_async, left = AsyncTimeoutCenter(center), iter(load)

    async def schedule_some() -> None:
        for job in left:
            await in_async.schedule(**job)

    started_s = time.perf_counter()
    await asyncio.gather(*(schedule_some() for _ in range(tasks)))
    return time.perf_counter() - started_s
