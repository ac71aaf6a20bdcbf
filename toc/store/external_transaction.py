"""Statements in a caller's transaction, on the caller's connection: only the caller can commit.

`complete_in_transaction` sets a job to done in the transaction of the job's handler, together with the
handler's effect (ADR 16).
The statement is that of a settle: it changes only a row that runs under the claim's token. A take-over,
cancel or settle of the job waits for the transaction's end, and then finds the job done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, bindparam, event, or_, select, update
from sqlalchemy.exc import DBAPIError

from toc.domain.claim_tokens import remove_alone_mark
from toc.domain.ids import routing_bits_of
from toc.domain.job import Job, Status
from toc.errors import ClaimLost, InvalidInput, NotFound, StoreUnavailable
from toc.store.column_types import db_now
from toc.store.database_home import is_fence_error
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Database, Databases, execute_on_shard
from toc.store.job_rows import status_from_number
from toc.store.schema import JOB
from toc.store.sqlite_writers import remember_open_writer

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


@contextmanager
def join_transaction(
    connection: Connection, database: Database, database_metadata: DatabaseMetadata
) -> Iterator[None]:
    """A context in which statements on `schema.JOB` can run on the caller's connection.

    Raises InvalidInput when the connection is in autocommit mode, WrongDatabase when it does not
    reach `database`, StoreUnavailable when the database is being moved: then the transaction is
    lost. Other errors of the driver reach the caller.
    """
    database_metadata.check_caller_connection(connection, database)
    _refuse_autocommit(connection)
    database.add_sqlite_functions(connection)
    known = connection.engine in (database.engine, database.autocommit_engine)
    name_shard = database.make_table_name_listener(connection.dialect)
    if not known:  # the caller's engine does not put the name of the shard's table into statements
        event.listen(connection, "before_cursor_execute", name_shard, retval=True)
    try:
        yield
    except DBAPIError as error:
        if is_fence_error(error.orig):
            raise StoreUnavailable(database.index, error) from error
        raise
    finally:
        if not known:
            event.remove(connection, "before_cursor_execute", name_shard)
        remember_open_writer(connection)


def _refuse_autocommit(connection: Connection) -> None:
    """Raises InvalidInput when the connection is in autocommit mode.

    Asks the connection, not its options: the engine, the driver or a statement may have set the mode.
    """
    pooled = connection.connection
    raw: Any = pooled.dbapi_connection
    alone = getattr(
        raw, "autocommit", None
    ) is True or connection.dialect.detect_autocommit_setting(raw)
    # SQLite: the caller may have begun a transaction by a statement, while the driver begins none.
    if alone and not getattr(pooled.driver_connection, "in_transaction", False):
        raise InvalidInput(
            "connection",
            connection,
            "must be in a transaction, but each of its statements commits by itself: "
            "take an engine without isolation_level AUTOCOMMIT (autocommit of the driver)",
        )


def complete_in_transaction(
    databases: Databases, database_metadata: DatabaseMetadata, job: Job, connection: Connection
) -> bool:
    """Sets the job to done within the connection's transaction. Returns False if the job was done already.

    Raises ClaimLost when the claim is lost, NotFound when the row is deleted, and WrongDatabase and
    StoreUnavailable as `join_transaction` does.
    """
    shard = databases.routing.shard_of_hash(routing_bits_of(job.job_id))
    with join_transaction(connection, databases.database_of_shard(shard), database_metadata):
        token = job.token or ""
        values = {"id": job.job_id, "token": token, "unmarked": remove_alone_mark(token)}
        if execute_on_shard(connection, shard, _SET_DONE, values).rowcount:
            return True
        row = execute_on_shard(connection, shard, _SELECT_STATUS, {"id": job.job_id}).first()
    if row is None:
        raise NotFound(f"job {job.job_id}: its row has been deleted since the claim")
    status = status_from_number(row.status)
    if status is Status.DONE:
        return False
    raise ClaimLost(job.job_id, job.token or "", status.name.lower(), row.claim_token)
