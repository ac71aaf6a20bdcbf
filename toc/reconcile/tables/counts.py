"""Counts of jobs as Arrow tables, and how they are merged: by DataFrames of Spark, or by pyarrow here.

The counts are made where the rows are: by the databases (`toc.store.job_counts`), and from the files of the
archive (`archive_counts`). Both give pages with the columns of JobCount and the shard. A merge adds up the
pages of many tasks: KEYS, SUMS and MAXES are the only definition of it, for both ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from toc.errors import TocError
from toc.reconcile.spark_tables import read_on_executors
from toc.runtime.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


KEYS = ("measure", "shard", "day", "hour", "type_no", "status", "node", "bucket")
SUMS = ("jobs", "retried", "attempts", "ms")
MAXES = ("ms_max",)

SCHEMA = pa.schema(
    [
        ("measure", pa.int32()),
        ("day", pa.int32()),
        ("hour", pa.int64()),
        ("type_no", pa.int32()),
        ("status", pa.int32()),
        ("node", pa.string()),
        ("bucket", pa.int32()),
        *((name, pa.int64()) for name in (*SUMS, *MAXES)),
        ("shard", pa.int32()),
    ]
)
"""The columns of a page: those of JobCount, and the shard."""

SPARK_SCHEMA = ", ".join(
    f"{field.name} {({pa.int32(): 'INT', pa.int64(): 'BIGINT'}).get(field.type, 'STRING')}"
    for field in SCHEMA
)

MERGED_AT = 200_000
"""Rows of pages that are kept in this process before they are merged."""


class TooManyGroups(TocError):
    """The groups of some days would not fit into reconcile.table_rows_max."""


class CountWork(NamedTuple):
    """Counts that tasks make. `read` gets some of the items, and yields pages."""

    items: Sequence[Any]
    read: Callable[[Settings, Sequence[Any]], Iterator[pa.RecordBatch]]


def read_merged_counts(spark: SparkSession | None, settings: Settings, work: CountWork) -> pa.Table:
    """Runs the work on Spark's executors, or here if there is no Spark; returns one row for each of KEYS.

    Raises TooManyGroups, and what the work raises.
    """
    rows_max = settings.reconcile.table_rows_max
    if not work.items:
        return SCHEMA.empty_table()
    if spark is None:
        return merge_pages(work.read(settings, work.items), rows_max)
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - an extra

    pages = read_on_executors(spark, settings, work.items, work.read, SPARK_SCHEMA)
    sums = [F.sum(name).alias(name) for name in SUMS]
    merged = pages.groupBy(*KEYS).agg(*sums, *(F.max(name).alias(name) for name in MAXES))
    found = merged.limit(rows_max + 1).toArrow()
    _refuse_too_many(found.num_rows, rows_max)
    return found.select(SCHEMA.names).cast(SCHEMA)


def merge_pages(pages: Iterable[pa.RecordBatch], rows_max: int) -> pa.Table:
    """Merges pages here, with at most `rows_max` + MERGED_AT rows and one page in memory."""
    merged, waiting, rows = SCHEMA.empty_table(), [], 0
    for page in pages:
        waiting.append(page)
        rows += page.num_rows
        if rows >= MERGED_AT:
            merged, waiting, rows = _merge(merged, waiting), [], 0
            _refuse_too_many(merged.num_rows, rows_max)
    merged = _merge(merged, waiting)
    _refuse_too_many(merged.num_rows, rows_max)
    return merged


def _merge(merged: pa.Table, pages: Sequence[pa.RecordBatch]) -> pa.Table:
    every = pa.concat_tables([merged, pa.Table.from_batches(pages, SCHEMA)])
    found = every.group_by(list(KEYS)).aggregate(
        [(name, "sum") for name in SUMS] + [(name, "max") for name in MAXES]
    )
    names = [name.removesuffix("_sum") if name != "ms_max_max" else "ms_max"
             for name in found.column_names]  # fmt: skip
    return found.rename_columns(names).select(SCHEMA.names).cast(SCHEMA)


def _refuse_too_many(rows: int, rows_max: int) -> None:
    if rows > rows_max:
        raise TooManyGroups(
            f"more than {rows_max:,} groups of type, hour, shard and node (reconcile.table_rows_max): is the "
            "number of types or of processes right? Raise the setting, or fill fewer days at once"
        )
