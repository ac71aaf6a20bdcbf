"""Many jobs that are due at one instant, and beside them a few of another topic, all the time."""

import itertools
import time
from dataclasses import replace

from toc.bench.common import (
    BenchContext,
    WorkerResults,
    check_starts,
    check_statuses_and_clear,
    measure_clock_offset,
    schedule_in_batches,
    start_worker_processes,
)
from toc.bench.job_specs import BIZ_TYPE, make_job_specs
from toc.bench.lateness import AHEAD_S, TIMEOUT_S, RateClient, due_times_s
from toc.bench.scratch_databases import create_scratch_databases
from toc.bench.statistics import percentile
from toc.center.center import TimeoutCenter
from toc.domain.job import Status

ASIDE_TYPE = "bench.aside"
CROWD = 10  # times `jobs` are due at once
ASIDE_RATE = 50.0


def crowd(bench: BenchContext) -> None:
    """How long the many take, and how late the few are meanwhile."""
    options, report, name = bench.options, bench.report, "crowd"
    jobs = options.jobs * CROWD
    # The topics are a fact of the database: so these are its own.
    topics = {"aside": {"biz_types": [ASIDE_TYPE]}}
    with create_scratch_databases(bench.scratch.settings, topics=topics) as made:
        own = replace(bench, scratch=made, baseline=None)
        offset_ms, unsure_ms = measure_clock_offset(made.client)
        with (
            TimeoutCenter(made.settings) as center,
            start_worker_processes(own, 1, (BIZ_TYPE, ASIDE_TYPE)) as workers,
        ):
            due_ms = int(bench.redis_time_ms() + jobs * 0.1 + 5000)
            bench.tell(f"scheduling {jobs:,} jobs")
            many = schedule_in_batches(
                center, make_job_specs(bench.reserve_biz_ids(jobs), jobs, due_ms)
            )
            time.sleep(max(0.0, (due_ms - bench.redis_time_ms()) / 1000 - 2 * AHEAD_S))
            seconds = 3 * AHEAD_S + jobs / 10_000
            due = list(
                itertools.islice(due_times_s("even", ASIDE_RATE), round(seconds * ASIDE_RATE))
            )
            first = bench.reserve_biz_ids(len(due))
            few = RateClient(center, offset_ms).schedule_jobs(due, first, ASIDE_TYPE, ASIDE_RATE)
            ran = workers.wait_until_settled(len(many) + len(few), TIMEOUT_S + jobs / 1000)
        check_statuses_and_clear(own, name, {Status.DONE: len(many) + len(few)})
    report.checks += check_starts(name, [*many, *few], ran, offset_ms, unsure_ms)
    _report_crowd(bench, ran, set(few), due_ms, offset_ms)


def _report_crowd(
    bench: BenchContext, ran: WorkerResults, few: set[int], due_ms: int, offset_ms: float
) -> None:
    starts = [(job_id, action_ms, at + offset_ms) for job_id, action_ms, at in ran.starts]
    last_ms = max((at for job_id, _, at in starts if job_id not in few), default=float(due_ms))
    rate = (len(starts) - len(few)) / max(1.0, last_ms - due_ms) * 1000
    beside = [
        at - action for job_id, action, at in starts if job_id in few and due_ms <= at <= last_ms
    ]
    add = bench.report.add_measurement
    add("crowd", "drained", "jobs/s", [(None, rate)])
    if beside:
        what = f"of {len(beside)} others meanwhile"
        add("crowd", f"p50 {what}", "ms", [(None, percentile(beside, 50))])
        add("crowd", f"max {what}", "ms", [(None, max(beside))])
    bench.tell(f"{rate:,.0f} jobs/s")
