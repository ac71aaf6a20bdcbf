"""Reads ended jobs, for the archive.

There is no index on the time when a job ended (ADR 12), so a shard is walked by its primary key, in ranges
of a fixed number of rows, live or ended: each statement is short. The statements lock no row. Times are ms
since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import select, text

from toc.domain.ids import lowest_id_at
from toc.domain.job import Status
from toc.store.archive_status import AHEAD_MS, EndedJobWindow
from toc.store.column_types import sql_time_of_ms
from toc.store.databases import Databases
from toc.store.driver_errors import explain_missing_table
from toc.store.schema import JOB, job_table_name
from toc.store.sql_expressions import DayChecksum, SqlExpressions, expressions_of

DAY_MS, HOUR_MS = 86_400_000, 3_600_000

ENDED_STATUSES = tuple(int(status) for status in Status if not status.live)

COLUMNS = (
    "job_id", "biz_id", "type_no", "status", "gmt_create", "gmt_modified", "action_time", "due_time",
    "claim_time", "attempts", "priority", "claim_token", "dedup_key", "biz_text", "tenant", "attribute",
    "result", "trace", "error", "dead_time",
)  # fmt: skip
"""The columns that `EndedJobReader.read_ended_rows` reads; error and dead_time are the dead letter's."""

TIMES = ("gmt_create", "gmt_modified", "action_time", "due_time", "claim_time", "dead_time")
TEXTS = (
    "claim_token", "dedup_key", "biz_text", "tenant", "attribute", "result", "trace", "error",
)  # fmt: skip


class IdRange(NamedTuple):
    """first <= job_id < end"""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class EndedJobReader:
    """Reads ended jobs. Raises StoreUnavailable, and SchemaMismatch for a missing table."""

    databases: Databases

    def split_id_range(self, shard: int, ids: IdRange, rows: int) -> Iterator[IdRange]:
        """Splits a range of ids into ranges with `rows` rows each; the last range may have fewer."""
        first, routing = ids.first, self.databases.routing
        while True:
            query = (
                select(JOB.c.job_id)
                .where(JOB.c.job_id >= first, JOB.c.job_id < ids.end)
                .order_by(JOB.c.job_id)
                .offset(rows)
                .limit(1)
            )
            with explain_missing_table(routing.database_index(shard), job_table_name(shard)):
                found = self.databases.select(query, shard)
            if not found:
                yield IdRange(first, ids.end)
                return
            ((end,),) = found
            yield IdRange(first, end)
            first = end

    def read_ended_rows(
        self, shard: int, ids: IdRange, window: EndedJobWindow
    ) -> Sequence[Sequence[Any]]:
        """Reads the `COLUMNS` of the jobs that ended within the window, ordered by id."""
        return self._select_in_window(shard, _ended_rows_sql, ids, window)

    def read_day_checksums(
        self, shard: int, ids: IdRange, window: EndedJobWindow
    ) -> list[DayChecksum]:
        """Reads, by day, the number and the checksum of the jobs that ended within the window."""
        return [
            DayChecksum(*map(int, row))
            for row in self._select_in_window(shard, _checksums_sql, ids, window)
        ]

    def _select_in_window(
        self,
        shard: int,
        sql: Callable[[SqlExpressions], str],
        ids: IdRange,
        window: EndedJobWindow,
    ) -> Sequence[Any]:
        database = self.databases.database_of_shard(shard)
        dead = database.engine.dialect.identifier_preparer.format_table(database.dead)
        tables = {"job": database.job_table_name(shard), "dead": dead}
        statement = text(sql(expressions_of(database)).format(**tables))
        values = {
            "first": ids.first,
            "end": ids.end,
            "since": sql_time_of_ms(window.since_ms),
            "until": sql_time_of_ms(window.until_ms),
        }
        with explain_missing_table(database.index, job_table_name(shard)):
            return database.run_read(lambda connection: connection.execute(statement, values).all())


def possible_ids_of_ended(window: EndedJobWindow) -> IdRange:
    """The ids that jobs can have that ended within the window. Reads nothing."""
    return IdRange(0, window.id_upper_bound)


def possible_ids_of_created(window: EndedJobWindow) -> IdRange:
    """The ids that jobs created within the window can have, if no clock is wrong by more than AHEAD_MS."""
    return IdRange(lowest_id_at(window.since_ms - AHEAD_MS), window.id_upper_bound)


# ---- SQL as text: aggregates over expressions that each kind of server writes in its own way


_FROM = "FROM {job} AS j"
_WITH_LETTER = (
    f"{_FROM} LEFT JOIN {{dead}} AS d ON j.status = {Status.DEAD} AND d.job_id = j.job_id"
)
_RANGE = "WHERE j.job_id >= :first AND j.job_id < :end"
_ENDED = (
    f"{_RANGE} AND j.status IN ({', '.join(map(str, ENDED_STATUSES))}) "
    "AND j.gmt_modified >= :since AND j.gmt_modified < :until"
)


def _column_expressions(of: SqlExpressions) -> dict[str, str]:
    found = {}
    for name in COLUMNS:
        column = f"{'d' if name in ('error', 'dead_time') else 'j'}.{name}"
        found[name] = of.ms.format(column) if name in TIMES else column
    return found | {"biz_id": of.unsigned.format("j.biz_id")}


def _ended_rows_sql(of: SqlExpressions) -> str:
    columns = ", ".join(_column_expressions(of).values())
    return f"SELECT {columns} {_WITH_LETTER} {_ENDED} ORDER BY j.job_id"


def _checksums_sql(of: SqlExpressions) -> str:
    columns = _column_expressions(of)
    day = of.whole.format(columns["gmt_modified"], DAY_MS)
    return (
        f"SELECT {day} AS ended_day, COUNT(*), SUM({of.crc32_of_row(columns, TEXTS)}) "
        f"{_WITH_LETTER} {_ENDED} GROUP BY ended_day"
    )
