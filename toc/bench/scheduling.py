"""schedule_many and schedule, beside INSERTs and ZADDs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from toc.bench.common import (
    CLIENTS,
    FAR_MS,
    Bench,
    Rates,
    check_statuses,
    run_in_threads_s,
    time_each_ms,
)
from toc.bench.floor import Floor
from toc.bench.load import PlannedRow, group_by_database, job_specs, plan_rows
from toc.bench.report import Target
from toc.center.center import JobSpec, TimeoutCenter
from toc.domain.job import Status
from toc.trial.statistics import percentile
from toc.trial.worker import wall_ms


def schedule_many(bench: Bench) -> None:
    """Batches through `schedule_many` beside hand-built INSERTs and pipelined ZADDs."""
    options, rates = bench.options, Rates(bench)
    written = 0
    with TimeoutCenter(bench.scratch.ours) as center:
        for number in range(options.rounds + 1):
            jobs = options.jobs if number else options.batch  # the first is to warm up
            floor = _floor_many(bench, jobs)
            first, due_ms = bench.reserve_biz_ids(jobs), wall_ms() + FAR_MS
            batches = [
                job_specs(first + at, min(options.batch, jobs - at), int(due_ms))
                for at in range(0, jobs, options.batch)
            ]
            started_s = time.perf_counter()
            for batch in batches:
                center.schedule_many(batch)
            ours = jobs / (time.perf_counter() - started_s)
            written += jobs
            if number:
                rates.add(floor, ours)
    name = "schedule_many"
    bench.report.add_rounds(
        name, f"{options.batch} a call", "jobs/s", rates.rounds, Target("ratio", ">=", 0.85)
    )
    check_statuses(bench, name, {Status.PENDING: written})


def _floor_many(bench: Bench, jobs: int) -> float | None:
    if bench.floor is None or bench.scratch.floor is None:
        return None
    rows = plan_rows(bench.ids, bench.reserve_biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS)
    size = bench.options.batch
    batches = [
        group_by_database(bench.scratch.floor, rows[at : at + size]) for at in range(0, jobs, size)
    ]
    started_s = time.perf_counter()
    for batch in batches:
        bench.floor.insert_many(batch)
    return jobs / (time.perf_counter() - started_s)


def schedule(bench: Bench) -> None:
    """One job per call beside INSERT, COMMIT, ZADD: from one thread, then from one for each client."""
    options = bench.options
    count = max(options.jobs // 10, 1)
    rates = Rates(bench)
    calls: dict[float, list[tuple[float | None, float]]] = {50: [], 99: []}
    written = 0
    with TimeoutCenter(bench.scratch.ours) as center:
        for number in range(options.rounds + 1):
            jobs = count if number else min(count, 100)
            floor_ms = _floor_one_by_one(bench, jobs)
            load = job_specs(bench.reserve_biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS)
            ours_ms = time_each_ms([lambda job=job: center.schedule(**job) for job in load])  # type: ignore[misc]
            written += jobs
            if number:
                rates.add(_per_second(floor_ms), jobs / sum(ours_ms) * 1000)
                for percent, found in calls.items():
                    found.append(
                        (
                            percentile(floor_ms, percent) if floor_ms else None,
                            percentile(ours_ms, percent),
                        )
                    )
        report, name = bench.report, "schedule"
        report.add_rounds(name, "one by one", "jobs/s", rates.rounds, Target("ratio", ">=", 0.9))
        for percent, found in calls.items():
            report.add_rounds(name, f"one call, p{percent:g}", "ms", found)
        clients = options.clients or CLIENTS
        each = max(count // clients, 1)
        jobs = each * clients
        rates = Rates(bench)
        for number in range(options.rounds + 1):  # again: each thread has a connection to make
            rate = _threads(bench, center, clients, each)
            written += jobs
            if number:
                rates.add(*rate)
        what = f"{clients} threads"
        report.add_rounds(name, what, "jobs/s", rates.rounds, Target("ratio", ">=", 0.9))
    check_statuses(bench, name, {Status.PENDING: written})


def _threads(
    bench: Bench, center: TimeoutCenter, clients: int, each: int
) -> tuple[float | None, float]:
    """Jobs per second of the floor's and of toc's clients."""
    due_ms = int(wall_ms()) + FAR_MS

    loads = [job_specs(bench.reserve_biz_ids(each), each, due_ms) for _ in range(clients)]
    floor_s = None
    if bench.floors:
        rows = [
            plan_rows(bench.ids, bench.reserve_biz_ids(each), each, due_ms) for _ in range(clients)
        ]
        floors = zip(bench.floors, rows, strict=False)
        floor_s = run_in_threads_s([partial(_insert_all, floor, its) for floor, its in floors])
    ours_s = run_in_threads_s([partial(_schedule_all, center, load) for load in loads])
    jobs = each * clients
    return jobs / floor_s if floor_s else None, jobs / ours_s


def _insert_all(floor: Floor, rows: Sequence[PlannedRow]) -> None:
    for row in rows:
        floor.insert(row)


def _schedule_all(center: TimeoutCenter, load: Sequence[JobSpec]) -> None:
    for job in load:
        center.schedule(**job)


def _floor_one_by_one(bench: Bench, jobs: int) -> list[float]:
    floor = bench.floor
    if floor is None:
        return []
    rows = plan_rows(bench.ids, bench.reserve_biz_ids(jobs), jobs, int(wall_ms()) + FAR_MS)
    return time_each_ms([lambda row=row: floor.insert(row) for row in rows])  # type: ignore[misc]


def _per_second(calls_ms: Sequence[float]) -> float | None:
    return len(calls_ms) / sum(calls_ms) * 1000 if calls_ms else None
