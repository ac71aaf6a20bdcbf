"""How late handlers start, at a steady rate."""

from __future__ import annotations

import itertools
import math
import random
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial

from toc.bench.child_node import wall_ms
from toc.bench.common import (
    BenchContext,
    check_starts,
    check_statuses_and_clear,
    measure_clock_offset,
    schedule_in_batches,
    start_worker_processes,
    time_in_threads_s,
)
from toc.bench.job_specs import BIZ_TYPE, make_job_spec
from toc.bench.statistics import draw_histogram, percentile
from toc.center.center import JobSpec, TimeoutCenter
from toc.domain.job import Status

AHEAD_S = 2.0  # a job is scheduled so long before it is due
ONE_BY_ONE = 1000  # jobs a second: about what one thread can do so
GATHER_S = 0.05  # above that rate, one call schedules the jobs of so long
TIMEOUT_S = 60.0


def measure_lateness(bench: BenchContext) -> None:
    """Measures how late handlers start (start minus action_time), at each rate of the options."""
    for rate in bench.options.rates:
        _measure_lateness_at_rate(bench, rate)


def _measure_lateness_at_rate(bench: BenchContext, rate: float) -> None:
    options, report, name = bench.options, bench.report, "lateness"
    offset_ms, unsure_ms = measure_clock_offset(bench.scratch.client)
    jobs = round(rate * options.seconds)
    with (
        TimeoutCenter(bench.scratch.settings) as center,
        start_worker_processes(bench, options.workers or 1) as workers,
    ):
        center.dead(1)  # connected before the clock runs
        due = list(itertools.islice(due_times_s(options.due, rate), jobs))
        ids, took_s = _schedule_at_rate(bench, center, offset_ms, due, rate)
        ran = workers.wait_until_settled(jobs, TIMEOUT_S)
    report.checks += check_starts(name, ids, ran, offset_ms, unsure_ms)
    check_statuses_and_clear(bench, name, {Status.DONE: jobs})
    late_ms = [at + offset_ms - action for _, action, at in ran.starts]
    if not late_ms:
        return
    baseline_ms = None if bench.baseline is None else bench.baseline.lateness(rate, due)
    p50_ms, p99_ms = percentile(late_ms, 50), percentile(late_ms, 99)
    for what, value, of_baseline in (
        ("p50", p50_ms, baseline_ms and percentile(baseline_ms, 50)),
        ("p99", p99_ms, baseline_ms and percentile(baseline_ms, 99)),
        ("max", max(late_ms), baseline_ms and max(baseline_ms)),
        ("min", min(late_ms), baseline_ms and min(baseline_ms)),
    ):
        figures = [(of_baseline or None, value)]
        report.add_measurement(name, f"{what} at {rate:g} jobs/s", "ms", figures)
    asked = f"clients' rate, asked {rate:g}"
    report.add_measurement(name, asked, "jobs/s", [(None, jobs / took_s)])
    bench.tell(f"p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms")
    title = f"Lateness at {rate:g} jobs/s: handler start minus action_time"
    report.pictures[title] = draw_histogram(late_ms)
    report.samples[title] = late_ms


def _schedule_at_rate(
    bench: BenchContext,
    center: TimeoutCenter,
    offset_ms: float,
    due_s: Sequence[float],
    rate: float,
) -> tuple[list[int], float]:
    """Schedules with all clients together; returns the ids, and how many seconds it took."""
    clients = bench.options.clients or 1
    loads = [due_s[n::clients] for n in range(clients)]
    runs = [
        partial(
            RateClient(center, offset_ms).schedule_jobs,
            its,
            bench.reserve_biz_ids(len(its)),
            BIZ_TYPE,
            rate / clients,
        )
        for its in loads
    ]
    ids: list[int] = []
    took_s = time_in_threads_s([lambda run=run: ids.extend(run()) for run in runs])  # type: ignore[misc]
    return ids, took_s


def due_times_s(kind: str, rate: float) -> Iterator[float]:
    """When jobs are due, in seconds from some moment, ascending; `rate` a second in the mean.

    "even": at equal distances. "random": as customers come who know nothing of each other (a Poisson
    process; the same in each run). "whole": all of a second at its beginning, as people choose times.
    """
    if kind == "random":
        rng, at_s = random.Random(0), 0.0  # noqa: S311 - a load, no secret
        while True:
            at_s += rng.expovariate(rate)
            yield at_s
    for n in itertools.count():
        yield math.floor(n / rate) if kind == "whole" else n / rate


class RateClient:
    """Schedules at a rate, one by one; jobs that it is behind with go into one call.

    Above ONE_BY_ONE jobs per second its calls gather jobs: in reality several machines would schedule so
    many. Here they run beside the worker and must not use up its processors.
    """

    def __init__(self, center: TimeoutCenter, offset_ms: float) -> None:
        self._center, self._offset_ms = center, offset_ms

    def schedule_jobs(
        self, due_s: Sequence[float], first: int, biz_type: str, rate: float
    ) -> list[int]:
        """Schedules jobs AHEAD_S before they are due, with business ids from `first` on; returns job ids."""
        gather_s = GATHER_S if rate > ONE_BY_ONE else 0.0
        ids: list[int] = []
        began_s, began_ms = time.perf_counter(), wall_ms() + self._offset_ms

        def make_job(n: int) -> JobSpec:
            return make_job_spec(first + n, round(began_ms + (due_s[n] + AHEAD_S) * 1000), biz_type)

        while len(ids) < len(due_s):
            done, now_s = len(ids), time.perf_counter() - began_s
            wait_s = due_s[done] + gather_s - now_s
            if wait_s > 0:
                time.sleep(wait_s)
                continue
            some = range(done, bisect_right(due_s, now_s, done))
            if len(some) == 1:
                ids.append(self._center.schedule(**make_job(done)))
            else:
                ids.extend(schedule_in_batches(self._center, [make_job(n) for n in some]))
        return ids
