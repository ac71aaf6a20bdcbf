"""What retention has deleted: a row in `toc_purge` for each UTC day, type and status.

The rows outlive the jobs, so that somebody who asks for a job that is gone can be told when jobs of its
age were purged. first_id and last_id enclose the ids that a row counts; others lie between them, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sqlalchemy import Connection, delete, func, select

from toc.domain.job import Status
from toc.store.databases import Database
from toc.store.rows import status_from_number


class PurgeCount(NamedTuple):
    """How many jobs of a type and status were deleted on a UTC day, and between which ids they were."""

    day: str
    biz_type: str
    status: Status
    jobs: int
    first_id: int
    last_id: int


@dataclass(frozen=True, slots=True)
class PurgesAround:
    """The counts whose ids enclose an id: `counts` has the closest ones, closest first; `days`: of all.

    since: the first day of which anything is counted; None: nothing was ever counted.
    """

    counts: Sequence[PurgeCount]
    days: int
    since: str | None


class DeletedRow(Protocol):
    """A row that was deleted."""

    @property
    def job_id(self) -> int: ...
    @property
    def type_no(self) -> int: ...
    @property
    def status(self) -> int: ...


def add_counts(connection: Connection, database: Database, rows: Iterable[DeletedRow]) -> None:
    """Adds deleted rows to today's counts, in the caller's transaction.

    By key in one order: nodes that purge shards of the same database wait for each other, and never
    in a circle.
    """
    ids: dict[tuple[int, int], list[int]] = {}
    for row in rows:
        ids.setdefault((row.type_no, row.status), []).append(row.job_id)
    if not ids:
        return
    values: list[int] = []
    for (type_no, status), some in sorted(ids.items()):
        values += [type_no, status, len(some), min(some), max(some)]
    connection.exec_driver_sql(_upsert_sql(database, len(ids)), tuple(values))


def _upsert_sql(database: Database, keys: int) -> str:
    """As text: SQLAlchemy would compile an INSERT of many rows anew for each page, for 3 ms."""
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
        else:  # which MySQL is about to give up
            then, new = f"AS new {then}", "new.{}"
    return (
        f"INSERT INTO {table} ({columns}) VALUES {', '.join([row] * keys)} {then} "  # noqa: S608
        f"jobs = {table}.jobs + {new.format('jobs')}, "
        f"first_id = {least}({table}.first_id, {new.format('first_id')}), "
        f"last_id = {most}({table}.last_id, {new.format('last_id')})"
    )


def delete_oldest_day(database: Database, before: str) -> bool:
    """Deletes the counts of the oldest day, if it is before a day; whether there may be more."""
    table = database.purge
    oldest = database.read(lambda connection: connection.scalar(select(func.min(table.c.day))))
    if oldest is None or oldest >= before:
        return False
    database.run_autocommit(lambda x: x.execute(delete(table).where(table.c.day == oldest)))
    return True


def read_purges_around(database: Database, job_id: int, limit: int) -> PurgesAround:
    """What was deleted among jobs made before and after an id; the `limit` closest counts."""
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

    def read(connection: Connection) -> PurgesAround:
        counts = [
            PurgeCount(day, name or f"number {type_no}", status_from_number(status), *rest)
            for day, type_no, name, status, *rest in connection.execute(closest)
        ]
        since = connection.scalar(select(func.min(its.day)))
        found = connection.scalar(days) or 0
        return PurgesAround(counts, found, since)

    return database.read(read)
