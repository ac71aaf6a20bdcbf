"""findings.parquet: one row for each finding that was kept, for analysts.

Column types are wide enough for all that a row or a reminder can hold. Where pyarrow is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from toc.domain.ids import JOB_ID_MAX
from toc.reconcile.findings import Finding, ReconcileResult, RepairResult
from toc.reconcile.report.summary import database_of, mended_of
from toc.reconcile.report.words import clean, status_name

CHUNK = 50_000  # rows turned into columns at once
_MS = pa.timestamp("ms", tz="UTC")
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

COLUMNS = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("database", pa.int32(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("job_id", pa.int64()),  # null: a reminder of what cannot be an id
        pa.field("biz_id", pa.uint64()),
        pa.field("biz_type", pa.string()),
        pa.field("status", pa.string()),
        pa.field("action_time", _MS),
        pa.field("due_time", _MS),
        pa.field("attempts", pa.int64()),
        pa.field("armed_time", _MS),
        pa.field("out_time", _MS),
        pa.field("mended", pa.bool_()),
        pa.field("how", pa.string()),
    ]
)


def write_findings(outcome: ReconcileResult, sink: IO[bytes]) -> None:
    """Writes all findings, and what repair did about each; null where it was not tried."""
    repairs = mended_of(outcome)
    rest = iter(outcome.findings)
    with pq.ParquetWriter(sink, COLUMNS, compression="zstd") as writer:
        while chunk := list(islice(rest, CHUNK)):
            writer.write_batch(_batch(outcome, chunk, repairs))


def _batch(
    outcome: ReconcileResult, chunk: Sequence[Finding], repairs: Mapping[Finding, RepairResult]
) -> Any:
    tried = [repairs.get(finding) for finding in chunk]
    columns = {
        "kind": [finding.kind.value for finding in chunk],
        "database": [database_of(outcome, finding.shard) for finding in chunk],
        "shard": [finding.shard for finding in chunk],
        "topic": [_text(finding.topic) for finding in chunk],
        "slot": [finding.slot for finding in chunk],
        "job_id": [_fitting(finding.job_id) for finding in chunk],
        "biz_id": [finding.biz_id for finding in chunk],
        "biz_type": [_text(finding.biz_type) for finding in chunk],
        "status": [status_name(finding.status) for finding in chunk],
        "action_time": [_ms(finding.action_ms) for finding in chunk],
        "due_time": [_ms(finding.due_ms) for finding in chunk],
        "attempts": [finding.attempts for finding in chunk],
        "armed_time": [_ms(finding.armed_ms) for finding in chunk],
        "out_time": [_ms(finding.out_ms) for finding in chunk],
        "mended": [None if mend is None else mend.done for mend in tried],
        "how": [None if mend is None else clean(mend.how) for mend in tried],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in COLUMNS]
    return pa.record_batch(arrays, schema=COLUMNS)


def _text(text: str | None) -> str | None:
    """What cannot be UTF-8 comes as escapes."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def _fitting(job_id: int) -> int | None:
    return job_id if 0 <= job_id <= JOB_ID_MAX else None


def _ms(ms: int | None) -> int | None:
    """A score in Redis, by whoever's hand, can be beyond 64 bits."""
    return None if ms is None else min(max(ms, _INT64_MIN), _INT64_MAX)
