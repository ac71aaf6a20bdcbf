"""What the databases say: every row of every shard, read at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy import select

from toc.domain.job import Status
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings
from toc.store.databases import Database, Databases, execute_on
from toc.store.schema import JOB


class Row(NamedTuple):
    status: Status
    attempts: int


@contextmanager
def connected(settings: Settings) -> Iterator[Databases]:
    """The databases of the settings, with toc's own connection options."""
    databases = Databases(
        settings.databases,
        settings.routing,
        SystemClock(),
        pool_size=settings.pool_size,
        connect_timeout_s=settings.connect_timeout_s,
        read_timeout_s=settings.read_timeout_s,
    )
    try:
        yield databases
    finally:
        databases.close()


def all_rows(databases: Databases) -> dict[int, Row]:
    """Every job by its id. For runs of a size that fits into memory."""
    found: dict[int, Row] = {}
    for database in databases:
        for shard in database.shards:
            for job_id, status, attempts in _rows_of(database, shard):
                found[job_id] = Row(Status(status), attempts)
    return found


def _rows_of(database: Database, shard: int) -> list[tuple[int, int, int]]:
    query = select(JOB.c.job_id, JOB.c.status, JOB.c.attempts)
    return database.run(lambda c: [tuple(row) for row in execute_on(c, shard, query)])


def dead_letters(databases: Databases) -> set[int]:
    """The ids of all dead letters."""
    found: set[int] = set()
    for database in databases:
        query = select(database.dead.c.job_id)
        found.update(database.run(lambda c, query=query: c.execute(query).scalars().all()))  # type: ignore[misc]
    return found
