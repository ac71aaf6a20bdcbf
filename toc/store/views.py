"""Views for people: `toc_jobs`, `toc_dead_jobs`, `toc_events`, `toc_purges`, with names beside the numbers.

A migration creates these views in each database, over its own shards, for any SQL client. `toc sql` runs the
same SELECTs on every shard and merges the answers.

late_ms: how long after its action_time a job was last claimed, in milliseconds; NULL before its first
claim. For a job that was retried, late_ms contains the retries.
"""

from __future__ import annotations

from collections.abc import Mapping

from toc.domain.job import Status
from toc.store.schema import job_table_name

JOBS, DEAD_JOBS, EVENTS, PURGES = "toc_jobs", "toc_dead_jobs", "toc_events", "toc_purges"

COLUMNS: Mapping[str, tuple[str, ...]] = {
    JOBS: (
        "shard", "job_id", "biz_id", "biz_text", "tenant", "type_no", "biz_type", "status", "status_name",
        "action_time", "due_time", "claim_time", "lease_end_time", "late_ms", "attempts", "priority",
        "claim_token", "dedup_key", "attribute", "result", "trace", "gmt_create", "gmt_modified",
    ),
    DEAD_JOBS: (
        "job_id", "biz_id", "biz_text", "tenant", "type_no", "biz_type", "attempts", "error", "dead_time",
    ),
    EVENTS: (
        "event_id", "event_time", "job_id", "what", "from_status", "from_name", "to_status", "to_name",
        "attempts", "claim_time", "actor", "reason", "run_id", "related_job_id", "account",
    ),
    PURGES: (
        "day", "type_no", "biz_type", "status", "status_name", "jobs", "first_id", "last_id",
    ),
}  # fmt: skip
"""The columns of each view, in order."""


def jobs_of_shard_sql(shard: int, *, sqlite: bool = False) -> str:
    """The part of `toc_jobs` that is in one shard, as a SELECT."""
    late_ms = (
        "CAST(ROUND((julianday(j.claim_time) - julianday(j.action_time)) * 86400000) AS INTEGER)"
        if sqlite
        else "TIMESTAMPDIFF(MICROSECOND, j.action_time, j.claim_time) DIV 1000"
    )
    return (
        f"SELECT {shard} AS shard, j.job_id, j.biz_id, j.biz_text, j.tenant, j.type_no, "
        "t.name AS biz_type, j.status, "
        f"{_status_name_sql('j.status')} AS status_name, j.action_time, j.due_time, j.claim_time, "
        f"j.lease_end_time, {late_ms} AS late_ms, j.attempts, j.priority, j.claim_token, j.dedup_key, "
        "j.attribute, j.result, j.trace, j.gmt_create, j.gmt_modified "
        f"FROM {job_table_name(shard)} AS j LEFT JOIN toc_biz_type AS t ON t.type_no = j.type_no"
    )


DEAD_JOBS_SELECT = (
    "SELECT d.job_id, d.biz_id, d.biz_text, d.tenant, d.type_no, t.name AS biz_type, d.attempts, d.error, "
    "d.dead_time "
    "FROM toc_dead_job AS d LEFT JOIN toc_biz_type AS t ON t.type_no = d.type_no"
)


def _status_name_sql(column: str) -> str:
    whens = " ".join(f"WHEN {int(status)} THEN '{status.name.lower()}'" for status in Status)
    return f"CASE {column} {whens} END"


EVENTS_SELECT = (
    "SELECT e.event_id, e.event_time, e.job_id, e.what, "
    f"e.from_status, {_status_name_sql('e.from_status')} AS from_name, "
    f"e.to_status, {_status_name_sql('e.to_status')} AS to_name, e.attempts, e.claim_time, "
    "e.actor, e.reason, e.run_id, e.related_job_id, e.account "
    "FROM toc_event AS e"
)

PURGES_SELECT = (
    f"SELECT p.day, p.type_no, t.name AS biz_type, p.status, {_status_name_sql('p.status')} AS status_name, "
    "p.jobs, p.first_id, p.last_id "
    "FROM toc_purge AS p LEFT JOIN toc_biz_type AS t ON t.type_no = p.type_no"
)
