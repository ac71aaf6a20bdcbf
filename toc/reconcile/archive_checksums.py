"""Count and checksum of rows, in files and in databases: they must be equal before files are committed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from toc.store.column_types import sql_time_of_ms
from toc.store.ended_jobs import DAY_MS

WRONG_NAMES = -1
"""Instead of a count: rows of which the name of the type or of the status, or the database, is wrong."""

_TEXT = pa.large_string()  # the texts of a batch may be longer than 2 GB


NO_SHARD = -1
"""The shard of rows that belong to a database, not to a shard."""


class DayChecksums(dict[tuple[int, int], tuple[int, int]]):
    """(shard, day since 1970) → (number of rows, sum of the CRC-32 of these rows)."""

    @property
    def row_count(self) -> int:
        return sum(rows for rows, _ in self.values())

    def add_rows(self, shard: int, day: int, rows: int, crc: int) -> None:
        """Adds rows. What has wrong names keeps the count WRONG_NAMES."""
        before, sum_before = self.get((shard, day), (0, 0))
        wrong = WRONG_NAMES in {before, rows}
        self[shard, day] = (WRONG_NAMES if wrong else before + rows, sum_before + crc)

    def add_all(self, other: DayChecksums) -> None:
        """Adds the rows of another one."""
        for (shard, day), (rows, crc) in other.items():
            self.add_rows(shard, day, rows, crc)


def checksums_of_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> list[int]:
    """The CRC-32 of each row, of the same text as `store.sql_expressions` makes.

    Raises ArrowInvalid for a time with a fraction of a millisecond: no database of toc has one.
    """
    parts = [pc.fill_null(_column_as_text(batch.column(name)), "-") for name in columns]
    texts = pc.binary_join_element_wise(*parts, pa.scalar("|", _TEXT))
    return [zlib.crc32(text) for text in texts.cast(pa.large_binary()).to_pylist()]


def _column_as_text(column: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    if pa.types.is_string(column.type):
        texts = column.cast(_TEXT)
        sizes = pc.binary_length(texts).cast(_TEXT)
        return pc.binary_join_element_wise(sizes, texts, pa.scalar("=", _TEXT))
    return column.cast(_TEXT)


def sum_by_number(numbers: pa.Array, checksums: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(number, rows, sum of checksums) for each number of a column."""
    table = pa.table({"number": numbers, "crc": pa.array(checksums, pa.int64())})
    sums = table.group_by("number").aggregate([("crc", "count"), ("crc", "sum")])
    columns: list[list[Any]] = [
        sums.column(name).to_pylist() for name in ("number", "crc_count", "crc_sum")
    ]
    yield from zip(*columns, strict=True)


def describe_checksum_differences(archive: DayChecksums, database: DayChecksums) -> Iterator[str]:
    """A line of text for each shard and day in which the checksums differ."""
    for shard, day in sorted(archive.keys() | database.keys()):
        ours, theirs = archive.get((shard, day)), database.get((shard, day))
        if ours != theirs:
            place = "" if shard == NO_SHARD else f"shard {shard}, "
            yield (
                f"{place}{sql_time_of_ms(day * DAY_MS)[:10]}: "
                f"the archive has {_describe_checksum(ours)}, "
                f"the database {_describe_checksum(theirs)}"
            )


def _describe_checksum(found: tuple[int, int] | None) -> str:
    rows, crc = found or (0, 0)
    return "rows with wrong names" if rows == WRONG_NAMES else f"{rows:,} rows (checksum {crc})"
