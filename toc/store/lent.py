"""A caller's own connection: toc's statements join its transaction, and only the caller can repeat it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from toc.errors import StoreUnavailable
from toc.store.catalogue import Catalogue
from toc.store.databases import Database
from toc.store.moving import is_fence


@contextmanager
def lent(connection: Connection, database: Database, catalogue: Catalogue) -> Iterator[None]:
    """Within, statements on `schema.JOB` run on the connection.

    Raises WrongDatabase when it does not reach `database`, StoreUnavailable when the database is just
    being moved: then the transaction is lost. Other errors of the driver are the caller's to handle.
    """
    catalogue.check_connection(connection, database)
    database.lend_clock(connection)
    known = connection.engine in (database.engine, database.single)
    if not known:  # the caller's engine does not know the names of our shards
        event.listen(connection, "before_cursor_execute", database.name_shard, retval=True)
    try:
        yield
    except DBAPIError as error:
        if is_fence(error.orig):
            raise StoreUnavailable(database.index, error) from error
        raise
    finally:
        if not known:
            event.remove(connection, "before_cursor_execute", database.name_shard)
