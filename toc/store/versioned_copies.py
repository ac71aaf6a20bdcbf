"""Rows with versions, a copy in each database: what pauses and the declarations of types have in common.

The table has a row for each change of a key: the newest version says what holds, the older ones are the
history. The server writes the account of the connection into each row; `copied` marks a row that toc itself
has written.

A change goes to all databases that answer, under the version after the newest one that any of them has. The
primary key (key, version) refuses the second of two changes at the same time, which then reads again. A
database that was away gets the newest version later (`rows_missing_in_copy`). If two changes got one version
in different databases, the later one counts (then the larger change_id), and toc writes it as a further
version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from sqlalchemy import ColumnElement, FromClause, Select, Table, delete, exists, insert, or_, select
from sqlalchemy.exc import IntegrityError

from toc.errors import StoreUnavailable
from toc.store.databases import Database, Databases

CHANGE_TRIES_MAX = 5
HISTORY_MAX = 200  # versions of one key that are read


class VersionedRow(Protocol):
    """One row of such a table: a NamedTuple with the values of `VersionedCopies.columns` and the account."""

    @property
    def version(self) -> int:
        """From 1; the newest version of a key says what holds."""

    @property
    def change_id(self) -> str:
        """Says which change has made this version."""

    @property
    def copied(self) -> bool:
        """Whether toc has written it into a database that missed the change."""

    @property
    def rank(self) -> tuple[int, int, str]:
        """The newest version of a key has the largest rank."""

    def _replace(self, *, version: int = ..., copied: bool = ...) -> Self: ...
    def __iter__(self) -> Iterator[Any]: ...


Row = TypeVar("Row", bound=VersionedRow)


class VersionedCopies(Generic[Row]):
    """Reads and writes the copies of one table. `columns`: what toc writes; the first one is the key."""

    def __init__(
        self,
        table_of: Callable[[Database], Table],
        columns: Sequence[str],
        make_row: Callable[[Sequence[Any]], Row],
    ) -> None:
        self._table_of, self._columns, self.make_row = table_of, columns, make_row

    def insert(self, database: Database, row: Row) -> bool:
        """Inserts a row; False: the database has this version already, of another change.

        Raises StoreUnavailable.
        """
        # The account has no column here: the server writes it.
        values = dict(zip(self._columns, row, strict=False)) | {"copied": int(row.copied)}
        table = self._table_of(database)
        try:
            database.run_transaction(
                lambda connection: connection.execute(insert(table).values(values))
            )
        except IntegrityError:
            key, version = values[self._columns[0]], row.version
            query = select(table.c.change_id).where(
                self._key(table) == key, table.c.version == version
            )
            # A repeated INSERT after a lost answer finds its own row.
            return [change_id for (change_id,) in database.select(query)] == [row.change_id]
        return True

    def insert_everywhere(
        self,
        databases: Databases,
        row: Row,
        away: Sequence[int],
        before: Callable[[Database], object] = lambda _database: None,
    ) -> list[int] | None:
        """Inserts a row into all databases but `away`. Returns the databases that do not have it.

        None: nothing was written, because another change has this version. `before` is called with each
        database first. Raises StoreUnavailable if no database answers.
        """
        missed, written = list(away), 0
        failed: StoreUnavailable | None = None
        for database in databases:
            if database.index in away:
                continue
            try:
                before(database)
                won = self.insert(database, row)
            except StoreUnavailable as error:
                missed.append(database.index)
                failed = error
                continue
            if not won and not written:
                return None
            # Not won later on: a database that the other change has reached first. The later one counts.
            written += 1
        if not written and failed is not None:
            raise failed
        return missed

    def read_history(self, databases: Databases, key: str, limit: int = HISTORY_MAX) -> list[Row]:
        """The newest `limit` versions of a key, newest first, of all databases that answer.

        A version that people wrote stands for its copies. Empty: the key has no row. Raises StoreUnavailable
        if no database answers.
        """
        found: dict[tuple[int, str], Row] = {}
        failed: StoreUnavailable | None = None
        answers = 0
        for database in databases:
            table = self._table_of(database)
            query = self.select_rows(table).where(self._key(table) == key)
            try:
                rows = database.select(query.order_by(table.c.version.desc()).limit(limit))
            except StoreUnavailable as error:
                failed = error
                continue
            answers += 1
            for row in map(self.make_row, rows):
                which = row.version, row.change_id
                if which not in found or (found[which].copied and not row.copied):
                    found[which] = row
        if not answers and failed is not None:
            raise failed
        return sorted(found.values(), key=lambda row: row.rank, reverse=True)[:limit]

    def delete_replaced(
        self, database: Database, time_column: str, before_ms: int, limit: int,
        besides: ColumnElement[bool] | None = None,
    ) -> int:  # fmt: skip
        """Deletes up to `limit` rows older than `before_ms` that a newer version replaced; returns how many.

        `besides`: a condition of rows that no newer version needs to replace.
        """
        table = self._table_of(database)
        newer = table.alias("newer")
        replaced: ColumnElement[bool] = exists().where(
            self._key(newer) == self._key(table), newer.c.version > table.c.version
        )
        query = (
            select(self._key(table), table.c.version)
            .where(
                table.c[time_column] < before_ms,
                replaced if besides is None else or_(besides, replaced),
            )
            .order_by(self._key(table), table.c.version)
            .limit(limit)
        )
        rows = database.select(query)
        for key, version in rows:
            database.execute(
                delete(table).where(self._key(table) == key, table.c.version == version)
            )
        return len(rows)

    def select_rows(self, table: Table) -> Select[Any]:
        """A query of whole rows, as `make_row` takes them."""
        return select(*(table.c[column] for column in (*self._columns, "account")))

    def _key(self, table: FromClause) -> ColumnElement[Any]:
        return table.c[self._columns[0]]


def read_all_copies(databases: Databases, read_copy: Callable[[Database], None]) -> list[int]:
    """Reads the copies of all databases, and returns the indexes of those that do not answer.

    Raises StoreUnavailable if none answers.
    """
    away, failed = [], None
    for database in databases:
        try:
            read_copy(database)
        except StoreUnavailable as error:
            away.append(database.index)
            failed = error
    if failed is not None and len(away) == len(databases.all):
        raise failed
    return away


def rows_missing_in_copy(
    newest: Mapping[str, Row], there: Mapping[str, tuple[int, str]]
) -> list[Row]:
    """The newest rows that a copy does not have. `there`: its newest version and change_id of each key."""
    missing = []
    for key, row in newest.items():
        version, change_id = there.get(key, (0, ""))
        if version < row.version:
            missing.append(row._replace(copied=True))
        elif change_id != row.change_id:  # two changes got this version: the later one counts
            missing.append(row._replace(version=row.version + 1, copied=True))
    return missing
