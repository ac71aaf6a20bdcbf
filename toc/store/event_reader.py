"""Reads events in the order of their ids, for the archive: rows, checksums, and the id at a time.

The table of events has no index on the time, but ids ascend with the time, except where a transaction was
open for long or a clock was wrong. All statements are ranges of the primary key. Times are ms since 1970 UTC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Select, select, text

from toc.domain.ids import routing_bits_of
from toc.domain.routing import Routing
from toc.errors import StoreUnavailable, TocError
from toc.store.databases import Database
from toc.store.driver_errors import LOCK_ERRORS, error_number, explain_missing_table
from toc.store.ended_jobs import DAY_MS
from toc.store.schema import JOB, job_table_name
from toc.store.sql_expressions import DayChecksum, SqlExpressions, expressions_of

COLUMNS = (
    "event_id", "event_time", "job_id", "what", "from_status", "to_status", "attempts", "claim_time",
    "actor", "reason", "run_id", "related_job_id", "account",
)  # fmt: skip
"""The columns that `EventReader.read_rows` reads: all that the table has."""

TEXTS = ("what", "actor", "reason", "run_id", "account")
EVENT_TABLE = "toc_event"


class EventRange(NamedTuple):
    """first <= event_id < end"""

    first: int
    end: int


class LastEvent(NamedTuple):
    """The event with the highest id."""

    event_id: int
    event_ms: int


class EventsNotCommitted(TocError):
    """An open transaction has written an old event that nobody else can see yet."""


@dataclass(frozen=True, slots=True)
class EventReader:
    """Reads the events of one database. Raises StoreUnavailable, and SchemaMismatch for a missing table."""

    database: Database

    def read_last(self) -> LastEvent | None:
        """The event with the highest id; None: there are no events."""
        event = self.database.event.c
        query = select(event.event_id, event.event_time).order_by(event.event_id.desc()).limit(1)
        rows = self._select(query)
        return LastEvent._make(rows[0]) if rows else None

    def find_first_since(self, first: int, since_ms: int, now_ms: int) -> int:
        """The lowest id from `first` on from which events are of `since_ms` or later, by bisection.

        Greater than the highest id if all events are older. An event with a later time than `now_ms` does not
        count: a clock was ahead. If the times do not ascend with the ids, the result is an id between an
        older event and one that is not older.
        """
        last = self.read_last()
        older, younger = first - 1, max(first, last.event_id + 1 if last else 0)
        while younger - older > 1:
            middle = (older + younger) // 2
            found = self._next_event(middle, now_ms)
            if found is None or found.event_id >= younger or found.event_ms >= since_ms:
                younger = middle
            else:
                older = found.event_id
        return younger

    def split_range(self, ids: EventRange, rows: int) -> Iterator[EventRange]:
        """Splits a range of ids into ranges with `rows` rows each; the last range may have fewer."""
        event_id, first = self.database.event.c.event_id, ids.first
        while True:
            query = (
                select(event_id)
                .where(event_id >= first, event_id < ids.end)
                .order_by(event_id)
                .offset(rows)
                .limit(1)
            )
            found = self._select(query)
            if not found:
                yield EventRange(first, ids.end)
                return
            ((end,),) = found
            yield EventRange(first, end)
            first = end

    def read_rows(self, ids: EventRange) -> Sequence[Sequence[Any]]:
        """Reads the `COLUMNS` of the events of a range, ordered by id."""
        return self._select_by_text(_rows_sql, ids)

    def read_day_checksums(self, ids: EventRange) -> list[DayChecksum]:
        """Reads, by day, the number and the checksum of the events of a range.

        Waits for open transactions that have written events of the range, so that none can appear later.
        Raises EventsNotCommitted if such a transaction stays open.
        """
        try:
            rows = self._select_by_text(_checksums_sql, ids)
        except StoreUnavailable as error:
            cause: Any = error.__cause__
            if error_number(cause) not in LOCK_ERRORS:
                raise
            raise EventsNotCommitted(
                f"database {self.database.index}: an open transaction has changed {EVENT_TABLE} between the "
                f"ids {ids.first} and {ids.end}, whose events are old. End this transaction; the next run "
                "archives these events"
            ) from error
        return [DayChecksum(*map(int, row)) for row in rows]

    def read_type_numbers(self, routing: Routing, job_ids: Collection[int]) -> dict[int, int]:
        """The type_no of the jobs that this database still has, by job_id."""
        by_shard = defaultdict[int, list[int]](list)
        for job_id in set(job_ids):
            by_shard[routing.shard_of_hash(routing_bits_of(job_id))].append(job_id)
        found: dict[int, int] = {}
        for shard, some in by_shard.items():
            if shard in self.database.shards:
                its = self.database.build_id_filter(JOB.c.job_id, sorted(some))
                with explain_missing_table(self.database.index, job_table_name(shard)):
                    rows = self.database.select(
                        select(JOB.c.job_id, JOB.c.type_no).where(its), shard
                    )
                found.update((job_id, type_no) for job_id, type_no in rows)
        return found

    def find_job_with_event(self, job_ids: Collection[int], from_id: int) -> int | None:
        """One of some jobs that has an event with an id from `from_id` on; None: no job has."""
        event = self.database.event.c
        query = select(event.job_id).where(event.job_id.in_(job_ids), event.event_id >= from_id)
        rows = self._select(query.limit(1))
        return rows[0][0] if rows else None

    def _next_event(self, event_id: int, now_ms: int) -> LastEvent | None:
        event = self.database.event.c
        query = (
            select(event.event_id, event.event_time)
            .where(event.event_id >= event_id, event.event_time <= now_ms)
            .order_by(event.event_id)
            .limit(1)
        )
        rows = self._select(query)
        return LastEvent._make(rows[0]) if rows else None

    def _select(self, query: Select[Any]) -> Sequence[Any]:
        with explain_missing_table(self.database.index, EVENT_TABLE):
            return self.database.select(query)

    def _select_by_text(self, sql: Any, ids: EventRange) -> Sequence[Any]:
        table = self.database.engine.dialect.identifier_preparer.format_table(self.database.event)
        statement = text(sql(expressions_of(self.database)).format(event=table))
        values = {"first": ids.first, "end": ids.end}
        with explain_missing_table(self.database.index, EVENT_TABLE):
            return self.database.run_read(
                lambda connection: connection.execute(statement, values).all()
            )


_RANGE = "FROM {event} AS e WHERE e.event_id >= :first AND e.event_id < :end"


def _column_expressions(of: SqlExpressions) -> dict[str, str]:
    found = {name: f"e.{name}" for name in COLUMNS}
    for name in ("job_id", "related_job_id"):
        # SQLite's printf makes '0' of NULL.
        digits = of.unsigned.format(found[name])
        found[name] = f"CASE WHEN {found[name]} IS NOT NULL THEN {digits} END"
    # MySQL's zero dates become 0, as `ms_of_sql_time` makes them.
    event_time = f"COALESCE({of.ms.format('e.event_time')}, 0)"
    return found | {"event_time": event_time, "claim_time": of.ms.format("e.claim_time")}


def _rows_sql(of: SqlExpressions) -> str:
    return f"SELECT {', '.join(_column_expressions(of).values())} {_RANGE} ORDER BY e.event_id"


def _checksums_sql(of: SqlExpressions) -> str:
    columns = _column_expressions(of)
    day = of.whole.format(columns["event_time"], DAY_MS)
    return (
        f"SELECT {day} AS event_day, COUNT(*), SUM({of.crc32_of_row(columns, TEXTS)}) "
        f"{_RANGE} GROUP BY event_day {of.wait_for_writers}"
    )
