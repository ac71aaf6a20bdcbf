"""The tables that analysts read, and their columns (docs/reference/archive-files.md).

Integers that may be NULL are not used: pandas would make floats of them. Rates and percentiles are floats.
"""

from __future__ import annotations

import pyarrow as pa

from toc.reconcile.delta_tables import DAY, TableSpec
from toc.store.job_counts import AGE_BOUNDS_MS, BOUNDS_MS

NUMBER, INT, TEXT, REAL = pa.int64(), pa.int32(), pa.string(), pa.float64()
TIME, FLAG = pa.timestamp("us", "UTC"), pa.bool_()
DATABASE = "database"

BUCKETS = (*(f"ms_{bound}" for bound in BOUNDS_MS), "ms_more")
"""Columns of `lateness`: jobs whose lateness is at most so many ms, and above the column before."""

AGE_BUCKETS = (*(f"age_{bound // 1000}s" for bound in AGE_BOUNDS_MS), "age_more")
"""Columns of `cohorts`: jobs that ended at most so many seconds after their creation."""

PER_MILLE = {"p50_ms": 500, "p90_ms": 900, "p99_ms": 990, "p999_ms": 999}


def _required(kind: pa.DataType, *names: str) -> list[pa.Field]:
    return [pa.field(name, kind, nullable=False) for name in names]


_PLACE = [*_required(pa.date32(), DAY), *_required(INT, DATABASE)]
_BY_DATABASE = (DAY, DATABASE)
_TYPE = [*_required(INT, "type_no"), pa.field("biz_type", TEXT), *_required(INT, "shard")]

LATENESS = TableSpec(
    name="lateness",
    version=1,
    columns=pa.schema(
        [
            *_required(TIME, "hour"),
            *_TYPE,
            pa.field("node", TEXT),
            *_required(TEXT, "outcome"),
            *_required(NUMBER, "jobs", "retried", "measured", "late_ms_sum", "late_ms_max"),
            *(pa.field(name, REAL) for name in PER_MILLE),
            *_required(NUMBER, *BUCKETS),
            *_PLACE,
        ]
    ),
    indexed=("hour",),
    partition_by=_BY_DATABASE,
)

VOLUME = TableSpec(
    name="volume",
    version=1,
    columns=pa.schema(
        [
            *_required(TIME, "hour"),
            *_TYPE,
            *_required(NUMBER, "scheduled", "done", "cancelled", "dead", "retried", "attempts"),
            pa.field("cancel_rate", REAL),
            pa.field("retry_rate", REAL),
            *_PLACE,
        ]
    ),
    indexed=("hour",),
    partition_by=_BY_DATABASE,
)

COHORTS = TableSpec(
    name="cohorts",
    version=1,
    columns=pa.schema(
        [
            *_TYPE,
            *_required(TEXT, "outcome"),
            *_required(NUMBER, "jobs", "retried", "age_ms_sum", "age_ms_max", *AGE_BUCKETS),
            *_required(TIME, "counted_at"),
            *_PLACE,
        ]
    ),
    indexed=("counted_at",),
    partition_by=_BY_DATABASE,
)

FORECAST = TableSpec(
    name="forecast",
    version=1,
    columns=pa.schema(
        [
            *_required(TEXT, "span"),
            *_required(TIME, "due_from"),
            *_required(NUMBER, "jobs"),
            pa.field("done_max", REAL),
            *_required(TIME, "counted_at"),
            *_PLACE,
        ]
    ),
    indexed=("due_from",),
    partition_by=_BY_DATABASE,
)

RUNS = TableSpec(
    name="runs",
    version=1,
    columns=pa.schema(
        [
            *_required(TEXT, "run_id", "part", "phase"),
            *_required(TIME, "began_at"),
            *_required(REAL, "seconds"),
            pa.field("items", REAL),
            *_required(INT, "code"),
            pa.field("note", TEXT),
            *_required(pa.date32(), DAY),
        ]
    ),
    indexed=("began_at",),
)

CHECKS = TableSpec(
    name="checks",
    version=1,
    columns=pa.schema(
        [
            *_required(TEXT, "table", "check"),
            *_required(FLAG, "is_good"),
            *_required(NUMBER, "found", "expected"),
            *_required(TIME, "checked_at"),
            *_PLACE,
        ]
    ),
    indexed=("checked_at",),
    partition_by=_BY_DATABASE,
)

COUNTED = (LATENESS, VOLUME, COHORTS)
"""Tables of counted jobs. A day of them can be filled again."""

ANALYSIS_TABLES = (*COUNTED, FORECAST, RUNS, CHECKS)
