"""What the purger costs the fire path: the same drain with and without one at full speed beside it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, insert, select

from toc.bench.common import (
    BenchContext,
    check_statuses_and_clear,
    format_round,
    start_worker_processes,
)
from toc.bench.draining import DrainMeasurement
from toc.bench.report import BenchCheck
from toc.center.center import TimeoutCenter
from toc.domain.ids import JobIdFactory, lowest_id_at
from toc.domain.job import Status
from toc.domain.routing import routing_hash_of
from toc.runtime.setting_groups import RetentionSettings
from toc.store.databases import SHARD, execute_on_shard
from toc.store.ended_jobs import DAY_MS
from toc.store.schema import JOB

OLD_DAYS = 100
OLD, OLD_PER_JOB = 50_000, 5  # what is left over shows that the purger always had work
PURGING = RetentionSettings(days=OLD_DAYS / 2, pass_s=1)
KEEPING = RetentionSettings(days="none", dead_days="none", event_days="none")


def purge(bench: BenchContext) -> None:
    """Drains by one worker process. Baseline: nothing is purged. toc: the purger has always work."""
    options, name = bench.options, "purge"
    rounds: list[tuple[float | None, float]] = []
    speeds: list[tuple[float | None, float]] = []
    jobs = 0
    old = _OldJobs(bench)
    with TimeoutCenter(bench.scratch.settings) as center:
        for number in range(1, options.rounds + 1):
            rates = []
            for retention in (KEEPING, PURGING):
                old.add_until(OLD + OLD_PER_JOB * options.jobs)
                with start_worker_processes(bench, 1, retention=retention) as workers:
                    race = DrainMeasurement(bench, center, workers)
                    race.warm_up()
                    before = old.count()
                    rates.append(race.drain_jobs(options.jobs))
                    left = old.count()
                    jobs += race.done
            baseline, ours = rates
            rounds.append((baseline, ours))
            speeds.append((None, (before - left) / (options.jobs / ours)))
            bench.report.checks.append(BenchCheck(name, "it purged meanwhile", left < before))
            rest = "" if left else "; it ran out of work before the end, so the ratio says less"
            bench.tell(f"round {number}: {format_round(baseline, ours)} jobs/s{rest}")
    report = bench.report
    beside = "drain beside a purge, and without one"
    report.add_measurement(name, beside, "jobs/s", rounds)
    report.add_measurement(name, "purged meanwhile", "rows/s", speeds)
    old.clear()
    check_statuses_and_clear(bench, name, {Status.DONE: jobs})


class _OldJobs:
    """Rows of jobs that ended long ago, on toc's side."""

    def __init__(self, bench: BenchContext) -> None:
        self._bench, self._databases = bench, bench.scratch.databases
        self._made_ms = int(bench.redis_time_ms()) - OLD_DAYS * DAY_MS
        self._ids = JobIdFactory(lambda: self._made_ms, 0)
        self._old = JOB.c.job_id < lowest_id_at(self._made_ms + DAY_MS)

    def add_until(self, jobs: int) -> None:
        """Adds to them until there are so many."""
        missing = max(0, jobs - self.count())
        first = self._bench.reserve_biz_ids(missing)
        by_shard: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for biz_id in range(first, first + missing):
            by_shard[self._databases.routing.shard_of_hash(routing_hash_of(biz_id))].append(
                self._row(biz_id)
            )
        for shard, rows in by_shard.items():
            self._insert(shard, rows)

    def count(self) -> int:
        return sum(
            database.run_read(
                lambda c, s=shard: execute_on_shard(
                    c, s, select(func.count()).where(self._old)
                ).scalar_one()  # type: ignore[misc]
            )
            for database in self._databases
            for shard in database.shards
        )

    def clear(self) -> None:
        for database in self._databases:
            for shard in database.shards:
                database.run_transaction(
                    lambda c, s=shard: execute_on_shard(c, s, JOB.delete().where(self._old))  # type: ignore[misc]
                )

    def _row(self, biz_id: int) -> dict[str, Any]:
        return {
            "job_id": self._ids.make_ids([routing_hash_of(biz_id)])[0],
            "biz_id": biz_id,
            "type_no": 1,
            "status": int(Status.DONE),
            "action_time": self._made_ms,
            "gmt_modified": self._made_ms,
        }

    def _insert(self, shard: int, rows: Sequence[dict[str, Any]]) -> None:
        database = self._databases.database_of_shard(shard)
        options = {SHARD: shard}
        database.run_transaction(lambda c: c.execute(insert(JOB), rows, execution_options=options))
