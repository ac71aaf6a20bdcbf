"""Finds the copy that replaced a misfit job when it was repaired (`JobRepair.copy_to_right_shard`).

The relation is a column of both events that the repair writes: `related_job_id` of the old job's is the copy,
that of the copy's is the old job. No verb of a client writes it.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, select

from toc.domain.ids import GENE_MASK, SEQUENCE_BITS, SEQUENCE_MASK, gene_of
from toc.store.databases import Database, Databases
from toc.store.events import REPAIR

_LOW = GENE_MASK << SEQUENCE_BITS | SEQUENCE_MASK


def possible_copy_ids(job_id: int, gene: int) -> Iterable[int]:
    """Ids with the time of this one and another gene: its own sequence first, then the next ones."""
    for step in range(SEQUENCE_MASK + 1):
        yield job_id & ~_LOW | gene << SEQUENCE_BITS | (job_id + step) & SEQUENCE_MASK


def has_copy_event(connection: Connection, database: Database, job_id: int, old_id: int) -> bool:
    """Whether a repair has made (or taken) this job as the copy of that one."""
    event = database.event.c
    its = event.job_id == job_id, event.what == REPAIR, event.related_job_id == old_id
    return connection.execute(select(event.job_id).where(*its).limit(1)).first() is not None


def find_copy(databases: Databases, job_id: int) -> int | None:
    """The id of the copy that replaced a cancelled job in a repair; None: it was only cancelled."""
    database = databases.of_shard(databases.routing.shard(gene_of(job_id)))
    event = database.event.c
    query = (
        select(event.related_job_id)
        .where(
            event.job_id == job_id,
            event.what == "cancel",
            event.related_job_id.is_not(None),
            event.related_job_id != job_id,  # only its table was wrong
        )
        .order_by(event.event_id.desc())
    )
    found: int | None = database.scalar(query)
    return found
