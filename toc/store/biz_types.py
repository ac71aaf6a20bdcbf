"""Names and numbers of biz_types. Each database has its own copy of the table `toc_biz_type`.

The number of a type follows from its name (`domain.biz_types`), so no database assigns numbers, and toc
writes a row that a fail-over lost again, with the same number. A type's row is committed in a database
before the first job of that type: the copy in a job's database has the name for the job's number.

Conflict: one number has different names in two databases. Then the type of the jobs with this number is
unknown: toc neither runs nor accepts them until a person has resolved the conflict
(docs/how-to/type-conflict.md).

A process caches the copies, and reads a copy again when its cache is `REFRESH_S` old: a node in a service per
database; a client when it uses a type in that database, and then it reads the other copies in the background
(so each client learns of a conflict). A process also inserts known types into copies that lack these types.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, insert, select

from toc.domain.biz_types import type_no_of
from toc.errors import (
    InvalidInput,
    NotFound,
    SchemaMismatch,
    StatementFailed,
    StoreUnavailable,
    TocError,
)
from toc.runtime import metrics
from toc.store.databases import Database, Databases

log = logging.getLogger(__name__)

REFRESH_S = 60.0
MISSED_S = 1.0  # the pause before a number without a name is looked up again
MISSED_MAX = 1000
ROWS_AT_ONCE = 1000  # rows that one statement reads
CLOSE_S_MAX = 1.0

Conflicts = Mapping[int, Mapping[int, str]]
"""Type numbers with two or more names: number -> database -> name."""


class KnownTypes(NamedTuple):
    """The merged content of all copies of `toc_biz_type`."""

    names: Mapping[int, str]
    """The names by number, without the numbers of `conflicts`."""
    conflicts: Conflicts
    version: int = 0
    """Grows with each change of the types."""


class BizTypeCache:
    """The types of all databases, cached. Thread-safe: no lock is held while a database is asked."""

    def __init__(self, databases: Databases) -> None:
        self._databases, self._clock = databases, databases.clock
        self._lock = threading.Lock()
        self._copies: dict[int, Mapping[int, str]] = {}
        self._read_s: dict[int, float] = {}
        self._missing_until_s: dict[tuple[int, int], float] = {}
        self._others_read_s = self._clock.monotonic_s()
        self._others_done = threading.Event()
        self._others_done.set()
        self.known = KnownTypes({}, {})

    # ---- numbers

    def get_or_create_numbers(
        self, names: Collection[str], database: Database, types_max: int | None = None
    ) -> dict[str, int]:
        """Returns the number of each type; inserts types that the database does not have yet.

        Waits only for `database`, and only for types that are not cached. `types_max`: the maximum number of
        types in the database (approximately: two processes may exceed it together). Raises InvalidInput for a
        new type beyond `types_max`, or if another type has the number; SchemaMismatch for a type whose number
        is in conflict; StoreUnavailable.
        """
        self._refresh_if_old(database)
        numbers = {name: type_no_of(name) for name in names}  # guard: number-of-a-name
        conflicts, copy = self.known.conflicts, self._cached_copy(database)
        for name, number in numbers.items():
            if number in conflicts:
                text = f"biz_type {name!r}: {describe_type_conflict(number, conflicts)}"
                raise SchemaMismatch(text)
        new = {number: name for name, number in numbers.items() if copy.get(number) != name}
        if new:
            self._create_types(database, new, types_max)
        return numbers

    def get_or_create_number(self, name: str, database: Database) -> int:
        """As `get_or_create_numbers`, for one type."""
        return self.get_or_create_numbers((name,), database)[name]

    def find_number(self, name: str, database: Database) -> int | None:
        """The number of a type; None: the database has no such type. Waits only for `database`."""
        self._refresh_if_old(database)
        number = type_no_of(name)
        if self._cached_copy(database).get(number) != name:
            self._read_and_cache_types(database, [number])
        return number if self._cached_copy(database).get(number) == name else None

    # ---- names

    def find_name(self, type_no: int, database: Database | None = None) -> str:
        """The name of a type number in a database (None: in any database). Raises NotFound.

        Queries only `database` (None: each database), and only if the number is not cached.
        """
        asked = self._databases.all if database is None else [database]
        for each in asked:
            if type_no not in self._cached_copy(each) and not self._was_missing_recently(
                each, type_no
            ):
                with suppress(StoreUnavailable, StatementFailed):
                    self._read_and_cache_types(each, [type_no])
                    if type_no not in self._cached_copy(each):
                        self._remember_missing(each, type_no)
            name = self._cached_copy(each).get(type_no)
            if name is not None:
                return name
        return self.cached_name(type_no)

    def cached_name(self, type_no: int) -> str:
        """The cached name of a type number. Raises NotFound."""
        found = self.known.names.get(type_no)
        if found is None:
            raise NotFound(f"no biz_type has the number {type_no}, or two biz_types have it")
        return found

    def _was_missing_recently(self, database: Database, type_no: int) -> bool:
        until_s = self._missing_until_s.get((database.index, type_no))
        return until_s is not None and self._clock.monotonic_s() < until_s

    def _remember_missing(self, database: Database, type_no: int) -> None:
        if len(self._missing_until_s) >= MISSED_MAX:
            self._missing_until_s.clear()
        self._missing_until_s[database.index, type_no] = self._clock.monotonic_s() + MISSED_S

    # ---- copies

    def read_and_complete_type_copy(self, database: Database) -> None:
        """Reads a database's whole copy, and inserts the known types that this copy lacks.

        Raises StoreUnavailable.
        """
        index = database.index
        # The time is set before the read, so that no other thread reads the copy at the same time.
        last_s = self._read_s.get(index, -REFRESH_S)
        self._read_s[index] = self._clock.monotonic_s()
        try:
            there = _select_types(database)
        except BaseException:
            self._read_s[index] = last_s  # the next call tries again
            raise
        self._update_cached_copy(database, there, whole=True)
        self._write_missing_types(database, there)

    def copy_types_between_databases(self, databases: Iterable[Database]) -> None:
        """Inserts into each of these copies the types that only other copies have. All must be cached."""
        for database in databases:
            self._write_missing_types(database, self._cached_copy(database))

    def _write_missing_types(self, database: Database, there: Mapping[int, str]) -> None:
        """Inserts the known types that `there` lacks, without numbers in conflict.

        After a failed insert the next `read_and_complete_type_copy` tries again.
        """
        lacking = {no: name for no, name in self.known.names.items() if there.get(no) != name}
        if lacking:
            # InvalidInput: on SQLite this thread may hold the write lock itself.
            with suppress(StoreUnavailable, StatementFailed, InvalidInput):
                self._insert_types(database, lacking)

    def close(self) -> None:
        """Waits up to CLOSE_S_MAX for the thread that reads the other databases."""
        self._others_done.wait(CLOSE_S_MAX)

    def _refresh_if_old(self, database: Database) -> None:
        """Reads a database's copy again if the cache is old, and the other copies in the background."""
        now_s = self._clock.monotonic_s()
        if now_s - self._read_s.get(database.index, -REFRESH_S) >= REFRESH_S:
            self.read_and_complete_type_copy(database)
        with self._lock:
            if now_s - self._others_read_s < REFRESH_S or not self._others_done.is_set():
                return
            self._others_read_s = now_s
            self._others_done.clear()
        # A daemon: the end of the process must not wait for a database that hangs.
        reader = threading.Thread(
            target=self._read_other_databases, args=(database,), name="toc-types", daemon=True
        )
        try:
            reader.start()
        except RuntimeError as error:  # the system has no more threads; the next try is in a minute
            self._others_done.set()
            log.debug(
                "no thread to read the biz_types of the databases other than %d: %s",
                database.index,
                error,
            )

    def _read_other_databases(self, database: Database) -> None:
        try:
            for other in self._databases:
                if other is not database:
                    with suppress(TocError):
                        self.read_and_complete_type_copy(other)
        finally:
            self._others_done.set()

    def _create_types(
        self, database: Database, new: Mapping[int, str], types_max: int | None
    ) -> None:
        """Inserts the types that the database lacks. Raises as `get_or_create_numbers`."""
        self._read_and_cache_types(database, list(new))
        copy, known = self._cached_copy(database), self.known.names
        lacking = {number: name for number, name in new.items() if number not in copy}
        for number, name in new.items():
            holder = copy.get(number, known.get(number, name))
            if holder != name:
                raise _number_taken_error(name, number, holder)
        if lacking and types_max is not None:
            count = select(func.count()).select_from(database.biz_type)
            there = database.scalar(count)
            if there + len(lacking) > types_max:
                rule = (
                    f"is new, and database {database.index} has {there} types already: "
                    f"`limits.biz_types` allows {types_max} (a type names a kind of action, not a job)"
                )
                name = sorted(lacking.values())[max(0, types_max - there)]
                raise InvalidInput("biz_type", name, rule)
        if lacking:
            self._insert_types(database, lacking)

    def _insert_types(self, database: Database, rows: Mapping[int, str]) -> None:
        """Inserts rows and caches them. Raises InvalidInput if another row has the number or the name."""
        new = insert(database.biz_type).prefix_with("OR IGNORE", dialect="sqlite")
        for dialect in ("mysql", "mariadb"):
            new = new.prefix_with("IGNORE", dialect=dialect)
        values = [{"type_no": number, "name": rows[number]} for number in sorted(rows)]
        database.run_transaction(lambda connection: connection.execute(new, values))
        written = self._read_and_cache_types(database, list(rows))
        for number, name in rows.items():
            if written.get(number) != name:
                raise _number_taken_error(name, number, written.get(number))

    def _read_and_cache_types(self, database: Database, numbers: Sequence[int]) -> dict[int, str]:
        """Reads the rows of these numbers and caches them."""
        column, found = database.biz_type.c.type_no, dict[int, str]()
        for start in range(0, len(numbers), ROWS_AT_ONCE):
            found |= _select_types(database, column.in_(numbers[start : start + ROWS_AT_ONCE]))
        self._update_cached_copy(database, found)
        return found

    def _cached_copy(self, database: Database) -> Mapping[int, str]:
        return self._copies.get(database.index, {})

    def _update_cached_copy(
        self, database: Database, rows: Mapping[int, str], *, whole: bool = False
    ) -> None:
        """Updates the cache with rows of a database's copy; `whole`: `rows` are all its rows.

        A cached row that the copy lacks is removed only if its number is in conflict: a person resolves
        conflicts by changing rows. Otherwise a fail-over lost the row, or another thread has just inserted
        the row.
        """
        with self._lock:
            old, before = self._cached_copy(database), self.known
            names = {**old, **rows}
            if whole:
                resolved = before.conflicts.keys() - rows.keys()
                names = {no: name for no, name in names.items() if no not in resolved}
            if names == old and database.index in self._copies:
                return
            self._copies[database.index] = names
            found, conflicts = merge_type_copies(dict(sorted(self._copies.items())))
            self.known = KnownTypes(found, conflicts, before.version + 1)
            metrics.TYPE_CONFLICTS.set(len(conflicts))
        for number in sorted(conflicts.keys() - before.conflicts.keys()):
            log.error("biz_types: %s", describe_type_conflict(number, conflicts))


def merge_type_copies(copies: Mapping[int, Mapping[int, str]]) -> tuple[dict[int, str], Conflicts]:
    """Merges the copies (by database): the names by number, and the conflicts."""
    by_number: dict[int, dict[int, str]] = defaultdict(dict)
    for index, names in copies.items():
        for number, name in names.items():
            by_number[number][index] = name
    conflicts = {no: names for no, names in by_number.items() if len(set(names.values())) > 1}
    found = {no: next(iter(n.values())) for no, n in by_number.items() if no not in conflicts}
    return found, conflicts


def read_known_types(databases: Iterable[Database], *, all_must_answer: bool = False) -> KnownTypes:
    """Reads the copies of the databases that answer. Writes and caches nothing.

    Raises StoreUnavailable if no database answers, or if `all_must_answer` and one database does not.
    """
    copies: dict[int, Mapping[int, str]] = {}
    failed: StoreUnavailable | None = None
    for database in databases:
        try:
            copies[database.index] = _select_types(database)
        except StoreUnavailable as error:
            failed = error
    if failed is not None and (all_must_answer or not copies):
        raise failed
    return KnownTypes(*merge_type_copies(copies))


def describe_type_conflict(number: int, conflicts: Conflicts) -> str:
    """For logs and errors: which name each database has for a type number that has several names."""
    names = ", ".join(f"{name!r} in database {n}" for n, name in sorted(conflicts[number].items()))
    return (
        f"the number {number} is {names}: jobs of this number are not run and not accepted "
        "(`toc doctor` says how to mend it)"
    )


def _select_types(database: Database, *conditions: ColumnElement[bool]) -> dict[int, str]:
    table = database.biz_type
    query = select(table.c.type_no, table.c.name).where(*conditions)
    return dict(database.select(query))


def _number_taken_error(name: str, number: int, holder: str | None) -> InvalidInput:
    if holder is None:
        rule = f"cannot be used: its row in toc_biz_type has another number than {number}"
    else:
        rule = f"cannot be used: the type {holder!r} has its number, {number}; choose another name"
    return InvalidInput("biz_type", name, rule)
