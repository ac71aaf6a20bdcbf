"""cancel, one by one and by a WHERE, beside the guarded UPDATE and the ZREM alone."""

from __future__ import annotations

import time
from collections.abc import Sequence

from toc.admin.changes import Account, opened
from toc.admin.orders import Order, Verb
from toc.admin.where import Where
from toc.bench.common import FAR_MS, Bench, Rates, check_statuses, schedule_all, timed
from toc.bench.load import by_database, planned, specs
from toc.bench.report import Target
from toc.bench.scratch import STOCK_FROM
from toc.center.center import TimeoutCenter
from toc.domain.job import Status
from toc.trial.worker import wall_ms

NAME = "cancel"


def cancel(bench: Bench) -> None:
    """Jobs that are armed are cancelled by id; then as many as a round has, by one `toc admin cancel`."""
    options = bench.options
    count = max(options.jobs // 10, 1)
    rates = Rates(bench)
    with TimeoutCenter(bench.scratch.ours) as center:
        for number in range(options.rounds + 1):
            jobs = count if number else min(count, 100)  # the first is to warm up
            floor = _floor_one_by_one(bench, jobs)
            ids = _armed(bench, center, jobs)
            ours_ms = timed([lambda job_id=job_id: center.cancel(job_id) for job_id in ids])  # type: ignore[misc]
            if number:
                rates.add(floor, jobs / sum(ours_ms) * 1000)
    bench.report.add_rounds(NAME, "one by one", "jobs/s", rates.rounds, Target("ratio", ">=", 0.9))
    cancelled = count * options.rounds + min(count, 100)
    rates = Rates(bench)
    with TimeoutCenter(bench.scratch.ours) as center:
        for _ in range(options.rounds):
            floor = _floor_in_bulk(bench, options.jobs)
            _armed(bench, center, options.jobs)
            rates.add(floor, _in_bulk(bench))
            cancelled += options.jobs
    what = "by a WHERE, with events"
    bench.report.add_rounds(NAME, what, "jobs/s", rates.rounds, Target("ratio", ">=", 0.9))
    check_statuses(bench, NAME, {Status.CANCELLED: cancelled})


def _armed(bench: Bench, center: TimeoutCenter, jobs: int) -> list[int]:
    return schedule_all(center, specs(bench.biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS))


def _in_bulk(bench: Bench) -> float:
    """Jobs per second. The WHERE's search is not in it: the floor knows its ids too."""
    where = Where(f"biz_id < {STOCK_FROM}")
    order = Order(Verb.CANCEL, where, actor="toc bench", reason="measured", run="bench")
    with opened(bench.scratch.ours) as changes:
        limit = bench.options.jobs
        chosen = changes.choose(order, changes.databases(None), limit, lambda: None)
        account = Account()
        started_s = time.perf_counter()
        changes.apply(order, chosen, 1_000_000, account, lambda _: None)
        return account.changed / (time.perf_counter() - started_s)


def _floor_one_by_one(bench: Bench, jobs: int) -> float | None:
    floor = bench.floor
    if floor is None:
        return None
    ids = _floor_armed(bench, jobs)
    calls_ms = timed([lambda job_id=job_id: floor.cancel([job_id]) for job_id in ids])  # type: ignore[misc]
    return jobs / sum(calls_ms) * 1000


def _floor_in_bulk(bench: Bench, jobs: int) -> float | None:
    floor = bench.floor
    if floor is None:
        return None
    ids = _floor_armed(bench, jobs)
    started_s = time.perf_counter()
    cancelled = sum(floor.cancel(part) for part in floor.parts(ids, bench.options.batch))
    return cancelled / (time.perf_counter() - started_s)


def _floor_armed(bench: Bench, jobs: int) -> Sequence[int]:
    floor, settings = bench.floor, bench.scratch.floor
    assert floor is not None and settings is not None  # noqa: S101, PT018 - they come together
    rows = planned(bench.ids, bench.biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS)
    floor.insert_many(by_database(settings, rows))
    return [row.job_id for row in rows]
