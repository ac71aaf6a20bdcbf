"""Every row, once: what the databases say at the end of a run. Walks the primary key in short reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Select, select

from toc.domain.job import Status
from toc.store.databases import Database, Databases, execute_on
from toc.store.rows import status_from_number
from toc.store.schema import JOB

PAGE_ROWS = 5000
c = JOB.c


class FinalRow(NamedTuple):
    """`token`: the last claim's, None for a job that was never claimed."""

    job_id: int
    status: Status
    attempts: int
    action_ms: int
    token: str | None
    dead_letter: bool


def final_rows(databases: Databases) -> Iterator[FinalRow]:
    """All jobs of all shards. Raises StoreUnavailable."""
    for database in databases:
        for shard in database.shards:
            yield from _rows_of(database, shard)


def _rows_of(database: Database, shard: int) -> Iterator[FinalRow]:
    dead = database.dead.c.job_id
    after = -1
    while True:
        query = (
            select(c.job_id, c.status, c.attempts, c.action_time, c.claim_token, dead)
            .select_from(JOB.outerjoin(database.dead, dead == c.job_id))
            .where(c.job_id > after)
            .order_by(c.job_id)
            .limit(PAGE_ROWS)
        )
        rows = _read(database, shard, query)
        for job_id, status, attempts, action_ms, token, letter in rows:
            yield FinalRow(
                job_id, status_from_number(status), attempts, action_ms, token, letter is not None
            )
        if len(rows) < PAGE_ROWS:
            return
        after = rows[-1][0]


def _read(database: Database, shard: int, query: Select[Any]) -> Sequence[Any]:
    return database.read(lambda connection: execute_on(connection, shard, query).all())
