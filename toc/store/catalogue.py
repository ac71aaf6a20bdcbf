"""The catalogue: numbers of biz_types, the routing's fingerprint, each database's identity.

Database 0 gives out the numbers; the other databases carry copies, so that DBAs can join there.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from toc.errors import NotFound, SchemaMismatch, StoreUnavailable, WrongDatabase
from toc.store.databases import Database, Databases


class Catalogue:
    """Names and numbers of biz_types, cached; thread-safe."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._lock = threading.Lock()
        self._no: dict[str, int] = {}
        self._name: dict[int, str] = {}
        self._identity: dict[int, str | None] = {}

    def number(self, name: str) -> int:
        """The number of a type; a new name gets one. Needs database 0 the first time a name is seen."""
        found = self._no.get(name)
        if found is not None:
            return found
        with self._lock:
            if name not in self._no:
                self._load()
            if name not in self._no:
                self._create(name)
            return self._no[name]

    def known(self, name: str) -> int | None:
        """The number of a type that exists already, else None. Writes nothing."""
        if name not in self._no:
            with self._lock:
                self._load()
        return self._no.get(name)

    def name(self, type_no: int) -> str:
        """The name of a number. Raises NotFound when no type has it."""
        found = self._name.get(type_no)
        if found is None:
            with self._lock:
                self._load()
            found = self._name.get(type_no)
            if found is None:
                raise NotFound(f"no biz_type has the number {type_no}")
        return found

    def check(self, facts: Mapping[str, str], databases: Sequence[Database] | None = None) -> None:
        """Compares facts (routing, slot amounts) with what each database keeps; then writes what is new.

        Raises SchemaMismatch when one differs, and has then written nothing: a node with another
        routing would take rows for gone.
        """
        checked = self._databases.all if databases is None else databases
        kept = [self._facts_of(database) for database in checked]
        expected = [{**facts, "database": str(database.index)} for database in checked]
        for database, there, wanted in zip(checked, kept, expected, strict=True):
            _compare(database, there, wanted)
        for database, there, wanted in zip(checked, kept, expected, strict=True):
            # The identity is made once; check_connection compares it.
            new = {"database_id": str(uuid.uuid4())} | wanted
            rows = [{"name": k, "value": v} for k, v in new.items() if k not in there]
            if rows:
                try:
                    database.run(lambda c, t=database.meta, r=rows: c.execute(insert(t), r))  # type: ignore[misc]
                except IntegrityError:  # another process wrote them first: its word counts
                    _compare(database, self._facts_of(database), wanted)
        with self._lock:
            self._load_what_answers(checked)
            for database in checked:
                if database.index:
                    self._copy_to(database)

    def _facts_of(self, database: Database) -> dict[str, str]:
        query = select(database.meta.c.name, database.meta.c.value)
        rows = database.read(lambda connection: connection.execute(query).all())
        return {str(name): str(value) for name, value in rows}

    def check_connection(self, connection: Connection, database: Database) -> None:
        """Raises WrongDatabase unless the caller's connection reaches this very database."""
        if database.index not in self._identity:
            self._identity[database.index] = database.read(lambda own: _identity(own, database))
        try:
            if _identity(connection, database) == self._identity[database.index]:
                return
        except DBAPIError:
            pass
        raise WrongDatabase(
            f"the given connection does not reach database {database.index}, which holds the job's shard"
        )

    def _load_what_answers(self, databases: Sequence[Database]) -> None:
        """Database 0's word, else a copy of it: what it lacks is asked for when it is needed."""
        try:
            self._load()
        except StoreUnavailable:
            for database in databases:
                self._load(database)

    def _load(self, database: Database | None = None) -> None:
        database = database or self._databases[0]
        table = database.biz_type
        rows = database.read(lambda c: c.execute(select(table.c.type_no, table.c.name)).all())
        for type_no, name in rows:
            self._no[name], self._name[type_no] = type_no, name

    def _create(self, name: str) -> None:
        first = self._databases[0]
        with contextlib.suppress(IntegrityError):  # another process was faster: its number counts
            first.read(lambda c: c.execute(insert(first.biz_type), {"name": name}))
        self._load()
        for database in self._databases.all[1:]:
            self._copy_to(database)

    def _copy_to(self, database: Database) -> None:
        table = database.biz_type

        def copy(connection: Connection) -> None:
            there = set(connection.scalars(select(table.c.type_no)))
            new = [
                {"type_no": no, "name": name} for no, name in self._name.items() if no not in there
            ]
            if new:
                connection.execute(insert(table), new)

        # The copies only serve joins: another process' copy, or the next one's, is as good as this.
        with contextlib.suppress(IntegrityError, StoreUnavailable):
            database.run(copy)


def _identity(connection: Connection, database: Database) -> str | None:
    table = database.meta
    return connection.execute(select(table.c.value).where(table.c.name == "database_id")).scalar()


def _compare(database: Database, there: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for name, value in wanted.items():
        if there.get(name, value) != value:
            raise SchemaMismatch(
                f"database {database.index} was set up with {name} = {there[name]}, "
                f"the settings say {value}: this cannot be changed later"
            )
