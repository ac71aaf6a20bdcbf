"""Data files of the archive's tables: written with bounded memory, and read back from the store."""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

import pyarrow as pa
from deltalake.transaction import AddAction
from pyarrow import fs, parquet

from toc.reconcile.delta_tables import DELTA_ERRORS, TableSpec

BUFFER_BYTES_MAX = 64 * 2**20
"""Bytes of rows that a task keeps in memory."""

ROW_GROUP_BYTES = 16 * 2**20
"""Rows of one partition are written when they have so many bytes, as one row group."""

OPEN_FILES_MAX = 16
"""Files that a task writes at once; beyond, it closes the largest one."""

FILE_BYTES_MAX = 256 * 2**20
READ_ROWS = 1024  # a row may have 200 kB of texts

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"

Partition = tuple[str | None, ...]
"""The values of the partition columns, as the log has them: days as '2026-01-05'."""


class ArchiveFile(NamedTuple):
    """A written file. `path`: relative to its table."""

    path: str
    partition: Partition


class _OpenFile:
    def __init__(self, files: fs.FileSystem, path: str, columns: pa.Schema) -> None:
        self.path = path
        self._stream = files.open_output_stream(path)
        self._writer = parquet.ParquetWriter(self._stream, columns, compression="zstd")

    @property
    def size_bytes(self) -> int:
        return int(self._stream.tell())

    def write_rows(self, batches: Sequence[pa.RecordBatch]) -> None:
        rows = pa.Table.from_batches(batches)
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    def close(self) -> None:
        self._writer.close()
        self._stream.close()


class PartitionedWriter:
    """Writes rows to files, at least one for each partition; `prefix` begins all their names.

    Keeps at most BUFFER_BYTES_MAX of rows in memory, and OPEN_FILES_MAX files open.
    """

    def __init__(self, files: fs.FileSystem, spec: TableSpec, prefix: str) -> None:
        self._files, self._spec = files, spec
        self._prefix = f"{prefix}-{secrets.token_hex(8)}"  # a repeated task writes other files
        self._buffers: dict[Partition, list[pa.RecordBatch]] = defaultdict(list)
        self._bytes: dict[Partition, int] = defaultdict(int)
        self._open: dict[Partition, _OpenFile] = {}
        self._written: list[ArchiveFile] = []

    def add_rows(self, partition: Partition, rows: pa.RecordBatch) -> None:
        """Adds rows of one partition, of `spec.file_columns`."""
        self._buffers[partition].append(rows)
        self._bytes[partition] += rows.nbytes
        if self._bytes[partition] >= ROW_GROUP_BYTES:
            self._write_buffer(partition)
        elif sum(self._bytes.values()) >= BUFFER_BYTES_MAX:
            self._write_buffer(max(self._bytes, key=self._bytes.__getitem__))

    def close(self) -> list[ArchiveFile]:
        """Writes what is left; returns all files."""
        for partition in list(self._buffers):
            self._write_buffer(partition)
            self._close_file(partition)
        for partition in list(self._open):
            self._close_file(partition)
        return self._written

    def _write_buffer(self, partition: Partition) -> None:
        if partition not in self._open:
            if len(self._open) == OPEN_FILES_MAX:
                self._close_file(max(self._open, key=lambda one: self._open[one].size_bytes))
            path = f"{self._folder(partition)}/{self._prefix}-{len(self._written)}.zstd.parquet"
            self._written.append(ArchiveFile(path, partition))
            self._open[partition] = _OpenFile(self._files, path, self._spec.file_columns)
        file = self._open[partition]
        file.write_rows(self._buffers.pop(partition))
        del self._bytes[partition]
        if file.size_bytes >= FILE_BYTES_MAX:
            self._close_file(partition)

    def _close_file(self, partition: Partition) -> None:
        if partition in self._open:
            self._open.pop(partition).close()

    def _folder(self, partition: Partition) -> str:
        return "/".join(
            f"{name}={NULL_FOLDER if value is None else quote(value, safe='')}"
            for name, value in zip(self._spec.partition_by, partition, strict=True)
        )


def read_batches(
    files: fs.FileSystem, spec: TableSpec, file: ArchiveFile
) -> Iterator[pa.RecordBatch]:
    """Reads a file from the store. Raises DELTA_ERRORS, and ArrowInvalid for other columns than `spec`'s."""
    with files.open_input_file(file.path) as stream, parquet.ParquetFile(stream) as reader:
        if not reader.schema_arrow.equals(spec.file_columns):
            raise pa.ArrowInvalid(f"{file.path} has other columns than were written")
        yield from reader.iter_batches(READ_ROWS)


def read_add_action(files: fs.FileSystem, spec: TableSpec, file: ArchiveFile) -> AddAction:
    """What the log of the table has to say of a file, by the footer of the file in the store."""
    with files.open_input_file(file.path) as stream:
        size = stream.size()
        footer = parquet.ParquetFile(stream).metadata
    found = files.get_file_info(file.path)
    return AddAction(
        path=file.path,
        size=size,
        partition_values=dict(zip(spec.partition_by, file.partition, strict=True)),
        modification_time=int((found.mtime_ns or 0) // 1_000_000),
        data_change=True,
        stats=json.dumps(_statistics_of_footer(footer, spec)),
    )


def delete_files(files: fs.FileSystem, written: Iterable[ArchiveFile]) -> None:
    """Deletes files that no commit names. What cannot be deleted is left to the vacuum."""
    for file in written:
        with suppress(*DELTA_ERRORS):
            files.delete_file(file.path)


def _statistics_of_footer(footer: Any, spec: TableSpec) -> dict[str, Any]:
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for place in range(footer.num_columns):
        name = footer.schema.column(place).name
        if name in spec.indexed:
            parts = [
                footer.row_group(group).column(place).statistics
                for group in range(footer.num_row_groups)
            ]
            least[name] = _json_value(min(part.min for part in parts))
            greatest[name] = _json_value(max(part.max for part in parts))
    return {
        "numRecords": footer.num_rows,
        "minValues": least,
        "maxValues": greatest,
        "nullCount": dict.fromkeys(least, 0),
    }


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):  # exact to the ms, as all times of toc
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value
