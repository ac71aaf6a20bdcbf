"""Makes the rows of `lateness`, `volume` and `cohorts` from merged counts, the same after Spark and here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from toc.domain.job import Status
from toc.reconcile.delta_tables import DAY, TableSpec
from toc.reconcile.tables.table_specs import (
    AGE_BUCKETS,
    BUCKETS,
    COHORTS,
    DATABASE,
    LATENESS,
    PER_MILLE,
    TIME,
    VOLUME,
)
from toc.store.ended_jobs import HOUR_MS
from toc.store.job_counts import BOUNDS_MS, CREATED, ENDED
from toc.store.job_counts import LATENESS as LATENESS_MEASURE

UNKNOWN = "unknown"
"""The outcome of jobs whose status is none of toc's."""

_LIVE = "live"
_OUTCOMES = {int(status): _LIVE if status.live else status.name.lower() for status in Status}


def lateness_rows(counts: pa.Table, type_names: Mapping[int, str], database: int) -> pa.Table:
    """The rows of `lateness`. `type_names`: by type_no."""
    ended = _add_outcome(counts.filter(pc.equal(counts["measure"], LATENESS_MEASURE)))
    measured = pc.if_else(pc.is_null(ended["bucket"]), 0, ended["jobs"])
    ended = ended.append_column("measured", measured.cast(pa.int64()))
    ended = _spread_buckets(ended, BUCKETS)
    keys = ["day", "hour", "type_no", "shard", "node", "outcome"]
    found = _add_up(ended, keys, ["jobs", "retried", "measured", "ms", *BUCKETS])
    found = _rename(found, ms="late_ms_sum", ms_max="late_ms_max")
    for name, values in _percentiles(found).items():
        found = found.append_column(name, pa.array(values, pa.float64(), from_pandas=True))
    return _as_rows(LATENESS, found, type_names, database)


def volume_rows(counts: pa.Table, type_names: Mapping[int, str], database: int) -> pa.Table:
    """The rows of `volume`. Jobs are in the hour in which they were created, or in which they ended."""
    is_ended = pc.equal(counts["measure"], ENDED)
    counts = _add_outcome(counts.filter(pc.or_(is_ended, pc.equal(counts["measure"], CREATED))))
    is_ended = pc.equal(counts["measure"], ENDED)
    sums = ["scheduled", "done", "cancelled", "dead", "retried", "attempts"]
    for name in sums:
        value = counts[name] if name in {"retried", "attempts"} else counts["jobs"]
        of_name = is_ended
        if name == "scheduled":
            of_name = pc.invert(is_ended)
        elif name not in {"retried", "attempts"}:
            of_name = pc.and_(is_ended, pc.equal(counts["outcome"], name))
        column = pc.if_else(of_name, value, 0).cast(pa.int64())
        if name in counts.column_names:
            counts = counts.set_column(counts.column_names.index(name), name, column)
        else:
            counts = counts.append_column(name, column)
    found = _add_up(counts, ["day", "hour", "type_no", "shard"], sums)
    ended = pc.add(pc.add(found["done"], found["cancelled"]), found["dead"])
    found = found.append_column("cancel_rate", _rate(found["cancelled"], ended))
    found = found.append_column("retry_rate", _rate(found["retried"], ended))
    return _as_rows(VOLUME, found, type_names, database)


def cohort_rows(
    counts: pa.Table, type_names: Mapping[int, str], database: int, now_ms: int
) -> pa.Table:
    """The rows of `cohorts`: what became of the jobs of a day until `now_ms`."""
    created = _add_outcome(counts.filter(pc.equal(counts["measure"], CREATED)))
    created = _spread_buckets(created, AGE_BUCKETS)
    keys = ["day", "type_no", "shard", "outcome"]
    found = _add_up(created, keys, ["jobs", "retried", "ms", *AGE_BUCKETS])
    found = _rename(found, ms="age_ms_sum", ms_max="age_ms_max")
    counted_at = pa.array([now_ms] * found.num_rows, pa.timestamp("ms", "UTC")).cast(TIME)
    found = found.append_column("counted_at", counted_at)
    return _as_rows(COHORTS, found, type_names, database)


def rows_of_spec(spec: TableSpec, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Rows of a table from plain values; times in ms since 1970."""
    arrays = []
    for field in spec.columns:
        kind = pa.timestamp("ms", "UTC") if field.type == TIME else field.type
        arrays.append(pa.array(columns[field.name], kind).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=spec.columns)


def _add_outcome(counts: pa.Table) -> pa.Table:
    names = pa.array([_OUTCOMES.get(n, UNKNOWN) for n in counts["status"].to_pylist()], pa.string())
    return counts.append_column("outcome", names)


def _spread_buckets(counts: pa.Table, names: Sequence[str]) -> pa.Table:
    """Adds a column for each bucket."""
    for place, name in enumerate(names):
        of_bucket = pc.fill_null(pc.equal(counts["bucket"], place), False)
        jobs = pc.if_else(of_bucket, counts["jobs"], 0).cast(pa.int64())
        counts = counts.append_column(name, jobs)
    return counts


def _add_up(counts: pa.Table, keys: list[str], sums: list[str]) -> pa.Table:
    """One row for each of the keys, sorted by them: the same counts give the same file."""
    found = counts.group_by(keys).aggregate([(name, "sum") for name in sums] + [("ms_max", "max")])
    found = _rename(found, **{f"{name}_sum": name for name in sums}, ms_max_max="ms_max")
    return found.sort_by([(key, "ascending") for key in keys])


def _rename(table: pa.Table, **names: str) -> pa.Table:
    return table.rename_columns([names.get(name, name) for name in table.column_names])


def _rate(part: pa.ChunkedArray, whole: pa.ChunkedArray) -> pa.ChunkedArray:
    """NULL where the whole is 0."""
    whole = pc.if_else(pc.equal(whole, 0), None, whole)
    return pc.divide(part.cast(pa.float64()), whole.cast(pa.float64()))


def _percentiles(found: pa.Table) -> dict[str, Any]:
    """The lateness that so many of 1,000 jobs do not exceed: the upper bound of a bucket, or the maximum.

    NaN where nothing was measured.
    """
    cumulated = np.cumsum([found[name].to_numpy() for name in BUCKETS], axis=0)
    measured, greatest = found["measured"].to_numpy(), found["late_ms_max"].to_numpy()
    bounds = np.array([*BOUNDS_MS, np.iinfo(np.int64).max])
    percentiles = {}
    for name, per_mille in PER_MILLE.items():
        rank = (measured * per_mille + 999) // 1000
        bucket = np.argmax(cumulated >= rank, axis=0)
        value = np.minimum(bounds[bucket], greatest).astype(float)
        value[measured == 0] = np.nan
        percentiles[name] = value
    return percentiles


def _as_rows(
    spec: TableSpec, found: pa.Table, type_names: Mapping[int, str], database: int
) -> pa.Table:
    values = {name: found[name] for name in found.column_names}
    names = [type_names.get(type_no) for type_no in found["type_no"].to_pylist()]
    values |= {
        "biz_type": pa.array(names, pa.string()),
        DATABASE: pa.array([database] * found.num_rows, pa.int32()),
        DAY: found["day"].cast(pa.int32()).cast(pa.date32()),
    }
    if "hour" in values:
        hour_ms = pc.multiply(found["hour"], HOUR_MS)
        values["hour"] = hour_ms.cast(pa.timestamp("ms", "UTC")).cast(TIME)
    arrays = [values[field.name].cast(field.type) for field in spec.columns]
    return pa.table(arrays, schema=spec.columns)
