"""The declarations of types, a copy in each database; see docs/adr/0040-declared-types.md.

`toc_declared_type` has a row for each change of a type (toc/store/versioned_copies.py). No row is ever
updated. A row without settings says that the type was forgotten.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Select, Table, and_, func, or_, select

from toc.domain.argument_checks import check_actor, check_biz_type, check_reason
from toc.domain.declared_type import DeclaredType
from toc.domain.type_fields import TypeInfo
from toc.errors import InvalidInput, NotFound
from toc.store.biz_types import BizTypeCache
from toc.store.databases import Database, Databases
from toc.store.schema import DATABASES_CACHED
from toc.store.versioned_copies import (
    CHANGE_TRIES_MAX,
    HISTORY_MAX,
    VersionedCopies,
    read_all_copies,
    rows_missing_in_copy,
)

log = logging.getLogger(__name__)

COLUMNS = (
    "name", "version", "settings", "declared_time", "change_id", "actor", "reason", "copied",
)  # fmt: skip
"""The columns that toc writes. The server writes the account."""
NAMES_AT_ONCE = 50  # newest versions that one statement reads: each may have 64 kB

Edit = Callable[[DeclaredType | None], DeclaredType | None]
"""The new declaration, given the present one. None: the type is not declared."""


class TypeVersion(NamedTuple):
    """One row of `toc_declared_type`. declared_ms: the time of the change, by a database's clock."""

    name: str
    version: int
    settings: str | None
    declared_ms: int
    change_id: str
    actor: str
    reason: str | None
    copied: bool
    account: str | None

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> TypeVersion:
        """`row`: the values of COLUMNS and the account."""
        version = cls._make(row)
        return version._replace(copied=bool(version.copied))

    @property
    def rank(self) -> tuple[int, int, str]:
        """The newest version of a type has the largest rank."""
        return self.version, self.declared_ms, self.change_id


COPIES = VersionedCopies(lambda database: database.declared_type, COLUMNS, TypeVersion.from_row)


class ChangeResult(NamedTuple):
    """What a change has done. `away`: the databases that get it later. `written`: False: nothing changed.

    row: the newest row of the type now; None: it was never declared.
    """

    declared: DeclaredType | None
    version: int
    away: Sequence[int]
    written: bool
    row: TypeVersion | None = None


class DeclaredTypeCache:
    """The newest declarations, as far as the copies were read. Thread-safe; holds no lock during a query."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._lock = threading.Lock()
        self._newest: dict[str, TypeVersion] = {}
        self._copies: dict[int, dict[str, tuple[int, str]]] = {}
        self._types: Mapping[str, DeclaredType] = {}
        self._listeners: list[Callable[[], None]] = []
        self.faults: Mapping[str, str] = {}
        """Why the settings of a type cannot be read, by name: this release runs no job of such a type."""
        self.version = 0
        """Grows with each change of the declarations."""

    def get(self, name: str) -> DeclaredType | None:
        """The declaration of a type; None: the type is not declared."""
        return self._types.get(name)

    def all(self) -> Mapping[str, DeclaredType]:
        """All declared types, by name."""
        return self._types

    def infos(self) -> list[TypeInfo]:
        """All declared types with their last changes, by name."""
        with self._lock:
            types, newest = self._types, self._newest
        return [
            TypeInfo(types[name], row.version, row.declared_ms, row.actor, row.reason)
            for name, row in sorted(newest.items())
            if name in types
        ]

    def newest_version(self, name: str) -> TypeVersion | None:
        """The newest row of a type, which may say that it was forgotten."""
        return self._newest.get(name)

    @property
    def name_count(self) -> int:
        """How many types were ever declared, as far as their rows are left."""
        return len(self._newest)

    @property
    def was_read(self) -> bool:
        """Whether any database has answered."""
        return bool(self._copies)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` after each change, in the thread that has read it. It must be quick."""
        with self._lock:
            self._listeners.append(listener)

    def read_copy(self, database: Database) -> None:
        """Reads the changes of one database's copy: one small statement if nothing has changed.

        Raises StoreUnavailable and StatementFailed.
        """
        there = _select_newest_keys(database)
        with self._lock:
            known = dict(self._newest)
        wanted = [name for name, key in there.items() if _is_unknown(known.get(name), key)]
        rows = _select_versions(database, {name: there[name][0] for name in wanted})
        self._add_rows(database, there, rows)

    def read_all_copies(self) -> list[int]:
        """Reads the copies of all databases, and returns the indexes of those that do not answer.

        Raises StoreUnavailable if none answers.
        """
        return read_all_copies(self._databases, self.read_copy)

    def complete_copy(self, database: Database) -> int:
        """Writes the newest versions that a copy, as it was read, does not have; returns how many.

        Raises StoreUnavailable and StatementFailed.
        """
        with self._lock:
            newest, there = dict(self._newest), dict(self._copies.get(database.index, {}))
        rows = rows_missing_in_copy(newest, there)
        for row in rows:
            COPIES.insert(database, row)
        if rows:
            self.read_copy(database)
        return len(rows)

    def _add_rows(
        self, database: Database, there: dict[str, tuple[int, str]], rows: Iterable[TypeVersion]
    ) -> None:
        with self._lock:
            self._copies[database.index] = there
            newest = dict(self._newest)
            for row in rows:
                known = newest.get(row.name)
                if known is None or known.rank < row.rank:
                    newest[row.name] = row
            if newest == self._newest:
                return
            self._newest = newest
            self._types, self.faults = _parse_versions(newest.values(), self._types)
            self.version += 1
            listeners = list(self._listeners)
        for listener in listeners:
            listener()


def _is_unknown(known: TypeVersion | None, key: tuple[int, str]) -> bool:
    """Whether a row of a copy may be newer than the newest known one."""
    if known is None or key[0] > known.version:
        return True
    return key[0] == known.version and key[1] != known.change_id


def _parse_versions(
    rows: Iterable[TypeVersion], before: Mapping[str, DeclaredType]
) -> tuple[dict[str, DeclaredType], dict[str, str]]:
    """The declared types, and the faults of those whose settings cannot be read."""
    types: dict[str, DeclaredType] = {}
    faults: dict[str, str] = {}
    for row in rows:
        if row.settings is None:
            continue
        try:
            found = DeclaredType.from_json(row.name, row.settings)
        except InvalidInput as error:
            faults[row.name] = str(error)
            log.error(  # noqa: TRY400 - the text says all
                "the declaration of biz_type %r (version %d) cannot be read, so no job of it runs here: %s",
                row.name, row.version, error,
            )  # fmt: skip
            continue
        # The old object stays where nothing has changed: it may have a compiled schema.
        old = before.get(row.name)
        types[row.name] = old if old is not None and old == found else found
    return types, faults


class DeclaredTypes:
    """Changes the declarations in all databases. `types_max`: declared types, with the forgotten ones."""

    def __init__(self, databases: Databases, biz_types: BizTypeCache, types_max: int) -> None:
        self._databases, self._biz_types, self._types_max = databases, biz_types, types_max

    def change(
        self,
        name: str,
        edit: Edit,
        actor: str,
        reason: str | None = None,
        *,
        replaces_unreadable: bool = True,
    ) -> ChangeResult:
        """Declares, changes or (edit returns None) forgets a type, in all databases that answer.

        A change that changes nothing is not written. replaces_unreadable: `edit` may change a declaration
        that this release cannot read, which it gets as None; False: InvalidInput. Raises InvalidInput for a
        type beyond `types_max`, for a schema that is refused, and if another biz_type has the name's number;
        StoreUnavailable if no database answers; what `edit` raises.
        """
        check_biz_type(name)
        check_actor(actor)
        check_reason(reason)
        for _ in range(CHANGE_TRIES_MAX):
            cache = DeclaredTypeCache(self._databases)
            away = cache.read_all_copies()
            before = cache.newest_version(name)
            if name in cache.faults and not replaces_unreadable:
                rule = f"has a declaration that this release cannot read: {cache.faults[name]}"
                raise InvalidInput("biz_type", name, rule)
            wanted = edit(cache.get(name))
            settings = None if wanted is None else wanted.to_json()
            if before is not None and before.settings == settings and name not in cache.faults:
                return ChangeResult(wanted, before.version, away, written=False, row=before)
            if before is None and wanted is None:
                return ChangeResult(None, 0, away, written=False)
            if wanted is not None:
                _ = wanted.payload_check  # a schema that cannot be used is refused here
                self._check_count(cache, name)
            row = TypeVersion(
                name, 1 if before is None else before.version + 1, settings,
                self._databases.now_ms(), secrets.token_hex(8), actor, reason, copied=False, account=None,
            )  # fmt: skip
            missed = COPIES.insert_everywhere(
                self._databases, row, away, self._number_of(name, wanted)
            )
            if missed is not None:
                return ChangeResult(wanted, row.version, missed, written=True, row=row)
        rule = (
            f"was changed by others {CHANGE_TRIES_MAX} times while this change was made: try again"
        )
        raise InvalidInput("biz_type", name, rule)

    def _check_count(self, cache: DeclaredTypeCache, name: str) -> None:
        count = cache.name_count
        if cache.newest_version(name) is None and count >= self._types_max:
            rule = (
                f"is new, and {count} types are declared or forgotten already: `limits.declared_types` "
                f"allows {self._types_max}"
            )
            raise InvalidInput("biz_type", name, rule)

    def _number_of(self, name: str, wanted: DeclaredType | None) -> Callable[[Database], object]:
        """What a database needs before the row: the number of a type that is declared."""
        if wanted is None:
            return lambda _database: None
        return lambda database: self._biz_types.get_or_create_number(name, database)


def read_history(databases: Databases, name: str, limit: int = HISTORY_MAX) -> list[TypeVersion]:
    """The newest `limit` versions of a type, newest first, of all databases that answer.

    A version that people wrote stands for its copies. Raises NotFound, and StoreUnavailable if no database
    answers.
    """
    found = COPIES.read_history(databases, name, limit)
    if not found:
        raise NotFound(f"the biz_type {name!r} was never declared")
    return found


def delete_old_versions(database: Database, before_ms: int, limit: int) -> int:
    """Deletes up to `limit` versions that a newer one replaced and that are older than `before_ms`."""
    return COPIES.delete_replaced(database, "declared_time", before_ms, limit)


def _select_newest_keys(database: Database) -> dict[str, tuple[int, str]]:
    """The version and change_id of the newest row of each type in a database."""
    query = _newest_keys_query(database.declared_type)
    return {name: (version, change_id) for name, version, change_id in database.select(query)}


@lru_cache(maxsize=DATABASES_CACHED)  # every node reads the keys again and again
def _newest_keys_query(table: Table) -> Select[Any]:
    newest = select(table.c.name, func.max(table.c.version).label("v")).group_by(table.c.name)
    found = newest.subquery()
    return select(table.c.name, table.c.version, table.c.change_id).join(
        found, and_(table.c.name == found.c.name, table.c.version == found.c.v)
    )


def _select_versions(database: Database, wanted: Mapping[str, int]) -> list[TypeVersion]:
    """The rows of these versions, by name."""
    table = database.declared_type.c
    names = sorted(wanted)
    rows: list[TypeVersion] = []
    for start in range(0, len(names), NAMES_AT_ONCE):
        some = names[start : start + NAMES_AT_ONCE]
        condition = or_(*(and_(table.name == n, table.version == wanted[n]) for n in some))
        rows += map(
            TypeVersion.from_row,
            database.select(COPIES.select_rows(database.declared_type).where(condition)),
        )
    return rows
