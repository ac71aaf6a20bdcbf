"""Reads pages on Spark's executors as a DataFrame."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from toc.runtime.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


def read_on_executors(
    spark: SparkSession,
    settings: Settings,
    items: Sequence[T],
    read: Callable[[Settings, Sequence[T]], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """Runs `read` on the executors, in tasks with some of the items each; returns its pages as one table.

    The items are of one database: at most `reconcile.reads_per_database` tasks share them. `read` must use
    the settings that it is given, so that the task itself holds no passwords.
    """
    shared = spark.sparkContext.broadcast(settings)
    limit = min(spark.sparkContext.defaultParallelism, settings.reconcile.reads_per_database)
    number = min(limit, len(items))
    tasks = [items[place::number] for place in range(number)]

    def read_items_of_tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in batch.column(0).to_pylist():
                yield from read(shared.value, tasks[place])

    with warnings.catch_warnings():
        # Spark does not fully know pandas 3 yet, and warns; this code does not use pandas.
        warnings.simplefilter("ignore", FutureWarning)
        return spark.range(0, number, 1, number).mapInArrow(read_items_of_tasks, schema)
