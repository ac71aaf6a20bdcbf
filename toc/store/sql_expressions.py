"""SQL expressions that MySQL and SQLite write in different ways, as text; and the checksum of a row.

For statements whose aggregates SQLAlchemy cannot express. MariaDB writes all of them as MySQL does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    exceeds: str  # how many of the bounds {1} the number {0} exceeds, or one term of that
    process: str  # "host:pid", at the beginning of a claim_token
    wait_for_writers: (
        str  # after a SELECT: it waits for open transactions that have written its rows
    )

    def bucket(self, number: str, bounds: Sequence[int]) -> str:
        """How many of the ascending `bounds` a number exceeds."""
        if "INTERVAL" in self.exceeds:
            return self.exceeds.format(number, ", ".join(str(bound + 1) for bound in bounds))
        return " + ".join(self.exceeds.format(number, bound) for bound in bounds)

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
    exceeds="INTERVAL({0}, {1})",
    process="SUBSTRING_INDEX({0}, ':', 2)",
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
    exceeds="({0} > {1})",
    # SQLite has no SUBSTRING_INDEX.
    process="substr({0}, 1, instr({0}, ':') + instr(substr({0}, instr({0}, ':') + 1) || ':', ':') - 1)",
    wait_for_writers="",  # one transaction writes at a time, so the numbers of rows commit in order
)


def expressions_of(database: Database) -> SqlExpressions:
    """The expressions as the database's server writes them."""
    return SQLITE_EXPRESSIONS if database.sqlite else MYSQL_EXPRESSIONS
