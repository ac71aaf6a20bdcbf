"""The jobs that both sides are measured with: the same rows, prepared before the clock runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toc.center.center import JobSpec
from toc.domain.ids import IdFactory
from toc.domain.routing import hash_of
from toc.domain.times import datetime_of
from toc.runtime.settings import Settings
from toc.store.columns import sql_time

BIZ_TYPE = "bench.noop"
ASIDE_TYPE = "bench.aside"
FLOOR_TYPE_NO = 1


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One job as the floor writes it."""

    job_id: int
    biz_id: int
    due_ms: int
    when: str  # SQL text without quotes
    attribute: str  # a SQL literal


def attribute(biz_id: int) -> dict[str, Any]:
    """About 100 bytes of JSON: what a business might want to know again."""
    return {
        "order": biz_id,
        "reason": "not paid in time",
        "channel": "web",
        "trace": f"{biz_id:032x}",
    }


def job_specs(first: int, count: int, due_ms: int, spread_ms: int = 0) -> list[JobSpec]:
    """Jobs for `schedule_many`: business ids from `first`, due from `due_ms` over `spread_ms`."""
    return [job_spec(first + i, due_ms + i * spread_ms // count) for i in range(count)]


def job_spec(biz_id: int, due_ms: int, biz_type: str = BIZ_TYPE) -> JobSpec:
    """One job for toc."""
    return JobSpec(
        biz_id=biz_id,
        action_time=datetime_of(due_ms),
        biz_type=biz_type,
        attribute=attribute(biz_id),
    )


def plan_rows(ids: IdFactory, first: int, count: int, due_ms: int) -> list[PlannedRow]:
    """The same jobs for the floor, all texts made."""
    job_ids = ids.draw([hash_of(first + i) for i in range(count)])
    return [
        PlannedRow(job_id, first + i, due_ms, sql_time(due_ms), _literal(attribute(first + i)))
        for i, job_id in enumerate(job_ids)
    ]


def _literal(value: dict[str, Any]) -> str:
    """JSON as a MySQL string literal."""
    text = json.dumps(value, separators=(",", ":"))
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def group_by_database(
    settings: Settings, jobs: Sequence[PlannedRow]
) -> dict[int, dict[int, list[PlannedRow]]]:
    """Database -> shard -> jobs, both ascending, as a batch is written."""
    found: dict[int, dict[int, list[PlannedRow]]] = defaultdict(lambda: defaultdict(list))
    routing = settings.routing
    for job in sorted(jobs, key=lambda job: routing.shard(hash_of(job.biz_id))):
        shard = routing.shard(hash_of(job.biz_id))
        found[routing.database(shard)][shard].append(job)
    return found
