"""Sets a job to done within its handler's own transaction, together with the handler's effect (ADR 16).

The statement is that of a settle: it changes only a row that runs under the claim's token. A take-over,
cancel or settle of the job waits for the transaction's end, and then finds the job done.
"""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, or_, select, update

from toc.domain.ids import gene_of
from toc.domain.job import Job, Status
from toc.domain.tokens import without_mark
from toc.errors import ClaimLost, NotFound
from toc.store.catalogue import Catalogue
from toc.store.columns import db_now
from toc.store.databases import Databases, execute_on
from toc.store.external_transaction import join_transaction
from toc.store.rows import status_from_number
from toc.store.schema import JOB

c = JOB.c
_SET_DONE = (
    update(JOB)
    .where(
        c.job_id == bindparam("id"),
        c.status == int(Status.RUNNING),
        or_(c.claim_token == bindparam("token"), c.claim_token == bindparam("unmarked")),
    )
    .values(status=int(Status.DONE), due_time=None, gmt_modified=db_now())
)
# A locking read sees committed rows even in a caller's REPEATABLE READ.
_SELECT_STATUS = (
    select(c.status, c.claim_token).where(c.job_id == bindparam("id")).with_for_update(read=True)
)


def complete(databases: Databases, catalogue: Catalogue, job: Job, connection: Connection) -> bool:
    """Sets the job to done within the connection's transaction. False: it was done already.

    Raises ClaimLost when the claim is lost, NotFound when the row is deleted, and WrongDatabase and
    StoreUnavailable as `join_transaction` does.
    """
    shard = databases.routing.shard(gene_of(job.job_id))
    with join_transaction(connection, databases.of_shard(shard), catalogue):
        token = job.token or ""
        values = {"id": job.job_id, "token": token, "unmarked": without_mark(token)}
        if execute_on(connection, shard, _SET_DONE, values).rowcount:
            return True
        row = execute_on(connection, shard, _SELECT_STATUS, {"id": job.job_id}).first()
    if row is None:
        raise NotFound(f"job {job.job_id}: it has been deleted since")
    status = status_from_number(row.status)
    if status is Status.DONE:
        return False
    raise ClaimLost(job.job_id, job.token or "", status.name.lower(), row.claim_token)
