"""Reads all jobs of all shards at the end of a run, in pages of the primary key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlalchemy import select

from toc.domain.job import Status
from toc.store.databases import Databases
from toc.store.job_rows import status_from_number
from toc.store.schema import JOB

PAGE_ROWS = 5000
c = JOB.c


class FinalRow(NamedTuple):
    """A job as it is in the database.

    token: of the last claim; None: the job was never claimed. dead_letter: whether the
    job has a dead letter.
    """

    job_id: int
    status: Status
    attempts: int
    action_ms: int
    token: str | None
    dead_letter: bool


def read_final_rows(databases: Databases) -> Iterator[FinalRow]:
    """Reads all jobs of all shards. Raises StoreUnavailable."""
    for database in databases:
        dead = database.dead.c.job_id
        query = select(c.job_id, c.status, c.attempts, c.action_time, c.claim_token, dead)
        query = query.select_from(JOB.outerjoin(database.dead, dead == c.job_id))
        for shard in database.shards:
            for page in database.read_pages_by_id(query, shard, PAGE_ROWS):
                for job_id, status, *rest, letter in page:
                    row = job_id, status_from_number(status), *rest, letter is not None
                    yield FinalRow._make(row)
