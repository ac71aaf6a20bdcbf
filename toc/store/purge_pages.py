"""Deletes ended jobs page by page of the primary key, and counts them.

There is no index on the time when a job ended: such an index would cost every job two more writes. A pass
walks the shard by its primary key instead, from the oldest job on, and stops at jobs that are too young to be
deleted (their ids contain the time of their creation). The pass skips jobs that live for long; such jobs are
few.

`toc_purge` counts the deleted jobs in the transaction that deletes them: by UTC day, type and status, with
the smallest and the largest id. If a row has changed since its page was read, the transaction is rolled back
and repeated with the rows locked and read first, so the counts are exact. The counts are written last: all
nodes write these few rows, so they are locked only for a moment. The counts outlive the jobs: `toc explain`
of a deleted job says when jobs of the same age were deleted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection, and_, delete, exists, func, or_, select

from toc.domain.countdown import COUNTDOWN_KEY
from toc.domain.ids import lowest_id_at
from toc.domain.job import Status
from toc.store.databases import Database, Databases, execute_on_shard
from toc.store.job_rows import status_from_number
from toc.store.schema import JOB

c = JOB.c
# Pairs of type and status in one DELETE: SQLite's conditions have 1,000 terms at most.
KINDS_MAX = 100
_ENDED = [int(status) for status in Status if not status.live]
_CANDIDATE = (
    c.job_id, c.type_no, c.status, c.gmt_modified,
    func.coalesce(c.dedup_key.startswith(COUNTDOWN_KEY), False),
)  # fmt: skip


class PurgeCandidate(NamedTuple):
    """An old job, deleted if it has ended. changed_ms: time of the last change, by the server's clock.

    has_arrivals: it is a countdown, whose rows in `toc_arrival` go with it.
    """

    job_id: int
    type_no: int
    status: int
    changed_ms: int
    has_arrivals: bool = False

    @property
    def has_ended(self) -> bool:
        return self.status in _ENDED

    @property
    def is_dead(self) -> bool:
        return self.status == Status.DEAD


class PurgeCount(NamedTuple):
    """How many jobs of a type and status were deleted on a UTC day, and their smallest and largest id."""

    day: str
    biz_type: str
    status: Status
    jobs: int
    first_id: int
    last_id: int


@dataclass(frozen=True, slots=True)
class PurgesAroundId:
    """The purge counts whose first and last id enclose an id. `counts`: the closest counts, closest first.

    days: the number of days with such counts. since: the first day with any count; None: there is no count.
    """

    counts: Sequence[PurgeCount]
    days: int
    since: str | None


class EventAges(NamedTuple):
    """Events before `before_ms` are old, those between it and `now_ms` young. In ms since 1970."""

    before_ms: int
    now_ms: int


class EventPage(NamedTuple):
    """How many events of a page were deleted, and how many old ones were not.

    after: that of the next page; None: all later events are young.
    """

    deleted: int
    held: int
    after: int | None


@dataclass(frozen=True, slots=True)
class PurgePages:
    """Reads and deletes old jobs and events for a purger."""

    databases: Databases

    def read_purge_page(
        self, shard: int, after: int, made_before_ms: int, limit: int
    ) -> list[PurgeCandidate]:
        """Reads jobs of a shard that were created before `made_before_ms`, by id, from above `after` on."""
        query = (
            select(*_CANDIDATE)
            .where(c.job_id > after, c.job_id < lowest_id_at(made_before_ms))
            .order_by(c.job_id)
            .limit(limit)
        )
        return [PurgeCandidate._make(row) for row in self.databases.select(query, shard)]

    def delete_unchanged_jobs(self, shard: int, rows: Sequence[PurgeCandidate]) -> int:
        """Deletes the ended rows that are unchanged since they were read; returns how many."""
        database = self.databases.database_of_shard(shard)
        asked = sorted(rows)
        try:
            return database.run_transaction(partial(_delete_all_or_none, database, shard, asked))
        except _RowsChangedError:
            return database.run_transaction(partial(_lock_and_delete, database, shard, asked))

    def delete_old_events(
        self,
        database: Database,
        after: int,
        ages: EventAges,
        limit: int,
        may_delete: Callable[[int, int], bool],
    ) -> EventPage:
        """Reads the next `limit` events by id, above `after`, and deletes the old ones of them.

        may_delete(event_id, event_ms): whether an old event may be deleted. (An event with a future time is
        ignored here: a clock was ahead.)
        """
        event = database.event
        query = (
            select(event.c.event_id, event.c.event_time)
            .where(event.c.event_id > after)
            .order_by(event.c.event_id)
            .limit(limit)
        )
        rows = database.select(query)
        old = [(event_id, at_ms) for event_id, at_ms in rows if at_ms < ages.before_ms]
        gone = [event_id for event_id, at_ms in old if may_delete(event_id, at_ms)]
        if gone:
            database.execute(delete(event).where(event.c.event_id.in_(gone)))
        younger = not old and any(ages.before_ms <= at_ms <= ages.now_ms for _, at_ms in rows)
        more = len(rows) == limit and not younger
        return EventPage(len(gone), len(old) - len(gone), rows[-1][0] if more else None)


class _RowsChangedError(Exception):
    """Some rows may have changed since they were read: roll back, and lock the rows first."""


def _delete_all_or_none(
    database: Database, shard: int, rows: Sequence[PurgeCandidate], connection: Connection
) -> int:
    """Deletes all of these rows or none, so that they can be counted without being read again."""
    kinds = _ids_by_type_and_status(rows)
    if len(kinds) > KINDS_MAX:
        raise _RowsChangedError
    # Each row must have the type and status under which it will be counted.
    as_read = or_(
        *(
            and_(database.build_id_filter(c.job_id, ids), c.type_no == type_no, c.status == status)
            for (type_no, status), ids in kinds.items()
        )
    )
    # No live job is deleted, whatever the caller passes (I1).
    ended = c.status.in_(_ENDED)
    change = delete(JOB).where(as_read, ended, c.gmt_modified <= _newest_change_ms(rows))
    if execute_on_shard(connection, shard, change).rowcount < len(rows):
        raise _RowsChangedError
    _delete_dead_letters(database, shard, rows, connection)
    _delete_arrivals(database, rows, connection)
    _add_purge_counts(connection, database, rows)
    return len(rows)


def _lock_and_delete(
    database: Database, shard: int, rows: Sequence[PurgeCandidate], connection: Connection
) -> int:
    """Locks and reads the rows again, and deletes those that are unchanged."""
    database.lock_sqlite_file(connection)
    query = select(*_CANDIDATE).where(
        database.build_id_filter(c.job_id, [row.job_id for row in rows]),
        c.status.in_(_ENDED),
        c.gmt_modified <= _newest_change_ms(rows),
    )
    found = execute_on_shard(connection, shard, query.with_for_update()).all()
    left = [PurgeCandidate._make(row) for row in found]
    if left:
        mine = database.build_id_filter(c.job_id, [row.job_id for row in left])
        execute_on_shard(connection, shard, delete(JOB).where(mine))
        _delete_arrivals(database, left, connection)
    _delete_dead_letters(database, shard, rows, connection)
    _add_purge_counts(connection, database, left)
    return len(left)


def _newest_change_ms(rows: Sequence[PurgeCandidate]) -> int:
    """The time of the newest change. A dead job that was redriven or discarded later is live, or has
    ended later.
    """
    return max(row.changed_ms for row in rows)


def _delete_dead_letters(
    database: Database, shard: int, rows: Sequence[PurgeCandidate], connection: Connection
) -> None:
    letters = database.dead
    dead = [row.job_id for row in rows if row.is_dead]
    if dead:
        gone = ~exists(select(c.job_id).where(c.job_id == letters.c.job_id))
        mine = letters.c.job_id.in_(dead)
        execute_on_shard(connection, shard, delete(letters).where(mine, gone))


def _delete_arrivals(
    database: Database, rows: Sequence[PurgeCandidate], connection: Connection
) -> None:
    countdowns = [row.job_id for row in rows if row.has_arrivals]
    if countdowns:
        its = database.arrival
        connection.execute(delete(its).where(database.build_id_filter(its.c.job_id, countdowns)))


# ---- counts


def _add_purge_counts(
    connection: Connection, database: Database, rows: Sequence[PurgeCandidate]
) -> None:
    """Adds deleted rows to today's counts, in the caller's transaction.

    The counts are written in the order of their keys, so nodes that purge shards of one database wait for
    each other, but never deadlock.
    """
    if not rows:
        return
    kinds = _ids_by_type_and_status(rows)
    values: list[int] = []
    for (type_no, status), ids in sorted(kinds.items()):
        values += [type_no, status, len(ids), min(ids), max(ids)]
    connection.exec_driver_sql(_upsert_counts_sql(database, len(kinds)), tuple(values))


def _ids_by_type_and_status(rows: Sequence[PurgeCandidate]) -> dict[tuple[int, int], list[int]]:
    """The ids of rows by (type_no, status)."""
    kinds: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in rows:
        kinds[row.type_no, row.status].append(row.job_id)
    return kinds


def _upsert_counts_sql(database: Database, keys: int) -> str:
    """The INSERT as text: SQLAlchemy would compile an INSERT of many rows for each page, in 3 ms."""
    dialect = database.engine.dialect
    table = dialect.identifier_preparer.format_table(database.purge)
    columns = "day, type_no, status, jobs, first_id, last_id"
    if database.sqlite:
        row = "(substr(toc_now(0), 1, 10), ?, ?, ?, ?, ?)"
        then, new = "ON CONFLICT (day, type_no, status) DO UPDATE SET", "excluded.{}"
        least, most = "MIN", "MAX"
    else:
        row = "(UTC_DATE(), %s, %s, %s, %s, %s)"
        then, least, most = "ON DUPLICATE KEY UPDATE", "LEAST", "GREATEST"
        if getattr(dialect, "is_mariadb", False):
            new = "VALUES({})"
        else:  # MySQL has deprecated VALUES()
            then, new = f"AS new {then}", "new.{}"
    return (
        f"INSERT INTO {table} ({columns}) VALUES {', '.join([row] * keys)} {then} "  # noqa: S608
        f"jobs = {table}.jobs + {new.format('jobs')}, "
        f"first_id = {least}({table}.first_id, {new.format('first_id')}), "
        f"last_id = {most}({table}.last_id, {new.format('last_id')})"
    )


def delete_oldest_counts(database: Database, before: str) -> bool:
    """Deletes the counts of the oldest day if that day is before `before`. True: there may be more days."""
    table = database.purge
    oldest = database.scalar(select(func.min(table.c.day)))
    if oldest is None or oldest >= before:
        return False
    database.execute(delete(table).where(table.c.day == oldest))
    return True


def read_purges_around(database: Database, job_id: int, limit: int) -> PurgesAroundId:
    """Reads the `limit` closest purge counts whose first and last id enclose `job_id`."""
    its, types = database.purge.c, database.biz_type.c
    encloses = its.first_id <= job_id, its.last_id >= job_id
    closest = (
        select(its.day, its.type_no, types.name, its.status, its.jobs, its.first_id, its.last_id)
        .select_from(database.purge.outerjoin(database.biz_type, types.type_no == its.type_no))
        .where(*encloses)
        .order_by(its.last_id - its.first_id, its.day, its.type_no, its.status)
        .limit(limit)
    )
    days = select(func.count(its.day.distinct())).where(*encloses)

    def read_counts(connection: Connection) -> PurgesAroundId:
        counts = [
            PurgeCount(day, name or f"number {type_no}", status_from_number(status), *rest)
            for day, type_no, name, status, *rest in connection.execute(closest)
        ]
        since = connection.scalar(select(func.min(its.day)))
        found = connection.scalar(days) or 0
        return PurgesAroundId(counts, found, since)

    return database.run_read(read_counts)
