"""Makes the jobs that benchmarks schedule."""

from __future__ import annotations

from toc.center.center import JobSpec
from toc.domain.times import datetime_of

BIZ_TYPE = "bench.noop"
PULL_TYPE = "bench.pull"  # for consumers over HTTP


def make_attribute(biz_id: int) -> dict[str, object]:
    """An attribute of about 100 bytes of JSON."""
    return {
        "order": biz_id,
        "reason": "not paid in time",
        "channel": "web",
        "trace": f"{biz_id:032x}",
    }


def make_job_specs(
    first: int, count: int, due_ms: int, spread_ms: int = 0, biz_type: str = BIZ_TYPE
) -> list[JobSpec]:
    """Jobs for `schedule_many`: business ids from `first` on, due over `spread_ms` from `due_ms` on."""
    return [
        make_job_spec(first + i, due_ms + i * spread_ms // count, biz_type) for i in range(count)
    ]


def make_job_spec(biz_id: int, due_ms: int, biz_type: str = BIZ_TYPE) -> JobSpec:
    return JobSpec(
        biz_id=biz_id,
        action_time=datetime_of(due_ms),
        biz_type=biz_type,
        attribute=make_attribute(biz_id),
    )
