"""The catalogue: numbers of biz_types, the routing's fingerprint, each database's identity.

Database 0 gives out the numbers; the other databases carry copies, so that DBAs can join there.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import DBAPIError, IntegrityError

from toc.errors import NotFound, SchemaMismatch, StoreUnavailable, WrongDatabase
from toc.store.databases import Database, Databases
from toc.store.moving import HOME

_ID = "database_id"


class Catalogue:
    """Names and numbers of biz_types, cached; thread-safe.

    Without a lock: every write to the cache says the same, and the database decides who gives a new
    name its number. Held while a database is asked, a lock would stop all while one hangs.
    """

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._no: dict[str, int] = {}
        self._name: dict[int, str] = {}
        self._identity: dict[int, dict[str, str]] = {}

    def number(self, name: str) -> int:
        """The number of a type; a new name gets one. Needs database 0 the first time a name is seen."""
        if name not in self._no:
            self._load()
        if name not in self._no:
            self._create(name)
        return self._no[name]

    def known(self, name: str) -> int | None:
        """The number of a type that exists already, else None. Writes nothing."""
        if name not in self._no:
            self._load()
        return self._no.get(name)

    def name(self, type_no: int) -> str:
        """The name of a number. Raises NotFound when no type has it."""
        if type_no not in self._name:
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
            new = {_ID: str(uuid.uuid4())} | wanted
            rows = [{"name": k, "value": v} for k, v in new.items() if k not in there]
            if rows:
                try:
                    database.run(lambda c, t=database.meta, r=rows: c.execute(insert(t), r))  # type: ignore[misc]
                except IntegrityError:  # another process wrote them first: its word counts
                    _compare(database, self._facts_of(database), wanted)

    def load(self, databases: Sequence[Database]) -> None:
        """Reads all types, and brings the copies in `databases`, those that answer, up to date.

        Database 0's word, else copies of it: what they lack is asked for when it is needed.
        """
        for database in databases[:1] if databases[0].index == 0 else databases:
            self._load(database)
        for database in databases:
            if database.index:
                self.copy_to(database)

    def _facts_of(self, database: Database) -> dict[str, str]:
        query = select(database.meta.c.name, database.meta.c.value)
        rows = database.read(lambda connection: connection.execute(query).all())
        return {str(name): str(value) for name, value in rows}

    def check_connection(self, connection: Connection, database: Database) -> None:
        """Raises WrongDatabase unless the caller's connection reaches this very database."""
        try:
            given = _identity(connection, database)
        except DBAPIError:
            given = {}
        if given and given == self._identity.get(database.index):
            return
        # Not asked yet, or the database has moved since, or the caller's is wrong.
        own = self._identity[database.index] = database.read(lambda c: _identity(c, database))
        if given and given == own:
            return
        moved = given.get(_ID) == own.get(_ID)
        raise WrongDatabase(
            f"the given connection does not reach database {database.index}, which holds the job's shard"
            + (": it reaches a server that the database has moved away from" if moved else "")
        )

    def _load(self, database: Database | None = None) -> None:
        database = database or self._databases[0]
        table = database.biz_type
        rows = database.read(lambda c: c.execute(select(table.c.type_no, table.c.name)).all())
        for type_no, name in rows:
            self._name[type_no] = name
            self._no[name] = type_no

    def _create(self, name: str) -> None:
        first = self._databases[0]
        with contextlib.suppress(IntegrityError):  # another process was faster: its number counts
            first.read(lambda c: c.execute(insert(first.biz_type), {"name": name}))
        self._load()
        for database in self._databases.all[1:]:
            self.copy_to(database)

    def copy_to(self, database: Database) -> None:
        """Brings a database's copy of the types up to date with what is known here."""
        table = database.biz_type

        def copy(connection: Connection) -> None:
            there = set(connection.scalars(select(table.c.type_no)))
            new = [
                {"type_no": no, "name": name}
                for no, name in dict(self._name).items()
                if no not in there
            ]
            for row in new:
                # Another process' copy is as good as this, and must not keep the others of it away.
                with contextlib.suppress(IntegrityError), connection.begin_nested():
                    connection.execute(insert(table), row)

        # The copies only serve joins; each start of a process brings them up to date.
        with contextlib.suppress(StoreUnavailable):
            database.run(copy)


def _identity(connection: Connection, database: Database) -> dict[str, str]:
    """Which database it is, and which server is its home if it has moved."""
    table = database.meta
    query = select(table.c.name, table.c.value).where(table.c.name.in_((_ID, HOME)))
    return {str(name): str(value) for name, value in connection.execute(query)}


def _compare(database: Database, there: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    for name, value in wanted.items():
        if there.get(name, value) != value:
            raise SchemaMismatch(
                f"database {database.index} was set up with {name} = {there[name]}, "
                f"the settings say {value}: this cannot be changed later"
            )
