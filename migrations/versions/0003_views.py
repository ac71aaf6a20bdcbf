"""Views for people: `toc_jobs` over the database's shards, `toc_dead_jobs` and `toc_events`.

Revision: 0003. Phase: pre: no statement of toc itself touches them.

The names stand beside the numbers. What `store/views.py` says today is copied here, because a
revision says what it made, whatever later ones make of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from toc.store.schema_executor import OnlineExecutor, ScriptExecutor
from toc.store.schema_steps import MakeView, SchemaStep, SchemaTarget, union_all

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None
phase = "pre"
fits_since = "0001"

JOBS_COLUMNS = (
    "shard", "job_id", "biz_id", "biz_type", "type_name", "status", "status_name", "action_time",
    "due_time", "claim_time", "late_ms", "attempts", "worker", "dedup_key", "attribute",
    "gmt_create", "gmt_modified",
)  # fmt: skip
DEAD_JOBS_COLUMNS = (
    "job_id", "biz_id", "biz_type", "type_name", "attempts", "error", "dead_time",
)  # fmt: skip
EVENTS_COLUMNS = (
    "event_id", "event_time", "job_id", "what", "from_status", "from_name", "to_status", "to_name",
    "attempts", "actor", "reason",
)  # fmt: skip

STATUS_NAME = (
    "CASE {column} WHEN 0 THEN 'pending' WHEN 1 THEN 'running' WHEN 2 THEN 'done' "
    "WHEN 3 THEN 'cancelled' WHEN 4 THEN 'dead' END"
)

LATE_MS_MYSQL = "TIMESTAMPDIFF(MICROSECOND, j.action_time, j.claim_time) DIV 1000"
LATE_MS_SQLITE = (
    "CAST(ROUND((julianday(j.claim_time) - julianday(j.action_time)) * 86400000) AS INTEGER)"
)

JOBS = (
    "SELECT {shard} AS shard, j.job_id, j.biz_id, j.biz_type, t.name AS type_name, j.status, "
    + STATUS_NAME.format(column="j.status")
    + " AS status_name, j.action_time, j.due_time, j.claim_time, "
    "{late_ms} AS late_ms, j.attempts, j.worker, j.dedup_key, j.attribute, "
    "j.gmt_create, j.gmt_modified "
    "FROM toc_job_{shard:04d} AS j LEFT JOIN toc_biz_type AS t ON t.type_no = j.biz_type"
)

DEAD_JOBS = (
    "SELECT d.job_id, d.biz_id, d.biz_type, t.name AS type_name, d.attempts, d.error, d.dead_time "
    "FROM toc_dead_job AS d LEFT JOIN toc_biz_type AS t ON t.type_no = d.biz_type"
)

EVENTS = (
    "SELECT e.event_id, e.event_time, e.job_id, e.what, e.from_status, "
    + STATUS_NAME.format(column="e.from_status")
    + " AS from_name, e.to_status, "
    + STATUS_NAME.format(column="e.to_status")
    + " AS to_name, e.attempts, e.actor, e.reason FROM toc_event AS e"
)


def steps(target: SchemaTarget) -> Iterator[SchemaStep]:
    late_ms = LATE_MS_SQLITE if target.sqlite else LATE_MS_MYSQL
    shards = [JOBS.format(shard=shard, late_ms=late_ms) for shard in target.shards]
    jobs = union_all(shards, JOBS_COLUMNS)
    yield MakeView("toc_jobs", JOBS_COLUMNS, jobs)
    yield MakeView("toc_dead_jobs", DEAD_JOBS_COLUMNS, DEAD_JOBS)
    yield MakeView("toc_events", EVENTS_COLUMNS, EVENTS)


def upgrade(migration: OnlineExecutor | ScriptExecutor) -> None:
    migration.up(revision, steps)


def downgrade(migration: OnlineExecutor | ScriptExecutor) -> None:
    migration.down(revision, steps)
