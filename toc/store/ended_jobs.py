"""Jobs that have ended, for the archive and for statistics: read, counted, summed up by the database.

There is no index on "when it ended" (ADR 12), so a shard is walked by its primary key, in pieces of so
many rows of any kind: each statement is short, wherever the ended ones lie. Nothing here locks a row.
Times are ms since 1970 UTC.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, select, text

from toc.domain.ids import first_id_of
from toc.domain.job import Status
from toc.store.archive_status import AHEAD_MS, TimeWindow
from toc.store.bulk_update import explain_missing_table
from toc.store.columns import sql_time
from toc.store.databases import Databases, execute_on
from toc.store.schema import JOB, job_table_name

DAY_MS, HOUR_MS = 86_400_000, 3_600_000

BOUNDS_MS = (
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000,
    100_000, 200_000, 500_000, 1_000_000, 2_000_000, 3_600_000,
)  # fmt: skip
"""The upper bounds of buckets of lateness, inclusive. One more bucket, without a bound, follows them."""

COLUMNS = (
    "job_id", "biz_id", "type_no", "status", "gmt_create", "gmt_modified", "action_time", "due_time",
    "claim_time", "attempts", "priority", "claim_token", "dedup_key", "biz_text", "tenant", "attribute",
    "result", "trace", "error", "dead_time",
)  # fmt: skip
"""The columns that `EndedJobs.rows` reads, in order. The last two: of the dead letter, or None."""

TIMES = ("gmt_create", "gmt_modified", "action_time", "due_time", "claim_time", "dead_time")
TEXTS = (
    "claim_token", "dedup_key", "biz_text", "tenant", "attribute", "result", "trace", "error",
)  # fmt: skip


class IdRange(NamedTuple):
    """first <= job_id < end"""

    first: int
    end: int


class DayChecksum(NamedTuple):
    """`crc`: the sum of the rows' CRC-32. `day`: when they ended, in days since 1970."""

    day: int
    rows: int
    crc: int


class EndedCount(NamedTuple):
    """Jobs of one kind. `day`: when they ended, `hour`: of their action_time; days and hours since 1970.

    bucket: how many of BOUNDS_MS their lateness exceeds; None: it says nothing, for they were tried
    more than once, or never. late_ms: its sum.
    """

    day: int
    hour: int
    type_no: int
    status: int
    bucket: int | None
    jobs: int
    retried: int
    late_ms: int
    late_ms_max: int


class CreatedCount(NamedTuple):
    """Jobs made in one hour (since 1970), of one type."""

    hour: int
    type_no: int
    jobs: int


@dataclass(frozen=True, slots=True)
class EndedJobs:
    """All statements. Each raises StoreUnavailable, and SchemaMismatch for a table that is not there."""

    databases: Databases

    def split_range(self, shard: int, ids: IdRange, rows: int) -> Iterator[IdRange]:
        """Cuts a range of ids into ranges of so many rows; the last one has what is left."""
        first = ids.first
        while True:
            query = (
                select(JOB.c.job_id)
                .where(JOB.c.job_id >= first, JOB.c.job_id < ids.end)
                .order_by(JOB.c.job_id)
                .offset(rows)
                .limit(1)
            )
            with self._explain_missing_table(shard):
                end = self.databases.of_shard(shard).read(
                    lambda connection, query=query: execute_on(connection, shard, query).scalar()  # type: ignore[misc]
                )
            if end is None:
                yield IdRange(first, ids.end)
                return
            yield IdRange(first, end)
            first = end

    def ended_rows(self, shard: int, ids: IdRange, window: TimeWindow) -> Sequence[Sequence[Any]]:
        """The rows that ended within, whole: `COLUMNS`, in the order of ids."""
        return self._select(shard, _rows_sql, ids, window)

    def checksums(self, shard: int, ids: IdRange, window: TimeWindow) -> list[DayChecksum]:
        """Count and checksum of the same rows."""
        return [DayChecksum(*map(int, row)) for row in self._select(shard, _sums_sql, ids, window)]

    def count_ended(self, shard: int, ids: IdRange, window: TimeWindow) -> list[EndedCount]:
        """How they went."""
        return [
            EndedCount._make(value if value is None else int(value) for value in row)
            for row in self._select(shard, _counts_sql, ids, window)
        ]

    def count_created(self, shard: int, ids: IdRange, window: TimeWindow) -> list[CreatedCount]:
        """Jobs of any status that were made within (gmt_create)."""
        return [
            CreatedCount(*map(int, row)) for row in self._select(shard, _created_sql, ids, window)
        ]

    def _select(
        self, shard: int, sql: Callable[[bool], str], ids: IdRange, window: TimeWindow
    ) -> Sequence[Any]:
        database = self.databases.of_shard(shard)
        dead = database.engine.dialect.identifier_preparer.format_table(database.dead)
        statement = text(sql(database.sqlite).format(job=database.job_table_name(shard), dead=dead))
        values = {
            "first": ids.first,
            "end": ids.end,
            "since": sql_time(window.since_ms),
            "until": sql_time(window.until_ms),
        }

        def read(connection: Connection) -> Sequence[Any]:
            if database.sqlite:
                _add_crc32_function(connection)
            return connection.execute(statement, values).all()

        with self._explain_missing_table(shard):
            return database.read(read)

    def _explain_missing_table(self, shard: int) -> Any:
        return explain_missing_table(self.databases.of_shard(shard), job_table_name(shard))


def id_range_of_ended(window: TimeWindow) -> IdRange:
    """Where the jobs that ended within can be."""
    return IdRange(0, window.id_end)


def id_range_of_created(window: TimeWindow) -> IdRange:
    """Where the jobs that were made within are, if no clock is off by more than AHEAD_MS."""
    return IdRange(first_id_of(window.since_ms - AHEAD_MS), window.id_end)


# ---- SQL, as text: aggregates over expressions that each kind of server has in its own words


class _MySQLExpressions:
    """And MariaDB. Each takes and gives SQL."""

    @staticmethod
    def ms(time: str) -> str:
        """A DATETIME(3) as ms since 1970."""
        return f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {time}) DIV 1000"

    @staticmethod
    def late(start: str, end: str) -> str:
        """Milliseconds from one time to another; 0 where that is earlier (clocks differ a little)."""
        return f"GREATEST(0, TIMESTAMPDIFF(MICROSECOND, {start}, {end}) DIV 1000)"

    @staticmethod
    def whole(number: str, unit: int) -> str:
        """How many whole units are in a number."""
        return f"{number} DIV {unit}"

    @staticmethod
    def unsigned(number: str) -> str:
        """A BIGINT UNSIGNED, or its digits."""
        return number

    @staticmethod
    def sized(text: str) -> str:
        """A text with its length in bytes before it: then what is joined can be read in one way only."""
        return f"CONCAT(OCTET_LENGTH({text}), '=', {text})"

    @staticmethod
    def crc32(parts: Sequence[str]) -> str:
        """Of the parts in UTF-8, '|' between them and '-' for NULL."""
        joined = ", ".join(f"COALESCE({part}, '-')" for part in parts)
        return f"CRC32(CONVERT(CONCAT_WS('|', {joined}) USING utf8mb4))"

    @staticmethod
    def bucket(number: str) -> str:
        """How many of BOUNDS_MS it exceeds."""
        return f"INTERVAL({number}, {', '.join(str(bound + 1) for bound in BOUNDS_MS)})"


class _SQLiteExpressions(_MySQLExpressions):
    @staticmethod
    def ms(time: str) -> str:
        return f"(strftime('%s', {time}) * 1000 + substr({time}, 21, 3))"

    @staticmethod
    def late(start: str, end: str) -> str:
        return f"MAX(0, {_SQLiteExpressions.ms(end)} - {_SQLiteExpressions.ms(start)})"

    @staticmethod
    def whole(number: str, unit: int) -> str:
        return f"{number} / {unit}"

    @staticmethod
    def unsigned(number: str) -> str:
        return f"printf('%llu', {number})"

    @staticmethod
    def sized(text: str) -> str:
        return f"length(CAST({text} AS BLOB)) || '=' || {text}"

    @staticmethod
    def crc32(parts: Sequence[str]) -> str:
        joined = " || '|' || ".join(f"COALESCE({part}, '-')" for part in parts)
        return f"toc_crc32({joined})"

    @staticmethod
    def bucket(number: str) -> str:
        return " + ".join(f"({number} > {bound})" for bound in BOUNDS_MS)


def _add_crc32_function(connection: Connection) -> None:
    raw: Any = connection.connection.driver_connection
    raw.create_function(
        "toc_crc32", 1, lambda joined: zlib.crc32(joined.encode()), deterministic=True
    )


_FROM = "FROM {job} AS j"
_WITH_LETTER = (
    f"{_FROM} LEFT JOIN {{dead}} AS d ON j.status = {Status.DEAD} AND d.job_id = j.job_id"
)
_RANGE = "WHERE j.job_id >= :first AND j.job_id < :end"
_ENDED = (
    f"{_RANGE} AND j.status IN ({', '.join(str(int(s)) for s in Status if not s.live)}) "
    "AND j.gmt_modified >= :since AND j.gmt_modified < :until"
)


def _column_expressions(words: type[_MySQLExpressions]) -> dict[str, str]:
    found = {}
    for name in COLUMNS:
        column = f"{'d' if name in ('error', 'dead_time') else 'j'}.{name}"
        found[name] = words.ms(column) if name in TIMES else column
    return found | {"biz_id": words.unsigned("j.biz_id")}


def _expressions_for(sqlite: bool) -> type[_MySQLExpressions]:
    return _SQLiteExpressions if sqlite else _MySQLExpressions


@cache
def _rows_sql(sqlite: bool) -> str:
    columns = ", ".join(_column_expressions(_expressions_for(sqlite)).values())
    return f"SELECT {columns} {_WITH_LETTER} {_ENDED} ORDER BY j.job_id"


@cache
def _sums_sql(sqlite: bool) -> str:
    words = _expressions_for(sqlite)
    columns = _column_expressions(words)
    day = words.whole(columns["gmt_modified"], DAY_MS)
    parts = [words.sized(x) if name in TEXTS else x for name, x in columns.items()]
    return (
        f"SELECT {day} AS ended_day, COUNT(*), SUM({words.crc32(parts)}) "
        f"{_WITH_LETTER} {_ENDED} GROUP BY ended_day"
    )


@cache
def _counts_sql(sqlite: bool) -> str:
    words = _expressions_for(sqlite)
    day = words.whole(words.ms("j.gmt_modified"), DAY_MS)
    hour = words.whole(words.ms("j.action_time"), HOUR_MS)
    late = words.late("j.action_time", "j.claim_time")
    measured = f"j.status = {Status.DONE} AND j.attempts = 1 AND j.claim_time IS NOT NULL"
    return (
        f"SELECT {day} AS ended_day, {hour} AS action_hour, j.type_no, j.status, "
        f"CASE WHEN {measured} THEN {words.bucket(late)} END AS bucket, COUNT(*), SUM(j.attempts > 1), "
        f"COALESCE(SUM(CASE WHEN {measured} THEN {late} END), 0), "
        f"COALESCE(MAX(CASE WHEN {measured} THEN {late} END), 0) "
        f"{_FROM} {_ENDED} GROUP BY ended_day, action_hour, j.type_no, j.status, bucket"
    )


@cache
def _created_sql(sqlite: bool) -> str:
    words = _expressions_for(sqlite)
    hour = words.whole(words.ms("j.gmt_create"), HOUR_MS)
    return (
        f"SELECT {hour} AS made_hour, j.type_no, COUNT(*) {_FROM} {_RANGE} "
        "AND j.gmt_create >= :since AND j.gmt_create < :until GROUP BY made_hour, j.type_no"
    )
