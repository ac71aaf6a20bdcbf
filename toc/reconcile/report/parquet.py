"""findings.parquet: one row for each finding that was kept, for analysts. pyarrow is imported only here.

The types of its columns hold any value that a row or a reminder can have.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from toc.domain.ids import JOB_ID_MAX
from toc.reconcile.findings import Finding, ReconcileResult, RepairResult
from toc.reconcile.report.summary import database_of, mended_of
from toc.reconcile.report.words import clean, status_name

CHUNK = 50_000  # rows that become columns at a time
_MS = pa.timestamp("ms", tz="UTC")
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def write_findings(outcome: ReconcileResult, sink: IO[bytes]) -> None:
    """Writes all findings, and what repair did about each; null where it was not tried."""
    mended, rest = mended_of(outcome), iter(outcome.findings)
    schema = pa.schema([field for field, _ in _COLUMNS])
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        while chunk := list(islice(rest, CHUNK)):
            rows = [(outcome, finding, mended.get(finding)) for finding in chunk]
            arrays = [
                pa.array([value(*row) for row in rows], field.type) for field, value in _COLUMNS
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))


def _text(text: str | None) -> str | None:
    """Characters that UTF-8 does not have become escapes."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def _job_id(finding: Finding) -> int | None:
    return finding.job_id if 0 <= finding.job_id <= JOB_ID_MAX else None


def _ms(ms: int | None) -> int | None:
    """A score that another program wrote to Redis can be beyond 64 bits."""
    return None if ms is None else min(max(ms, _INT64_MIN), _INT64_MAX)


def _column(
    name: str,
    kind: pa.DataType,
    value: Callable[[ReconcileResult, Finding, RepairResult | None], Any],
    *,
    nullable: bool = True,
) -> tuple[pa.Field, Callable[[ReconcileResult, Finding, RepairResult | None], Any]]:
    return pa.field(name, kind, nullable=nullable), value


_COLUMNS = [
    _column("kind", pa.string(), lambda _, f, m: f.kind.value, nullable=False),
    _column("database", pa.int32(), lambda o, f, m: database_of(o, f.shard), nullable=False),
    _column("shard", pa.int32(), lambda _, f, m: f.shard, nullable=False),
    _column("topic", pa.string(), lambda _, f, m: _text(f.topic), nullable=False),
    _column("slot", pa.int32(), lambda _, f, m: f.slot, nullable=False),
    _column(
        "job_id", pa.int64(), lambda _, f, m: _job_id(f)
    ),  # null: a member that cannot be an id
    _column("biz_id", pa.uint64(), lambda _, f, m: f.biz_id),
    _column("biz_type", pa.string(), lambda _, f, m: _text(f.biz_type)),
    _column("status", pa.string(), lambda _, f, m: status_name(f.status)),
    _column("action_time", _MS, lambda _, f, m: _ms(f.action_ms)),
    _column("due_time", _MS, lambda _, f, m: _ms(f.due_ms)),
    _column("attempts", pa.int64(), lambda _, f, m: f.attempts),
    _column("armed_time", _MS, lambda _, f, m: _ms(f.armed_ms)),
    _column("out_time", _MS, lambda _, f, m: _ms(f.out_ms)),
    _column("mended", pa.bool_(), lambda _, f, m: None if m is None else m.done),
    _column("how", pa.string(), lambda _, f, m: None if m is None else clean(m.how)),
]
