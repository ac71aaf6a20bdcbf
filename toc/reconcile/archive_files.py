"""Writes ended jobs as Parquet files; computes the checksums of files and database, which must be equal."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from toc.domain.job import Status
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store.archive_status import EndedJobWindow
from toc.store.column_types import sql_time_of_ms
from toc.store.databases import Databases
from toc.store.ended_jobs import (
    COLUMNS,
    DAY_MS,
    TEXTS,
    TIMES,
    EndedJobReader,
    IdRange,
    possible_ids_of_ended,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

SCHEMA = (
    "job_id BIGINT, biz_id DECIMAL(20,0), type_no INT, biz_type STRING, status INT, status_name STRING, "
    "action_time TIMESTAMP, claim_time TIMESTAMP, gmt_create TIMESTAMP, gmt_modified TIMESTAMP, "
    "due_time TIMESTAMP, attempts INT, priority INT, claim_token STRING, dedup_key STRING, "
    "biz_text STRING, tenant STRING, attribute STRING, result STRING, trace STRING, error STRING, "
    "dead_time TIMESTAMP, shard INT, day DATE"
)
"""The columns of the archive's files. `day`, the day on which the job ended, is part of the path."""

ROWS_MAX = 5000  # rows that a task reads at once
PAGE_BYTES = 16 * 2**20  # bytes of attributes that a task reads at once
ROW_GROUP_BYTES = 16 * 2**20  # bytes of rows that a task keeps in memory before it writes the rows
FILE_ROWS_MAX = 2_000_000
OPEN_FILES_MAX = 4  # files that a task writes at once; rows of more days are first sorted, on disk
_STATUS_NAMES = {int(status): status.name.lower() for status in Status}


Columns = Sequence[Sequence[Any]]
"""A page of rows, column by column."""


class DayChecksums(dict[tuple[int, int], tuple[int, int]]):
    """(shard, day since 1970) → (number of rows, sum of the CRC-32 of these rows)."""

    @property
    def row_count(self) -> int:
        return sum(rows for rows, _ in self.values())


def new_parquet_session(spark: SparkSession) -> SparkSession:
    """A new session of the same Spark, with the settings for Parquet files."""
    mine = spark.newSession()
    for name, value in {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default type ends in 2262
        "spark.sql.maxConcurrentOutputFileWriters": str(OPEN_FILES_MAX),
        "spark.sql.parquet.columnarReaderBatchSize": "1024",  # an attribute may have 64 KB
    }.items():
        mine.conf.set(name, value)
    return mine


# ---- rows to Parquet


def write_ended_jobs(
    spark: SparkSession,
    settings: Settings,
    shards: Sequence[int],
    window: EndedJobWindow,
    type_names: Mapping[int, str],
    url: str,
) -> None:
    """Writes the jobs that ended in the window into a folder for each day; replaces all files at `url`."""
    names = dict(type_names)
    schema_names = [column.split()[0] for column in SCHEMA.split(", ")]

    def read_ended_rows(own_settings: Settings, some: Sequence[int]) -> Iterator[Columns]:
        pieces = split_into_id_ranges(
            own_settings, some, possible_ids_of_ended(window), job_rows_per_read(own_settings)
        )
        for ended, shard, ids in pieces:
            rows = ended.read_ended_rows(shard, ids, window)
            if rows:
                columns = _rows_to_columns(shard, rows, names)
                yield [columns[name] for name in schema_names]

    (
        read_on_executors(spark, settings, shards, read_ended_rows, SCHEMA)
        .write.mode("overwrite")
        .partitionBy("day")
        .option("compression", "zstd")
        .option("parquet.block.size", ROW_GROUP_BYTES)
        .option("maxRecordsPerFile", FILE_ROWS_MAX)
        .parquet(url)
    )


def _rows_to_columns(
    shard: int, rows: Sequence[Sequence[Any]], type_names: Mapping[int, str]
) -> dict[str, Sequence[Any]]:
    """Rows of `EndedJobReader.read_ended_rows` as the columns of SCHEMA."""
    columns: dict[str, Sequence[Any]] = dict(zip(COLUMNS, zip(*rows, strict=True), strict=True))
    return columns | {
        "biz_id": [int(number) for number in columns["biz_id"]],
        "biz_type": [type_names.get(number) for number in columns["type_no"]],
        "status_name": [_STATUS_NAMES.get(number) for number in columns["status"]],
        "shard": [shard] * len(rows),
        "day": [ms // DAY_MS for ms in columns["gmt_modified"]],
    }


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


def split_into_id_ranges(
    settings: Settings, shards: Iterable[int], ids: IdRange, rows: int
) -> Iterator[tuple[EndedJobReader, int, IdRange]]:
    """On an executor: splits `ids` in each shard into ranges of about `rows` rows; (reader, shard, range)."""
    with closing(Databases.from_settings(settings, SystemClock(), pool_size=1)) as databases:
        ended = EndedJobReader(databases)
        for shard in shards:
            for piece in ended.split_id_range(shard, ids, rows):
                yield ended, shard, piece


def job_rows_per_read(settings: Settings) -> int:
    """How many rows a task reads at once."""
    return min(ROWS_MAX, settings.reconcile.page, PAGE_BYTES // settings.limits.attribute_bytes)


# ---- the two checksums


def compute_parquet_checksums(
    spark: SparkSession, url: str, type_names: Mapping[int, str]
) -> DayChecksums:
    """Checksums of the files at `url`; a day with a wrong name of a type or status has a count of -1."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - as all the world writes it

    labels = F.struct("type_no", "biz_type", "status", "status_name")
    groups = (
        spark.read.schema(SCHEMA)
        .parquet(url)
        .groupBy("shard", F.unix_date("day").alias("day"))
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.sum(_checksum_of_row()).alias("crc"),
            F.collect_set(labels).alias("labels"),
        )
    )
    found = DayChecksums()
    for group in groups.collect():
        right = all(
            label.biz_type == type_names.get(label.type_no)
            and label.status_name == _STATUS_NAMES.get(label.status)
            for label in group.labels
        )
        found[group.shard, group.day] = (group.rows if right else -1, group.crc)
    return found


def _checksum_of_row() -> Column:
    """The checksum of a row, of the same text as `_checksums_sql` in store/ended_jobs.py."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    def column_as_text(name: str) -> Column:
        column = F.col(name)
        if name in TIMES:
            return F.unix_millis(column).cast("string")
        if name in TEXTS:
            return F.concat(F.octet_length(column).cast("string"), F.lit("="), column)
        return column.cast("string")

    parts = [F.coalesce(column_as_text(name), F.lit("-")) for name in COLUMNS]
    return F.crc32(F.concat_ws("|", *parts).cast("binary"))


def compute_database_checksums(
    spark: SparkSession, settings: Settings, shards: Sequence[int], window: EndedJobWindow
) -> DayChecksums:
    """Checksums of the jobs that ended in the window, computed by the databases."""

    def read_checksums(own_settings: Settings, some: Sequence[int]) -> Iterator[Columns]:
        ids, rows = possible_ids_of_ended(window), own_settings.reconcile.page
        for ended, shard, piece in split_into_id_ranges(own_settings, some, ids, rows):
            for day, number, crc in ended.read_day_checksums(shard, piece, window):
                yield [shard], [day], [number], [crc]

    found = DayChecksums()
    for one in read_on_executors(spark, settings, shards, read_checksums, _SUMS).collect():
        rows, crc = found.get((one.shard, one.day), (0, 0))
        found[one.shard, one.day] = (rows + one.rows, crc + one.crc)
    return found


_SUMS = "shard INT, day INT, rows BIGINT, crc BIGINT"


def describe_checksum_differences(archive: DayChecksums, database: DayChecksums) -> Iterator[str]:
    """A line of text for each shard and day in which the checksums differ."""
    for shard, day in sorted(archive.keys() | database.keys()):
        ours, theirs = archive.get((shard, day)), database.get((shard, day))
        if ours != theirs:
            yield (
                f"shard {shard}, {sql_time_of_ms(day * DAY_MS)[:10]}: "
                f"the archive has {_describe_checksum(ours)}, "
                f"the database {_describe_checksum(theirs)}"
            )


def _describe_checksum(found: tuple[int, int] | None) -> str:
    rows, crc = found or (0, 0)
    return "rows with wrong names" if rows < 0 else f"{rows:,} rows (checksum {crc})"
