"""The case http: the verbs of `toc web`, through real connections, beside the same verbs in process.

Server and clients are processes of this machine. The server's own work is what the ratio shows only if the
machine has processors to spare for the clients.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import partial

from toc.bench.child_node import wall_ms
from toc.bench.common import (
    FAR_MS,
    BenchContext,
    RateRounds,
    check_starts,
    check_statuses_and_clear,
    measure_clock_offset,
    schedule_in_batches,
    start_worker_processes,
    time_in_threads_s,
)
from toc.bench.draining import DrainMeasurement
from toc.bench.job_specs import PULL_TYPE, make_job_specs
from toc.bench.lateness import TIMEOUT_S, RateClient, due_times_s
from toc.bench.report import BenchCheck
from toc.bench.scheduling import schedule_in_tasks, schedule_one_by_one
from toc.bench.statistics import draw_histogram, percentile
from toc.bench.web_load import PROCESSES, WebLoad, make_web_token, open_web_load
from toc.center.center import JobSpec, TimeoutCenter
from toc.domain.job import Status
from toc.errors import SettingsError
from toc.http import import_web_module

NAME = "http"
CONNECTIONS = 32
CONSUMER_CONNECTIONS = 8  # of the one process whose lateness is measured


def measure_http(bench: BenchContext) -> None:
    """Measures single and bulk `POST /v1/jobs`, leases with their settlement, and lateness at a consumer."""
    try:
        import_web_module("toc.http.serve")
    except SettingsError as error:
        bench.report.notes.append(f"case http not measured: {error}")
        return
    token = make_web_token(bench)
    with TimeoutCenter(bench.scratch.settings) as center:
        written = 0
        with open_web_load(bench, token) as load:
            written += _measure_single_jobs(bench, center, load)
            written += _measure_bulk(bench, center, load)
        check_statuses_and_clear(bench, NAME, {Status.PENDING: written})
        alone = _measure_worker(bench, center)
        with open_web_load(bench, token) as load:
            done = _measure_leases(bench, center, load, alone)
            done += _measure_lateness(bench, center, load)
        check_statuses_and_clear(bench, NAME, {Status.DONE: done})


# ---- scheduling


def _measure_single_jobs(bench: BenchContext, center: TimeoutCenter, load: WebLoad) -> int:
    """One job a request. Returns how many jobs were written, in all rounds."""
    options, inserted, posted = bench.options, 0, 0
    beside_tasks, beside_threads = RateRounds(bench), RateRounds(bench)
    count = max(options.jobs // 10, CONNECTIONS)
    for number in range(options.rounds + 1):  # the first round is a warm-up
        jobs = count if number else CONNECTIONS
        tasks = asyncio.run(schedule_in_tasks(center, _new_jobs(bench, jobs), CONNECTIONS))
        loads = [_new_jobs(bench, jobs // CONNECTIONS) for _ in range(CONNECTIONS)]
        threads = time_in_threads_s([partial(schedule_one_by_one, center, part) for part in loads])
        in_threads = jobs // CONNECTIONS * CONNECTIONS
        first, due_ms = bench.reserve_biz_ids(jobs), int(wall_ms()) + FAR_MS
        took_s, written = load.schedule(first, jobs, due_ms, connections=CONNECTIONS)
        inserted += written + jobs + in_threads
        posted += jobs - written
        if number:
            beside_tasks.add_round(jobs / tasks, jobs / took_s)
            beside_threads.add_round(in_threads / threads, jobs / took_s)
    _check_answers(bench, posted)
    report, what = bench.report, f"POST, {CONNECTIONS} connections"
    report.add_measurement(NAME, f"{what} beside async calls", "jobs/s", beside_tasks.rounds)
    report.add_measurement(NAME, f"{what} beside threads", "jobs/s", beside_threads.rounds)
    return inserted


def _measure_bulk(bench: BenchContext, center: TimeoutCenter, load: WebLoad) -> int:
    """`batch` jobs a request, from one client; in process by `schedule_many`. Returns as the above."""
    options, inserted, missing = bench.options, 0, 0
    rates = RateRounds(bench)
    for number in range(options.rounds + 1):
        jobs = options.jobs if number else options.batch
        specs = _new_jobs(bench, jobs)
        started_s = time.perf_counter()
        for at in range(0, jobs, options.batch):
            center.schedule_many(specs[at : at + options.batch])
        in_process = jobs / (time.perf_counter() - started_s)
        first, due_ms = bench.reserve_biz_ids(jobs), int(wall_ms()) + FAR_MS
        took_s, written = load.schedule(first, jobs, due_ms, batch=options.batch, connections=1)
        inserted += written + jobs
        missing += jobs - written
        if number:
            rates.add_round(in_process, jobs / took_s)
    _check_answers(bench, missing)
    bench.report.add_measurement(NAME, f"POST, {options.batch} a call", "jobs/s", rates.rounds)
    return inserted


def _new_jobs(bench: BenchContext, jobs: int) -> list[JobSpec]:
    return make_job_specs(bench.reserve_biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS)


def _check_answers(bench: BenchContext, missing: int) -> None:
    what = "each job of a POST was answered with 'inserted'"
    bench.report.checks.append(BenchCheck(NAME, what, missing == 0))


# ---- consuming


def _measure_worker(bench: BenchContext, center: TimeoutCenter) -> RateRounds:
    """Drains by one worker process with a handler: leases are compared with them."""
    rates = RateRounds(bench)
    with start_worker_processes(bench, 1) as workers:
        drain = DrainMeasurement(bench, center, workers)
        drain.warm_up()
        for _ in range(bench.options.rounds):
            rates.add_round(None, drain.drain_jobs(bench.options.jobs))
    check_statuses_and_clear(bench, NAME, {Status.DONE: drain.done})
    return rates


def _measure_leases(
    bench: BenchContext, center: TimeoutCenter, load: WebLoad, alone: RateRounds
) -> int:
    """Jobs that are due at one instant, until all leases are finished. Returns how many jobs there were."""
    options, rates, done = bench.options, RateRounds(bench), 0
    baselines = [None, *(ours for _, ours in alone.rounds)]
    with load.consumers(PROCESSES, 2) as consumers:
        for number, baseline in enumerate(baselines):
            jobs = options.jobs if number else options.batch
            lead_ms = 1000.0 + 0.2 * jobs
            while (
                True
            ):  # again with more time, if the jobs were due before all of them were scheduled
                offset_ms, unsure_ms = measure_clock_offset(bench.scratch.client)
                due_ms = int(bench.redis_time_ms() + lead_ms)
                first = bench.reserve_biz_ids(jobs)
                specs = make_job_specs(first, jobs, due_ms, biz_type=PULL_TYPE)
                ids = schedule_in_batches(center, specs)
                is_ahead = bench.redis_time_ms() < due_ms
                ran = consumers.wait_until_settled(jobs, TIMEOUT_S + jobs / 100)
                bench.report.checks += check_starts(NAME, ids, ran, offset_ms, unsure_ms)
                done += jobs
                if is_ahead or len(ran.starts) < jobs:
                    break
                lead_ms *= 2
            if number:
                rates.add_round(baseline, jobs / (ran.settled_ms + offset_ms - due_ms) * 1000)
    what = "leases with finish, one replica, beside one worker"
    bench.report.add_measurement(NAME, what, "jobs/s", rates.rounds)
    return done


def _measure_lateness(bench: BenchContext, center: TimeoutCenter, load: WebLoad) -> int:
    """When a waiting consumer has the answer, minus action_time, at the first rate of the options."""
    options, report, rate = bench.options, bench.report, bench.options.rates[0]
    offset_ms, unsure_ms = measure_clock_offset(bench.scratch.client)
    jobs = round(rate * options.seconds)
    due = list(itertools.islice(due_times_s(options.due, rate), jobs))
    with load.consumers(1, CONSUMER_CONNECTIONS) as consumers:
        client = RateClient(center, offset_ms)
        ids = client.schedule_jobs(due, bench.reserve_biz_ids(jobs), PULL_TYPE, rate)
        ran = consumers.wait_until_settled(jobs, TIMEOUT_S)
    report.checks += check_starts(NAME, ids, ran, offset_ms, unsure_ms)
    late_ms = [at + offset_ms - action for _, action, at in ran.starts]
    if late_ms:
        for what, value in (
            ("p50", percentile(late_ms, 50)),
            ("p99", percentile(late_ms, 99)),
            ("max", max(late_ms)),
        ):
            name = f"lateness at a consumer, {what} at {rate:g} jobs/s"
            report.add_measurement(NAME, name, "ms", [(None, value)])
        title = f"Lateness at {rate:g} jobs/s: answer at the consumer minus action_time"
        report.pictures[title] = draw_histogram(late_ms)
        report.samples[title] = late_ms
    return jobs
