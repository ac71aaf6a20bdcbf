"""The case cancel: job by job, and by the WHERE of one `toc admin cancel`."""

from __future__ import annotations

import time
from functools import partial

from toc.admin.bulk_changes import open_bulk_changes
from toc.admin.bulk_request import BulkRequest, BulkVerb
from toc.admin.bulk_run import BulkRunProgress
from toc.admin.where_condition import WhereCondition
from toc.bench.child_node import wall_ms
from toc.bench.common import (
    FAR_MS,
    BenchContext,
    RateRounds,
    check_statuses_and_clear,
    schedule_in_batches,
    time_each_call_ms,
)
from toc.bench.job_specs import make_job_specs
from toc.bench.scheduling import WARM_UP_JOBS
from toc.bench.scratch_databases import STOCK_FROM
from toc.center.center import TimeoutCenter
from toc.domain.job import Status

NAME = "cancel"


def measure_cancel(bench: BenchContext) -> None:
    """Measures cancels of jobs that have a reminder: by id, one call each; then all of a round by a WHERE.

    Of a baseline both variants are measured: without events, and with the events that toc writes.
    """
    options = bench.options
    count = max(options.jobs // 10, 1)
    cancelled = 0
    rates, with_events = RateRounds(bench), RateRounds(bench)
    with TimeoutCenter(bench.scratch.settings) as center:
        for number in range(options.rounds + 1):
            jobs = count if number else min(count, WARM_UP_JOBS)
            baselines = [
                None if bench.baseline is None else bench.baseline.cancel(jobs, events=events)
                for events in (False, True)
            ]
            ids = _schedule_and_arm_jobs(bench, center, jobs)
            ours_ms = time_each_call_ms([partial(center.cancel, job_id) for job_id in ids])
            cancelled += jobs
            if number:
                for found, baseline in zip((rates, with_events), baselines, strict=True):
                    found.add_round(baseline, jobs / sum(ours_ms) * 1000)
        _report_cancel_rates(bench, "one by one", rates, with_events)
        rates, with_events = RateRounds(bench), RateRounds(bench)
        for _ in range(options.rounds):
            baselines = [
                None
                if bench.baseline is None
                else bench.baseline.cancel_in_bulk(options.jobs, events=events)
                for events in (False, True)
            ]
            _schedule_and_arm_jobs(bench, center, options.jobs)
            ours = _measure_bulk_cancel(bench)
            cancelled += options.jobs
            for found, baseline in zip((rates, with_events), baselines, strict=True):
                found.add_round(baseline, ours)
        _report_cancel_rates(bench, "by a WHERE", rates, with_events)
    check_statuses_and_clear(bench, NAME, {Status.CANCELLED: cancelled})


def _report_cancel_rates(
    bench: BenchContext, what: str, rates: RateRounds, with_events: RateRounds
) -> None:
    bench.report.add_measurement(NAME, what, "jobs/s", rates.rounds)
    if bench.baseline is not None:
        bench.report.add_measurement(
            NAME, f"{what}, baseline with events", "jobs/s", with_events.rounds
        )


def _schedule_and_arm_jobs(bench: BenchContext, center: TimeoutCenter, jobs: int) -> list[int]:
    first = bench.reserve_biz_ids(jobs)
    return schedule_in_batches(center, make_job_specs(first, jobs, int(wall_ms()) + FAR_MS))


def _measure_bulk_cancel(bench: BenchContext) -> float:
    """Jobs per second, without the time in which the WHERE is searched: a baseline knows its ids."""
    where = WhereCondition(f"biz_id < {STOCK_FROM}")
    request = BulkRequest(BulkVerb.CANCEL, where, actor="toc bench", reason="measured", run="bench")
    with open_bulk_changes(bench.scratch.settings) as changes:
        limit = bench.options.jobs
        chosen = changes.choose_jobs(request, changes.select_databases(None), limit, lambda: None)
        progress = BulkRunProgress()
        started_s = time.perf_counter()
        changes.change_jobs(request, chosen, 1_000_000, progress, lambda _: None)
        return progress.changed_jobs / (time.perf_counter() - started_s)
