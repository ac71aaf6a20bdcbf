"""Files where Spark writes: in a directory of this machine, or in any store that Spark has a driver for.

Only operations that every such store has are used: list, rename one file, delete. A folder is never renamed:
object stores copy a folder file by file, and an interrupted copy leaves a part of the folder behind.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toc.errors import SettingsError
from toc.reconcile.spark_errors import short_error_text, spark_error_types
from toc.runtime.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

Columns = Sequence[Sequence[Any]]
"""A page of rows, column by column."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def new_parquet_session(spark: SparkSession) -> SparkSession:
    """A new session of the same Spark, with the settings for Parquet files."""
    mine = spark.newSession()
    for name, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default type ends in 2262
    }.items():
        mine.conf.set(name, value)
    return mine


def read_on_executors(
    spark: SparkSession,
    settings: Settings,
    shards: Sequence[int],
    read: Callable[[Settings, Sequence[int]], Iterator[Columns]],
    schema: str,
) -> DataFrame:
    """Runs `read` on the executors; returns its pages as one table. Each task calls `read` with some shards.

    `read` yields pages of rows: the columns of `schema`, with times in ms and days since 1970. It must use
    the settings that it is given, so that the task itself holds no passwords.
    """
    shared = spark.sparkContext.broadcast(settings)
    number_of_tasks = min(spark.sparkContext.defaultParallelism, len(shards))
    tasks = [shards[n::number_of_tasks] for n in range(number_of_tasks)]

    def read_shards_of_tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for columns in read(shared.value, tasks[number]):
                    yield _make_record_batch(columns, schema)

    with warnings.catch_warnings():
        # Spark does not fully know pandas 3 yet, and warns; this code does not use pandas.
        warnings.simplefilter("ignore", FutureWarning)
        return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read_shards_of_tasks, schema)


def _make_record_batch(columns: Columns, schema: str) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    types = {
        "BIGINT": pa.int64(),
        "INT": pa.int32(),
        "DECIMAL(20,0)": pa.decimal128(20, 0),
        "STRING": pa.string(),
        "TIMESTAMP": pa.timestamp("us", "UTC"),
        "DATE": pa.date32(),
    }
    fields = [part.split() for part in schema.split(", ")]
    arrays = []
    for column, (_, kind) in zip(columns, fields, strict=True):
        values = pa.array(column, pa.timestamp("ms", "UTC") if kind == "TIMESTAMP" else types[kind])
        arrays.append(values.cast(types[kind]))
    return pa.record_batch(arrays, [name for name, _ in fields])


class SparkFiles:
    """The files below `root`: a URL, or a directory of this machine. All names are relative to `root`."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        url = root if _URL.match(root) else Path(root).absolute().as_uri()
        try:
            self._open_filesystem(spark, url)
        except spark_error_types() as error:
            raise SettingsError(
                f"Spark cannot write to {root}: {short_error_text(error)}"
            ) from None

    def _open_filesystem(self, spark: SparkSession, url: str) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
        configuration = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        self._path = jvm.org.apache.hadoop.fs.Path
        top = self._path(url)
        self._store: Any = top.getFileSystem(configuration)
        self.root = str(self._store.makeQualified(top).toString()).rstrip("/")

    def url_of(self, name: str) -> str:
        """The URL of a file or folder, for Spark."""
        return f"{self.root}/{name}"

    def list_folders(self, name: str) -> list[str]:
        """The names of the folders in a folder, sorted; none if it does not exist."""
        return self._list_names(name, folders=True)

    def list_files(self, name: str) -> list[str]:
        """The names of the files in a folder, sorted, without those that begin with '_' or '.' (no data)."""
        return [n for n in self._list_names(name, folders=False) if not n.startswith(("_", "."))]

    def exists(self, name: str) -> bool:
        return bool(self._store.exists(self._hadoop_path(name)))

    def move_file(self, name: str, to: str) -> None:
        """Renames a file. The call can be repeated, also by another process at the same time."""
        source, target = self._hadoop_path(name), self._hadoop_path(to)
        self._store.mkdirs(target.getParent())
        if self._store.exists(target):
            if not self._store.exists(source):
                return
            if self._file_size_bytes(target) == self._file_size_bytes(source):
                # A store that copies has done so, and was interrupted before it deleted the source.
                self._store.delete(source, False)
                return
            self._store.delete(target, False)  # an incomplete copy
        try:
            moved = self._store.rename(source, target)
        except Exception:
            if not self._store.exists(target):
                raise
            return
        if not moved and not self._store.exists(target):
            raise OSError(f"{self.url_of(name)} cannot be renamed to {self.url_of(to)}")

    def delete(self, name: str) -> None:
        """Deletes a file, or a folder with all that is in it; does nothing if it does not exist."""
        self._store.delete(self._hadoop_path(name), True)

    def _file_size_bytes(self, path: Any) -> int:
        return int(self._store.getFileStatus(path).getLen())

    def _list_names(self, name: str, *, folders: bool) -> list[str]:
        at = self._hadoop_path(name)
        if not self._store.exists(at):
            return []
        return sorted(
            str(status.getPath().getName())
            for status in self._store.listStatus(at)
            if bool(status.isDirectory()) is folders
        )

    def _hadoop_path(self, name: str) -> Any:
        return self._path(self.url_of(name))
