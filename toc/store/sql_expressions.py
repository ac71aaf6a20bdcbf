"""SQL expressions that MySQL and SQLite write in different ways, as text; and the checksum of a row.

For statements whose aggregates SQLAlchemy cannot express. MariaDB writes all of them as MySQL does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from toc.store.column_types import millis_of_column
from toc.store.databases import Database


class DayChecksum(NamedTuple):
    """The rows of one UTC day. `crc`: the sum of the CRC-32 of the rows. `day`: counted since 1970."""

    day: int
    rows: int
    crc: int


class SqlExpressions(NamedTuple):
    """Templates of SQL expressions; {0} and {1} stand for their arguments."""

    ms: str  # a DATETIME(3) as ms since 1970
    late_ms: str  # ms from the first time to the second; 0 if the second is earlier (clocks differ)
    whole: str  # an integer division, rounded down
    unsigned: str  # a BIGINT UNSIGNED, or its digits
    sized: str  # length in bytes, '=', text: joined texts stay unambiguous
    crc32: str  # the CRC-32 of texts that are joined by "|", in UTF-8
    between_parts: str
    wait_for_writers: (
        str  # after a SELECT: it waits for open transactions that have written its rows
    )

    def crc32_of_row(self, columns: Mapping[str, str], texts: Collection[str]) -> str:
        """The CRC-32 of a row: `archive_checksums.checksums_of_rows` makes the same text of a row in a file.

        columns: the expressions by name. texts: the names of those that are texts.
        """
        parts = [self.sized.format(x) if name in texts else x for name, x in columns.items()]
        return self.crc32.format(self.between_parts.join(f"COALESCE({x}, '-')" for x in parts))


MYSQL_EXPRESSIONS = SqlExpressions(
    ms=millis_of_column.mysql,
    late_ms="GREATEST(0, TIMESTAMPDIFF(MICROSECOND, {0}, {1}) DIV 1000)",
    whole="{0} DIV {1}",
    unsigned="{0}",
    sized="CONCAT(OCTET_LENGTH({0}), '=', {0})",
    crc32="CRC32(CONVERT(CONCAT_WS('|', {0}) USING utf8mb4))",
    between_parts=", ",
    # FOR SHARE needs only the right to SELECT; MariaDB does not know it.
    wait_for_writers="/*!80000 FOR SHARE */ /*M! LOCK IN SHARE MODE */",
)
SQLITE_EXPRESSIONS = SqlExpressions(
    ms=millis_of_column.sqlite,
    late_ms=f"MAX(0, {millis_of_column.sqlite.replace('{0}', '{1}')} - {millis_of_column.sqlite})",
    whole="{0} / {1}",
    unsigned="printf('%llu', {0})",
    sized="length(CAST({0} AS BLOB)) || '=' || {0}",
    crc32="toc_crc32({0})",
    between_parts=" || '|' || ",
    wait_for_writers="",  # one transaction writes at a time, so the numbers of rows commit in order
)


def expressions_of(database: Database) -> SqlExpressions:
    """The expressions as the database's server writes them."""
    return SQLITE_EXPRESSIONS if database.sqlite else MYSQL_EXPRESSIONS
