"""The tables of the archive and their columns (docs/reference/archive-files.md)."""

from __future__ import annotations

import pyarrow as pa

from toc.reconcile.delta_tables import DAY, TableSpec
from toc.store.archive_status import ARCHIVED, EVENTS_ARCHIVED

NUMBER, INT, TEXT = pa.int64(), pa.int32(), pa.string()
UNSIGNED = pa.decimal128(20, 0)
"""For unsigned numbers, and for numbers that may be NULL: of these pandas would make floats."""

TIME = pa.timestamp("us", "UTC")
BIZ_TYPE = "biz_type"


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


JOBS = TableSpec(
    name="jobs",
    version=1,
    columns=pa.schema(
        [
            _required("job_id", NUMBER),
            _required("biz_id", UNSIGNED),
            _required("type_no", INT),
            _required("status", INT),
            ("status_name", TEXT),
            _required("action_time", TIME),
            ("claim_time", TIME),
            _required("gmt_create", TIME),
            _required("gmt_modified", TIME),
            ("due_time", TIME),
            _required("attempts", INT),
            _required("priority", INT),
            ("claim_token", TEXT),
            ("dedup_key", TEXT),
            ("biz_text", TEXT),
            ("tenant", TEXT),
            ("attribute", TEXT),
            ("result", TEXT),
            ("trace", TEXT),
            ("error", TEXT),
            ("dead_time", TIME),
            _required("shard", INT),
            _required("database", INT),
            _required(DAY, pa.date32()),
            (BIZ_TYPE, TEXT),
        ]
    ),
    indexed=("job_id", "action_time", "gmt_create", "gmt_modified"),
    partition_by=(DAY, BIZ_TYPE),
)
"""Ended jobs. `day`: on which the job ended. `error` and `dead_time` are the dead letter's."""

EVENTS = TableSpec(
    name="events",
    version=2,
    columns=pa.schema(
        [
            _required("event_id", NUMBER),
            _required("event_time", TIME),
            _required("job_id", NUMBER),
            _required("what", TEXT),
            _required("from_status", INT),
            _required("to_status", INT),
            _required("attempts", INT),
            _required("actor", TEXT),
            ("reason", TEXT),
            ("run_id", TEXT),
            ("related_job_id", UNSIGNED),
            ("account", TEXT),
            (BIZ_TYPE, TEXT),
            _required("database", INT),
            _required(DAY, pa.date32()),
            ("claim_time", TIME),  # since version 2
        ]
    ),
    indexed=("event_id", "event_time", "job_id"),
)
"""Changes of jobs by people and failures. `day`: of the event. `biz_type`: of the job, if it was there."""

TABLES = (JOBS, EVENTS)
"""All tables of the archive."""

MARKS = {JOBS.name: ARCHIVED, EVENTS.name: EVENTS_ARCHIVED}
"""The row of `toc_meta` that says how far each table is, in each database."""
