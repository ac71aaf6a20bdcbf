"""Finds the copy that replaced a misfit job when it was repaired (`JobRepair.copy_to_right_shard`).

No id is parsed from a text. The possible ids of the copy follow from data: they have the time of the
old id and the gene of the old row's biz_id. An event of the copy, written by the repair, tells which one it
is: its `what` is "repair", which no client verb writes, and its whole reason is compared. So the reason of
a client's own event cannot be mistaken for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import ColumnElement, Connection, select

from toc.domain.ids import GENE_MASK, SEQUENCE_BITS, SEQUENCE_MASK, gene_of
from toc.domain.routing import hash_of
from toc.store.databases import Database, Databases, execute_on
from toc.store.schema import JOB, job_table_name

REPAIR = "repair"
"""`what` of the events of repairs. A repair of a reminder leaves the status as it is."""

_LOW = GENE_MASK << SEQUENCE_BITS | SEQUENCE_MASK


def possible_copy_ids(job_id: int, gene: int) -> Iterable[int]:
    """Ids with the time of this one and another gene: its own sequence first, then the next ones."""
    for step in range(SEQUENCE_MASK + 1):
        yield job_id & ~_LOW | gene << SEQUENCE_BITS | (job_id + step) & SEQUENCE_MASK


def copy_event_reason(old_id: int, old_shard: int) -> str:
    """The reason in the event that a repair writes for the copy of a row."""
    return f"misfit: stands for job {old_id} in {job_table_name(old_shard)}"


def has_copy_event(
    connection: Connection, database: Database, job_id: int, old_id: int, old_shard: int
) -> bool:
    """Whether a repair has made (or taken) this job as the copy of that row."""
    its = database.event.c.job_id == job_id
    return _find_copy_event(connection, database, its, old_id, old_shard) is not None


def find_copy(databases: Databases, job_id: int) -> int | None:
    """The id of the copy that replaced a cancelled job in a repair; None: it was only cancelled."""
    shard = databases.routing.shard(gene_of(job_id))
    database = databases.of_shard(shard)
    query = select(JOB.c.biz_id).where(JOB.c.job_id == job_id)
    biz_id = database.read(lambda connection: execute_on(connection, shard, query).scalar())
    if biz_id is None:
        return None
    gene = hash_of(biz_id) & GENE_MASK
    if gene == gene_of(job_id) or databases.of_shard(databases.routing.shard(gene)) is not database:
        return None  # it fits; or it was never repaired: a copy is in the same database
    first = job_id & ~_LOW | gene << SEQUENCE_BITS
    its = database.event.c.job_id.between(first, first | SEQUENCE_MASK)
    return database.read(
        lambda connection: _find_copy_event(connection, database, its, job_id, shard)
    )


def _find_copy_event(
    connection: Connection,
    database: Database,
    its: ColumnElement[bool],
    old_id: int,
    old_shard: int,
) -> int | None:
    event = database.event.c
    query = select(event.job_id).where(
        its, event.what == REPAIR, event.reason == copy_event_reason(old_id, old_shard)
    )
    found: int | None = connection.execute(query.limit(1)).scalar()
    return found
