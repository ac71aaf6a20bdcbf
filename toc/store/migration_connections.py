"""A connection of the only migration on a database: GET_LOCK on a server, one transaction on SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import Connection, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from toc.errors import StoreUnavailable
from toc.runtime.files import on_sqlite_connect
from toc.runtime.settings import Settings
from toc.store.driver_errors import error_number, error_text
from toc.store.schema_executor import RUNNER, MigrationFailed, lock_wait_assignments
from toc.store.sessions import session_arguments


@contextmanager
def open_migration_connection(
    index: int, settings: Settings, lock_wait_s: int
) -> Iterator[Connection]:
    """A connection of the only runner on this database; on SQLite, inside its transaction."""
    url = make_url(settings.databases[index])
    sqlite = url.get_backend_name() == "sqlite"
    arguments: dict[str, Any] = {"timeout": lock_wait_s}
    if not sqlite:
        arguments = session_arguments(url, settings.mysql)
        arguments["connect_timeout"] = settings.connect_timeout_s
    engine = create_engine(url, poolclass=NullPool, connect_args=arguments)
    if sqlite:
        event.listen(engine, "do_connect", on_sqlite_connect)
    try:
        connection = engine.connect()
    except DBAPIError as error:
        raise StoreUnavailable(index, error) from error
    alone = (
        _sqlite_write_lock(index, connection)
        if sqlite
        else _migration_lock(index, connection, lock_wait_s)
    )
    with connection:
        try:
            with alone:
                yield connection
        except DBAPIError as error:  # not one of a step's, which name their tables
            raise MigrationFailed(index, None, error_text(error), error_number(error)) from error


@contextmanager
def _sqlite_write_lock(index: int, connection: Connection) -> Iterator[None]:
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    except DBAPIError as error:
        if "locked" not in str(error.orig):
            raise StoreUnavailable(index, error) from error
        text = (
            "another migration, or a long transaction, is writing; run it again when it has ended"
        )
        raise MigrationFailed(index, None, text) from error
    yield
    connection.commit()


@contextmanager
def _migration_lock(index: int, connection: Connection, lock_wait_s: int) -> Iterator[None]:
    connection.exec_driver_sql(f"SET SESSION {lock_wait_assignments(lock_wait_s)}")
    if connection.exec_driver_sql(f"SELECT GET_LOCK({RUNNER}, {lock_wait_s})").scalar() != 1:
        holder = connection.exec_driver_sql(f"SELECT IS_USED_LOCK({RUNNER})").scalar()
        by = f" (the server's connection {holder})" if holder else ""
        raise MigrationFailed(index, None, f"another migration is running there{by}")
    connection.commit()
    try:
        yield
    finally:
        with suppress(DBAPIError):  # a lost connection has let it go
            connection.exec_driver_sql(f"SELECT RELEASE_LOCK({RUNNER})")
