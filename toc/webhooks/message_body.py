"""The body that a job is sent with, by webhooks and by all other sinks."""

from __future__ import annotations

import json
from typing import Any

from toc.domain.job import Job
from toc.domain.times import datetime_of


def make_body(job: Job) -> bytes:
    """The body of a request. Ids are texts: JavaScript cannot read integers of 63 bits."""
    data: dict[str, Any] = {
        "job_id": str(job.job_id),
        "biz_id": str(job.biz_id),
        "attempt": job.attempts,
        "key": job.dedup_key,
        "tenant": job.tenant,
        "payload": job.attribute,
    }
    body = {"type": job.biz_type, "timestamp": _iso_utc(job.action_ms), "data": data}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _iso_utc(ms: int) -> str:
    return datetime_of(ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
