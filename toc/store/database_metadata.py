"""The metadata that each database stores: the routing's fingerprint, its identity, and the biz_types."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from toc.errors import SchemaMismatch, StoreUnavailable, WrongDatabase
from toc.store.biz_types import BizTypeCache
from toc.store.database_home import HOME
from toc.store.databases import Database, Databases
from toc.store.declared_types import DeclaredTypeCache
from toc.store.recorded_meta import read_recorded_meta, refuse_differing_facts

DATABASE_ID = "database_id"


class DatabaseMetadata:
    """Checks and writes the routing fingerprint and identity of each database; has the biz_types and
    their declarations. Thread-safe.

    There is no lock: all writes to the cache have the same value, and a lock that is held during a query
    would block all threads while one database hangs.
    """

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self.types = BizTypeCache(databases)
        self.declared = DeclaredTypeCache(databases)
        self._identity: dict[int, dict[str, str]] = {}

    def verify_and_record_meta(
        self, expected_meta: Mapping[str, str], databases: Sequence[Database] | None = None
    ) -> None:
        """Compares values (routing, slot amounts) with those in each `toc_meta`, then writes missing values.

        Raises SchemaMismatch if a value differs, and has then written nothing: a node with another routing
        would look for rows in the wrong tables.
        """
        checked = self._databases.all if databases is None else databases
        kept = [read_recorded_meta(database) for database in checked]
        for database, there in zip(checked, kept, strict=True):
            refuse_differing_facts(database, there, expected_meta)
        for database, there in zip(checked, kept, strict=True):
            self._record_missing_meta(database, there, expected_meta)

    def _record_missing_meta(
        self, database: Database, there: Mapping[str, str], expected_meta: Mapping[str, str]
    ) -> None:
        """Writes the values that `toc_meta` of a database does not contain yet."""
        # The database_id is made once; `check_caller_connection` compares the ids.
        facts = {DATABASE_ID: str(uuid.uuid4()), **expected_meta, "database": str(database.index)}
        rows = [{"name": k, "value": v} for k, v in facts.items() if k not in there]
        if not rows:
            return
        try:
            database.run_transaction(
                lambda connection: connection.execute(insert(database.meta), rows)
            )
        except IntegrityError:  # another process inserted these rows first: compare their values
            refuse_differing_facts(database, read_recorded_meta(database), expected_meta)
        except StoreUnavailable as error:
            if not error.denied:
                raise
            names = ", ".join(row["name"] for row in rows)
            raise SchemaMismatch(
                f"database {database.index}: toc_meta does not contain {names} yet, and this account may not "
                "write toc_meta: start a worker first, whose account may"
            ) from error

    def check_caller_connection(self, connection: Connection, database: Database) -> None:
        """Raises WrongDatabase unless the caller's connection reaches this database."""
        try:
            given = _read_database_identity(connection, database)
        except DBAPIError:
            given = {}
        if given and given == self._identity.get(database.index):
            return
        # The identity was not read yet, the database has moved since, or the caller's connection is wrong.
        own = self._identity[database.index] = database.run_read(
            lambda c: _read_database_identity(c, database)
        )
        if given and given == own:
            return
        moved = given.get(DATABASE_ID) == own.get(DATABASE_ID)
        raise WrongDatabase(
            f"the given connection does not reach database {database.index}, which holds the job's shard"
            + (
                ": the connection reaches a server that the database has moved away from"
                if moved
                else ""
            )
        )


def _read_database_identity(connection: Connection, database: Database) -> dict[str, str]:
    """The id of the database, and the uuid of its home server if it has moved."""
    table = database.meta
    query = select(table.c.name, table.c.value).where(table.c.name.in_((DATABASE_ID, HOME)))
    return {str(name): str(value) for name, value in connection.execute(query)}
