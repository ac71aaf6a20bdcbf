"""A library whose jobs the analysts' tables count, and what the tables must have, by counting in Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.contract.counted_jobs import Job
from tests.contract.ended_rows import write
from tests.contract.library import SHARDS, Library
from toc.domain.biz_types import type_no_of
from toc.domain.ids import lowest_id_at
from toc.domain.times import datetime_of
from toc.reconcile.delta_tables import find_table
from toc.reconcile.tables.nightly_tables import TablesResult, write_analysis_tables
from toc.reconcile.tables.table_specs import AGE_BUCKETS, BUCKETS, PER_MILLE
from toc.runtime.setting_groups import ReconcileSettings, RetentionSettings
from toc.runtime.settings import Settings
from toc.store.column_types import sql_time_of_ms
from toc.store.ended_jobs import DAY_MS, HOUR_MS
from toc.store.job_counts import AGE_BOUNDS_MS, BOUNDS_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLOSE, REPORT, NAMELESS = type_no_of("order.close"), type_no_of("report"), 9
NAMES = {CLOSE: "order.close", REPORT: "report", NAMELESS: None}
OUTCOMES = {0: "live", 1: "live", 2: "done", 3: "cancelled", 4: "dead"}
DAY_S, OVER_S = 86_400, 61  # after midnight


@dataclass
class Place:
    """`spark` None: in this process."""

    library: Library
    spark: SparkSession | None
    directory: Path
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    heard: list[str] = field(default_factory=list)

    def settings(self, **changes: Any) -> Settings:
        values = {"archive": str(self.directory), "page": 50, "table_days": 3} | changes
        update = {"reconcile": ReconcileSettings(**values), "retention": self.retention}
        return self.library.settings.model_copy(update=update)

    def run(self, **changes: Any) -> TablesResult:
        settings = self.settings(**changes)
        return write_analysis_tables(self.spark, settings, self.library.clock, self.heard.append)

    def rows(self, name: str) -> list[dict[str, Any]]:
        table = find_table(str(self.directory), name)
        return [] if table is None else list(table.to_pyarrow_table().to_pylist())

    def days(self, name: str = "lateness") -> Counter[str]:
        """How many rows each day has."""
        return Counter(str(row["day"]) for row in self.rows(name))

    def store(self, jobs: Sequence[Job], first: int = 0) -> None:
        for shard in range(SHARDS):
            rows = [
                {"job_id": id_of(job, first + n), "biz_id": first + n, **job.row}
                for n, job in enumerate(jobs)
                if n % SHARDS == shard
            ]
            write(self.library, shard, rows)


def id_of(job: Job, n: int) -> int:
    return lowest_id_at(job.made_ms) + n


def sorted_rows(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(sorted(row.items())) for row in rows), key=repr)


def day_of_ms(ms: int) -> date:
    return datetime_of(ms).date()


def wanted_lateness(jobs: Sequence[Job], since_ms: int, until_ms: int) -> list[dict[str, Any]]:
    """The rows of `lateness`; job n is in shard n % SHARDS."""
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for n, job in enumerate(jobs):
        if job.has_ended and since_ms <= job.changed_ms < until_ms:
            key = (
                job.changed_ms // DAY_MS, job.action_ms // HOUR_MS, job.type_no, job.status,
                n % SHARDS, job.node,
            )  # fmt: skip
            groups.setdefault(key, []).append(job)
    return [_lateness_row(key, each) for key, each in groups.items()]


def _lateness_row(key: tuple[Any, ...], jobs: Sequence[Job]) -> dict[str, Any]:
    day, hour, type_no, status, shard, node = key
    late = sorted(job.late_ms for job in jobs if job.late_ms is not None)

    def percentile(per_mille: int) -> float | None:
        if not late:
            return None
        value = late[-(-len(late) * per_mille // 1000) - 1]
        return float(min([bound for bound in BOUNDS_MS if bound >= value] + [late[-1]]))

    return {
        "day": day_of_ms(day * DAY_MS),
        "hour": datetime_of(hour * HOUR_MS),
        "type_no": type_no,
        "biz_type": NAMES[type_no],
        "shard": shard,
        "node": node,
        "outcome": OUTCOMES[status],
        "jobs": len(jobs),
        "retried": sum(job.attempts > 1 for job in jobs),
        "measured": len(late),
        "late_ms_sum": sum(late),
        "late_ms_max": late[-1] if late else 0,
        "database": 0,
        **{name: percentile(per_mille) for name, per_mille in PER_MILLE.items()},
        **dict(zip(BUCKETS, _bucket_counts(late, BOUNDS_MS), strict=True)),
    }


def _bucket_counts(values: Sequence[int], bounds: Sequence[int]) -> list[int]:
    edges = [-1, *bounds, 10**15]
    return [sum(low < ms <= high for ms in values) for low, high in zip(edges, edges[1:])]  # noqa: B905, RUF007


def wanted_volume(jobs: Sequence[Job], since_ms: int, until_ms: int) -> list[dict[str, Any]]:
    """The rows of `volume`."""
    found: dict[tuple[int, int, int], Counter[str]] = {}
    for n, job in enumerate(jobs):
        if since_ms <= job.made_ms < until_ms:
            key = job.made_ms // HOUR_MS, job.type_no, n % SHARDS
            found.setdefault(key, Counter())["scheduled"] += 1
        if job.has_ended and since_ms <= job.changed_ms < until_ms:
            counts = found.setdefault(
                (job.changed_ms // HOUR_MS, job.type_no, n % SHARDS), Counter()
            )
            counts[OUTCOMES[job.status]] += 1
            counts["retried"] += job.attempts > 1
            counts["attempts"] += job.attempts
    names = ("scheduled", "done", "cancelled", "dead", "retried", "attempts")
    rows = []
    for (hour, type_no, shard), counts in found.items():
        ended = counts["done"] + counts["cancelled"] + counts["dead"]
        rows.append(
            {
                "hour": datetime_of(hour * HOUR_MS),
                "type_no": type_no,
                "biz_type": NAMES[type_no],
                "shard": shard,
                **{name: counts[name] for name in names},
                "cancel_rate": counts["cancelled"] / ended if ended else None,
                "retry_rate": counts["retried"] / ended if ended else None,
                "day": day_of_ms(hour * HOUR_MS),
                "database": 0,
            }
        )
    return rows


def wanted_cohorts(
    jobs: Sequence[Job], since_ms: int, until_ms: int, counted_ms: int
) -> list[dict[str, Any]]:
    """The rows of `cohorts`."""
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for n, job in enumerate(jobs):
        if since_ms <= job.made_ms < until_ms:
            key = job.made_ms // DAY_MS, job.type_no, n % SHARDS, OUTCOMES[job.status]
            groups.setdefault(key, []).append(job)
    rows = []
    for (day, type_no, shard, outcome), each in groups.items():
        ages = [max(0, job.changed_ms - job.made_ms) for job in each if job.has_ended]
        rows.append(
            {
                "type_no": type_no,
                "biz_type": NAMES[type_no],
                "shard": shard,
                "outcome": outcome,
                "jobs": len(each),
                "retried": sum(job.attempts > 1 for job in each),
                "age_ms_sum": sum(ages),
                "age_ms_max": max(ages, default=0),
                **dict(zip(AGE_BUCKETS, _bucket_counts(ages, AGE_BOUNDS_MS), strict=True)),
                "counted_at": datetime_of(counted_ms),
                "day": day_of_ms(day * DAY_MS),
                "database": 0,
            }
        )
    return rows


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def sql_day(ms: int) -> str:
    return sql_time_of_ms(ms)[:10]
