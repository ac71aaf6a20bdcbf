"""A caller's own connection: toc's statements join its transaction, and only the caller can repeat it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from toc.errors import InvalidInput, StoreUnavailable
from toc.store.catalogue import Catalogue
from toc.store.database_home import is_fence
from toc.store.databases import Database
from toc.store.sqlite_writers import remember_writer


@contextmanager
def join_transaction(
    connection: Connection, database: Database, catalogue: Catalogue
) -> Iterator[None]:
    """A context in which statements on `schema.JOB` can run on the caller's connection.

    Raises InvalidInput when the connection is in autocommit mode, WrongDatabase when it does not
    reach `database`, StoreUnavailable when the database is being moved: then the transaction is
    lost. Other errors of the driver reach the caller.
    """
    catalogue.check_connection(connection, database)
    _refuse_autocommit(connection)
    database.add_clock_functions(connection)
    known = connection.engine in (database.engine, database.autocommit_engine)
    name_shard = database.make_shard_namer(connection.dialect)
    if not known:  # the caller's engine does not know the names of our shards
        event.listen(connection, "before_cursor_execute", name_shard, retval=True)
    try:
        yield
    except DBAPIError as error:
        if is_fence(error.orig):
            raise StoreUnavailable(database.index, error) from error
        raise
    finally:
        if not known:
            event.remove(connection, "before_cursor_execute", name_shard)
        remember_writer(connection)


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
