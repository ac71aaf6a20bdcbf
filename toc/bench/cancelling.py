"""cancel, one by one and by a WHERE, beside the guarded UPDATE and the ZREM alone."""

from __future__ import annotations

import time
from collections.abc import Sequence

from toc.admin.bulk_changes import open_bulk_changes
from toc.admin.bulk_order import BulkOrder, Verb
from toc.admin.bulk_run import RunAccount
from toc.admin.where import Where
from toc.bench.common import FAR_MS, Bench, Rates, check_statuses, schedule_all, time_each_ms
from toc.bench.load import group_by_database, job_specs, plan_rows
from toc.bench.report import Target
from toc.bench.scratch import STOCK_FROM
from toc.center.center import TimeoutCenter
from toc.domain.job import Status
from toc.trial.worker import wall_ms

NAME = "cancel"


def cancel(bench: Bench) -> None:
    """Jobs that are armed are cancelled by id; then as many as a round has, by one `toc admin cancel`.

    Beside two floors: one that only cancels, and one that writes the events that toc writes, too.
    """
    options = bench.options
    count = max(options.jobs // 10, 1)
    rates, with_events = Rates(bench), Rates(bench)
    with TimeoutCenter(bench.scratch.ours) as center:
        for number in range(options.rounds + 1):
            jobs = count if number else min(count, 100)  # the first is to warm up
            floors = [_floor_one_by_one(bench, jobs, events=events) for events in (False, True)]
            ids = _schedule_armed(bench, center, jobs)
            ours_ms = time_each_ms([lambda job_id=job_id: center.cancel(job_id) for job_id in ids])  # type: ignore[misc]
            if number:
                for found, floor in zip((rates, with_events), floors, strict=True):
                    found.add(floor, jobs / sum(ours_ms) * 1000)
    _add_figures(bench, "one by one", rates, with_events)
    cancelled = count * options.rounds + min(count, 100)
    rates, with_events = Rates(bench), Rates(bench)
    with TimeoutCenter(bench.scratch.ours) as center:
        for _ in range(options.rounds):
            floors = [
                _floor_in_bulk(bench, options.jobs, events=events) for events in (False, True)
            ]
            _schedule_armed(bench, center, options.jobs)
            ours = _cancel_in_bulk(bench)
            for found, floor in zip((rates, with_events), floors, strict=True):
                found.add(floor, ours)
            cancelled += options.jobs
    _add_figures(bench, "by a WHERE", rates, with_events)
    check_statuses(bench, NAME, {Status.CANCELLED: cancelled})


def _add_figures(bench: Bench, what: str, rates: Rates, with_events: Rates) -> None:
    bench.report.add_rounds(NAME, what, "jobs/s", rates.rounds, Target("ratio", ">=", 0.9))
    if bench.floor is not None:
        bench.report.add_rounds(NAME, f"{what}, floor with events", "jobs/s", with_events.rounds)


def _schedule_armed(bench: Bench, center: TimeoutCenter, jobs: int) -> list[int]:
    return schedule_all(
        center, job_specs(bench.reserve_biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS)
    )


def _cancel_in_bulk(bench: Bench) -> float:
    """Jobs per second, without the search of the WHERE: the floor knows its ids too."""
    where = Where(f"biz_id < {STOCK_FROM}")
    order = BulkOrder(Verb.CANCEL, where, actor="toc bench", reason="measured", run="bench")
    with open_bulk_changes(bench.scratch.ours) as changes:
        limit = bench.options.jobs
        chosen = changes.choose(order, changes.databases(None), limit, lambda: None)
        account = RunAccount()
        started_s = time.perf_counter()
        changes.apply(order, chosen, 1_000_000, account, lambda _: None)
        return account.changed / (time.perf_counter() - started_s)


def _floor_one_by_one(bench: Bench, jobs: int, *, events: bool) -> float | None:
    floor = bench.floor
    if floor is None:
        return None
    ids = _insert_armed_on_floor(bench, jobs)
    calls = [lambda job_id=job_id: floor.cancel([job_id], events=events) for job_id in ids]
    calls_ms = time_each_ms(calls)
    return jobs / sum(calls_ms) * 1000


def _floor_in_bulk(bench: Bench, jobs: int, *, events: bool) -> float | None:
    floor = bench.floor
    if floor is None:
        return None
    ids = _insert_armed_on_floor(bench, jobs)
    started_s = time.perf_counter()
    parts = floor.parts(ids, bench.options.batch)
    cancelled = sum(floor.cancel(part, events=events) for part in parts)
    return cancelled / (time.perf_counter() - started_s)


def _insert_armed_on_floor(bench: Bench, jobs: int) -> Sequence[int]:
    floor, settings = bench.floor, bench.scratch.floor
    assert floor is not None and settings is not None  # noqa: S101, PT018 - they come together
    rows = plan_rows(bench.ids, bench.reserve_biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS)
    floor.insert_many(group_by_database(settings, rows))
    return [row.job_id for row in rows]
