"""A handler's effect and its job's end in one transaction: the handler's own (ADR 16).

The statement is the settle's: it changes only a row that runs under the claim's token. Whoever would
take the job over, cancel it or settle it waits for the transaction's end, and then finds it done.
"""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select, update

from toc.domain.ids import gene_of
from toc.domain.job import Job, Status
from toc.errors import ClaimLost, NotFound
from toc.store.catalogue import Catalogue
from toc.store.columns import db_now
from toc.store.databases import Databases, execute_on
from toc.store.lent import lent
from toc.store.rows import status_of
from toc.store.schema import JOB

c = JOB.c
_DONE = (
    update(JOB)
    .where(
        c.job_id == bindparam("id"),
        c.status == int(Status.RUNNING),
        c.worker == bindparam("token"),
    )
    .values(status=int(Status.DONE), due_time=None, gmt_modified=db_now())
)
# A locking read sees what is committed, also in a caller's REPEATABLE READ.
_LOOK = select(c.status, c.worker).where(c.job_id == bindparam("id")).with_for_update(read=True)


def once(databases: Databases, catalogue: Catalogue, job: Job, connection: Connection) -> bool:
    """Sets the job to done within the connection's transaction: True. False: it is done already.

    Raises ClaimLost when neither is the case, WrongDatabase and StoreUnavailable as `lent` does.
    """
    shard = databases.routing.shard(gene_of(job.job_id))
    with lent(connection, databases.of_shard(shard), catalogue):
        values = {"id": job.job_id, "token": job.token}
        if execute_on(connection, shard, _DONE, values).rowcount:
            return True
        row = execute_on(connection, shard, _LOOK, {"id": job.job_id}).first()
    if row is None:
        raise NotFound(f"job {job.job_id}: it has been deleted since")
    status = status_of(row.status)
    if status is Status.DONE:
        return False
    raise ClaimLost(job.job_id, job.token or "", status.name.lower(), row.worker)
