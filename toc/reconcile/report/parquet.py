"""findings.parquet: one row for each finding that was kept, for analysts. pyarrow is imported only here.

The types of its columns hold any value that a row or a reminder can have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from toc.domain.ids import JOB_ID_MAX
from toc.reconcile.findings import Finding, ReconcileResult, RepairResult
from toc.reconcile.report.report_texts import clean_text, status_name
from toc.reconcile.report.summary import database_of_shard, repairs_by_finding

CHUNK = 50_000  # rows that become columns at a time
_TIME = pa.timestamp("ms", tz="UTC")
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("database", pa.int32(), nullable=False),
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("slot", pa.int32(), nullable=False),
        ("job_id", pa.int64()),  # null: a member of a queue that cannot be an id
        ("biz_id", pa.uint64()),
        ("biz_type", pa.string()),
        ("status", pa.string()),
        ("action_time", _TIME),
        ("due_time", _TIME),
        ("attempts", pa.int64()),
        ("armed_time", _TIME),
        ("out_time", _TIME),
        (
            "first_seen",
            _TIME,
        ),  # when the first run began that saw it, of those that saw it one after the other
        ("mended", pa.bool_()),
        ("how", pa.string()),
    ]
)


FirstSeen = Mapping[tuple[str, int | None, str, int], int]
"""(kind, job_id, topic, slot) of findings that an earlier run left -> when they were first seen, in ms."""


def write_findings(outcome: ReconcileResult, sink: IO[bytes], earlier: FirstSeen) -> None:
    """Writes all findings, and how each was repaired; null where no repair was tried."""
    with pq.ParquetWriter(sink, SCHEMA, compression="zstd") as writer:
        for batch in findings_as_batches(outcome, earlier):
            writer.write_batch(batch)


def read_first_seen(file: Path) -> FirstSeen:
    """Reads from findings.parquet of an earlier run when those that it left were first seen."""
    columns = ["kind", "job_id", "topic", "slot", "first_seen", "mended"]
    try:
        table = pq.read_table(file, columns=columns)
    except (OSError, pa.ArrowException):  # deleted meanwhile, or written by an older version
        return {}
    *keys, first_seen, mended = (table.column(name) for name in columns)
    rows = zip(*(key.to_pylist() for key in keys), strict=True)
    times = first_seen.cast(pa.int64()).to_pylist()
    return {
        key: ms
        for key, ms, done in zip(rows, times, mended.to_pylist(), strict=True)
        if ms is not None and not done
    }


def first_seen_ms(finding: Finding, outcome: ReconcileResult, earlier: FirstSeen) -> int:
    """When the first run began that saw the finding: this run, if the one before did not see it."""
    key = (
        str(finding.kind),
        _job_id_or_none(finding),
        _escape_text(finding.topic) or "",
        finding.slot,
    )
    return earlier.get(key, outcome.began_ms)


def findings_as_batches(
    outcome: ReconcileResult, earlier: FirstSeen = MappingProxyType({})
) -> Iterator[pa.RecordBatch]:
    """All findings, and how each was repaired, in batches of SCHEMA."""
    repairs = repairs_by_finding(outcome)
    for start in range(0, len(outcome.findings), CHUNK):
        rows = [
            _finding_as_row(
                finding, database_of_shard(outcome, finding.shard), repairs.get(finding)
            )
            | {"first_seen": first_seen_ms(finding, outcome, earlier)}
            for finding in outcome.findings[start : start + CHUNK]
        ]
        yield pa.RecordBatch.from_pylist(rows, SCHEMA)


def _finding_as_row(finding: Finding, database: int, repair: RepairResult | None) -> dict[str, Any]:
    return finding._asdict() | {
        "database": database,
        "topic": _escape_text(finding.topic),
        "job_id": _job_id_or_none(finding),
        "biz_type": _escape_text(finding.biz_type),
        "status": status_name(finding.status),
        "action_time": _clamp_ms(finding.action_ms),
        "due_time": _clamp_ms(finding.due_ms),
        "armed_time": _clamp_ms(finding.armed_ms),
        "out_time": _clamp_ms(finding.out_ms),
        "mended": None if repair is None else repair.done,
        "how": None if repair is None else clean_text(repair.how),
    }


def _job_id_or_none(finding: Finding) -> int | None:
    return finding.job_id if 0 <= finding.job_id <= JOB_ID_MAX else None


def _escape_text(text: str | None) -> str | None:
    """Replaces characters that UTF-8 does not have by escapes."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def _clamp_ms(ms: int | None) -> int | None:
    """Limits a time to 64 bits: a score that another program wrote to Redis can be larger."""
    return None if ms is None else min(max(ms, _INT64_MIN), _INT64_MAX)
