"""The jobs that are measured."""

from __future__ import annotations

from toc.center.center import JobSpec
from toc.domain.times import datetime_of

BIZ_TYPE = "bench.noop"


def attribute(biz_id: int) -> dict[str, object]:
    """About 100 bytes of JSON."""
    return {
        "order": biz_id,
        "reason": "not paid in time",
        "channel": "web",
        "trace": f"{biz_id:032x}",
    }


def job_specs(first: int, count: int, due_ms: int, spread_ms: int = 0) -> list[JobSpec]:
    """Jobs for `schedule_many`: business ids from `first` on, due over `spread_ms` from `due_ms` on."""
    return [job_spec(first + i, due_ms + i * spread_ms // count) for i in range(count)]


def job_spec(biz_id: int, due_ms: int, biz_type: str = BIZ_TYPE) -> JobSpec:
    return JobSpec(
        biz_id=biz_id,
        action_time=datetime_of(due_ms),
        biz_type=biz_type,
        attribute=attribute(biz_id),
    )
