"""Names and numbers of biz_types. Each database has its own copy of the table `toc_biz_type`.

Authority: the copy in a job's own database defines the name of the job's type number. A type's row is
committed there before the first job of that type, so a reader of the job finds the name. A new
type gets the number that follows from its name (`domain.biz_types`): no database is asked for a
number, and a row that a fail-over lost is written again with the same number. Types of releases
before 20 have small numbers from database 0; they keep them. Those releases number a type in
database 0 and read no other number of it: so a new type is written there as well. A type that still gets
two numbers is treated as one type by all verbs.

Conflict: one number has different names in two databases. Then the type of its jobs is unknown: they are
neither run nor accepted until a person has resolved it (docs/how-to/type-conflict.md).

A process caches the copies. It reads a copy again when it is `REFRESH_S` old: nodes in a service
per database, clients when they use a type in that database, and the other copies in the background
(so each client learns of a conflict before it is resolved). Rows that a copy has lost are written again.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, func, insert, select

from toc.domain.biz_types import type_no_of
from toc.errors import InvalidInput, NotFound, SchemaMismatch, StatementFailed, StoreUnavailable
from toc.runtime import metrics
from toc.runtime.clock import SystemClock
from toc.store.databases import Database, Databases

log = logging.getLogger(__name__)

REFRESH_S = 60.0
MISSED_S = 1.0  # the pause before a number without a name is looked up again
MISSED_MAX = 1000
NAMES_AT_ONCE = 1000  # in one statement
OTHERS_WAIT_S = 0.2  # at most, for an answer of another database than the job's

Conflicts = Mapping[int, Mapping[int, str]]
"""Numbers that have two names or more: for each, the name by database."""


class KnownTypes(NamedTuple):
    """The merged content of all copies. `names`: by number, without the numbers of `conflicts`."""

    names: Mapping[int, str]
    conflicts: Conflicts
    version: int
    """Grows with each change."""
    several_numbers: Mapping[str, tuple[int, ...]] = {}
    """Names that have several numbers, without those in conflict."""


class _CachedCopy(NamedTuple):
    names: Mapping[int, str]
    numbers: Mapping[str, int]


_EMPTY_COPY = _CachedCopy({}, {})
_ANYWHERE = -1  # in place of a database


def _known_numbers(copy: _CachedCopy, names: Iterable[str]) -> dict[str, int]:
    return {name: copy.numbers[name] for name in names if name in copy.numbers}


class BizTypes:
    """The types of all databases, cached. Thread-safe: no lock is held while a database is asked."""

    def __init__(self, databases: Databases) -> None:
        self._databases, self._clock = databases, databases.clock
        self._lock = threading.Lock()
        self._copies: dict[int, _CachedCopy] = {}
        self._read_s: dict[int, float] = {}
        self._missing_until_s: dict[tuple[int, int], float] = {}
        # For each read in progress: the types that were added since it began.
        self._learned: dict[int, list[dict[int, str]]] = defaultdict(list)
        self._others_read_s = self._clock.monotonic_s()  # at the other databases' copies
        self._database_0_late_s: float | None = None  # when waiting for database 0 last timed out
        self.known = KnownTypes({}, {}, 0)

    # ---- numbers

    def numbers_or_create(
        self, names: Collection[str], database: Database, types_max: int | None = None
    ) -> dict[str, int]:
        """The number of each type in a database. New types are inserted there, in one statement.

        Waits only for `database` (and up to 0.2 s for database 0 when a type is new), and only for types
        that are not cached. `types_max`: how many types the database may then have (approximately: two
        processes may exceed it together). Raises InvalidInput for a
        new type beyond it, or whose number another name has; SchemaMismatch for a type whose number
        is in conflict; StoreUnavailable.
        """
        self._refresh_if_old(database)
        # Kept in `found`: another thread's read may remove a name from the cached copy.
        found = _known_numbers(self._cached_copy(database), names)
        missing = sorted(set(names) - found.keys())
        if missing:
            found |= _known_numbers(self._read_by_names(database, missing), missing)
            new = [name for name in missing if name not in found]
            if new:
                found |= self._create_types(database, new, types_max)
        conflicts = self.known.conflicts
        if conflicts:
            for name, number in found.items():
                if number in conflicts:
                    raise SchemaMismatch(
                        f"biz_type {name!r}: {describe_conflict(number, conflicts)}"
                    )
        return found

    def number_or_create(self, name: str, database: Database) -> int:
        """As `numbers`, for one type."""
        return self.numbers_or_create((name,), database)[name]

    def find_numbers(self, name: str, database: Database) -> tuple[int, ...]:
        """All numbers that jobs of a type may have in a database, this database's own first. Writes nothing.

        There are several only if an earlier release numbered the type too. Waits only for `database`.
        """
        self._refresh_if_old(database)
        copy = self._cached_copy(database)
        if name not in copy.numbers:
            copy = self._read_by_names(database, [name])
        own = copy.numbers.get(name)
        return (*(() if own is None else (own,)), *self._numbers_in_other_copies(name, own, copy))

    def other_numbers(self, name: str, number: int, database: Database) -> tuple[int, ...]:
        """The numbers besides `number` that jobs of a type may have in a database, from the cache."""
        if name not in self.known.several_numbers:
            return ()
        return self._numbers_in_other_copies(name, number, self._cached_copy(database))

    def _numbers_in_other_copies(
        self, name: str, own: int | None, copy: _CachedCopy
    ) -> tuple[int, ...]:
        """The type's numbers in other copies, without those that `copy` uses for another type."""
        numbers = {
            each.numbers[name] for each in list(self._copies.values()) if name in each.numbers
        }
        conflicts = self.known.conflicts
        return tuple(
            number
            for number in sorted(numbers)
            if number != own and number not in conflicts and number not in copy.names
        )

    # ---- names

    def find_name(self, type_no: int, database: Database | None = None) -> str:
        """The name of a number in a database; None: in any database. Raises NotFound.

        Queries only `database` (None: each database), and only for a number that is not cached.
        """
        asked = self._databases.all if database is None else [database]
        for each in asked:
            name = self._cached_copy(each).names.get(type_no)
            if name is None and not self._was_missing_recently(each, type_no):
                with suppress(StoreUnavailable, StatementFailed):
                    name = self._read_name(each, type_no)
            if name is not None:
                return name
        return self.known_name(type_no)

    def find_name_anywhere(self, type_no: int, database: Database) -> str:
        """As `find_name`; for a number that `database` does not have, the other copies are read now.

        Waits 0.2 s at most. It is for clients: workers must not wait here.
        """
        try:
            return self.find_name(type_no, database)
        except NotFound:
            if not self._was_missing_anywhere_recently(type_no):
                self._read_others(database, 0, OTHERS_WAIT_S)
            return self.known_name(type_no)

    def known_name(self, type_no: int) -> str:
        """The cached name of a number. Raises NotFound."""
        found = self.known.names.get(type_no)
        if found is None:
            raise NotFound(f"no biz_type has the number {type_no}, or two have it")
        return found

    def _was_missing_anywhere_recently(self, type_no: int) -> bool:
        """Whether the other copies were read for this number less than MISSED_S ago; remembers this read."""
        now_s, key = self._clock.monotonic_s(), (_ANYWHERE, type_no)
        if now_s < self._missing_until_s.get(key, now_s):
            return True
        self._remember_missing(key)
        return False

    def _remember_missing(self, key: tuple[int, int]) -> None:
        if len(self._missing_until_s) >= MISSED_MAX:
            self._missing_until_s.clear()
        self._missing_until_s[key] = self._clock.monotonic_s() + MISSED_S

    # ---- copies

    def read_copy(self, database: Database) -> None:
        """Reads a database's whole copy, and writes there what it has lost since it was read last.

        Raises StoreUnavailable.
        """
        index, before = database.index, self._cached_copy(database)
        last_s, learned = self._read_s.get(index), dict[int, str]()
        # Set before the read, so that no other thread reads the copy at the same time.
        self._read_s[index] = self._clock.monotonic_s()
        self._learned[index].append(learned)
        try:
            there = _fetch_types(database, _select_types(database))
            taken = set(there.values())
            there |= {no: n for no, n in learned.items() if no not in there and n not in taken}
            self._restore_missing(database, there, before.names)
        except BaseException:
            if last_s is None:
                self._read_s.pop(index, None)
            else:  # the next call tries again
                self._read_s[index] = last_s
            raise
        finally:
            with self._lock:
                self._learned[index] = [
                    each for each in self._learned[index] if each is not learned
                ]

    def write_missing_types(self, databases: Iterable[Database]) -> None:
        """Inserts into these copies the types that only other copies have. All must have been read."""
        for database in databases:
            self._restore_missing(database, self._cached_copy(database).names, self.known.names)

    def _restore_missing(
        self, database: Database, there: Mapping[int, str], wanted: Mapping[int, str]
    ) -> None:
        taken = set(there.values())
        lacking = {
            number: name
            for number, name in wanted.items()
            if number not in there and name not in taken and number not in self.known.conflicts
        }
        if lacking:
            # Cached even if the insert fails: then the next read tries again.
            there = {**lacking, **there}
            # InvalidInput: on SQLite this thread may hold the write lock itself.
            with suppress(StoreUnavailable, StatementFailed, InvalidInput):
                there = {**there, **self._insert_types(database, lacking)}
        self._update_copy(database, there, whole=True)

    def _refresh_if_old(self, database: Database) -> None:
        """Reads a database's copy again when it is old, and the others' in the background."""
        now_s = self._clock.monotonic_s()
        if now_s - self._read_s.get(database.index, -REFRESH_S) >= REFRESH_S:
            self.read_copy(database)
        if now_s - self._others_read_s >= REFRESH_S:
            self._others_read_s = now_s
            self._read_others(database, REFRESH_S / 2, wait_s=0)

    def _read_others(self, database: Database, older_s: float, wait_s: float) -> None:
        """Reads other copies older than `older_s` in the background; waits `wait_s` in total."""
        now_s = self._clock.monotonic_s()
        asked: list[threading.Event | None] = []
        for other in self._databases:
            age_s = now_s - self._read_s.get(other.index, -REFRESH_S)
            if other is not database and age_s >= older_s:
                asked.append(
                    self._databases.background_queries.submit(
                        other.index, partial(self.read_copy, other)
                    )
                )
        _wait_for_all(asked, wait_s)

    def _read_by_names(self, database: Database, names: Sequence[str]) -> _CachedCopy:
        """Reads the rows of these names and caches them."""
        column = database.biz_type.c.name
        found: dict[int, str] = {}
        for start in range(0, len(names), NAMES_AT_ONCE):
            some = names[start : start + NAMES_AT_ONCE]
            found |= _fetch_types(database, _select_types(database).where(column.in_(some)))
        return self._update_copy(database, found)

    def _read_name(self, database: Database, type_no: int) -> str | None:
        query = _select_types(database).where(database.biz_type.c.type_no == type_no)
        found = _fetch_types(database, query)
        self._update_copy(database, found)
        if not found:
            self._remember_missing((database.index, type_no))
        return found.get(type_no)

    def _was_missing_recently(self, database: Database, type_no: int) -> bool:
        until_s = self._missing_until_s.get((database.index, type_no))
        return until_s is not None and self._clock.monotonic_s() < until_s

    def _create_types(
        self, database: Database, names: Sequence[str], types_max: int | None
    ) -> dict[str, int]:
        """Inserts new types; returns their numbers by name."""
        if types_max is not None:
            count = select(func.count()).select_from(database.biz_type)
            there = database.read(lambda connection: connection.execute(count).scalar_one())
            if there + len(names) > types_max:
                rule = (
                    f"is new, and database {database.index} has {there} types already: "
                    f"`limits.biz_types` allows {types_max} (a type names a kind of action, not a job)"
                )
                raise InvalidInput("biz_type", names[max(0, types_max - there)], rule)
        wanted = self._rows_of_new_types(names)
        if database.index and self._insert_into_database_0(wanted):
            wanted = self._rows_of_new_types(names)  # database 0 may have other numbers for them
        written = self._insert_types(database, wanted)
        self._update_copy(database, written)
        numbers = {name: number for number, name in written.items()}
        for number, name in wanted.items():
            if name not in numbers:
                raise _number_taken_error(name, number, self.find_name(number, database))
        return numbers

    def _rows_of_new_types(self, names: Sequence[str]) -> dict[int, str]:
        """The rows of new types: the number that a copy has for the name, else the one computed from it."""
        wanted: dict[int, str] = {}
        conflicts = self.known.conflicts
        # Database 0 comes first: processes of earlier releases read no other copy.
        copies = [copy for _, copy in sorted(self._copies.items())]
        for name in names:
            numbers = [copy.numbers[name] for copy in copies if name in copy.numbers]
            given = (no for no in numbers if no not in conflicts)
            number = next(given, type_no_of(name))  # guard: number-of-a-name
            holder = wanted.get(number) or self.known.names.get(number, name)
            if holder != name or number in conflicts:
                raise _number_taken_error(name, number, holder)
            wanted[number] = name
        return wanted

    def _insert_into_database_0(self, rows: Mapping[int, str]) -> bool:
        """Inserts new types into database 0 before their own database; False: it has not answered yet.

        Earlier releases look names up there, and number the ones they do not find. The wait is short, because
        a database's types need no other database. After a wait that timed out the next calls do not wait.
        """
        first, now_s = self._databases[0], self._clock.monotonic_s()
        late_s = self._database_0_late_s
        rests = late_s is not None and now_s - late_s < REFRESH_S

        def write() -> None:
            self._update_copy(first, self._insert_types(first, rows))

        asked = self._databases.background_queries.submit(0, write)
        answered = _wait_for_all([asked], 0 if rests else OTHERS_WAIT_S)
        if answered:
            self._database_0_late_s = None
        elif not rests:
            self._database_0_late_s = now_s
        return answered

    def _insert_types(self, database: Database, rows: Mapping[int, str]) -> dict[int, str]:
        """Inserts the rows whose number and name are both free; reads the present rows of all the names."""
        table = database.biz_type
        new = insert(table).prefix_with("OR IGNORE", dialect="sqlite")
        for dialect in ("mysql", "mariadb"):
            new = new.prefix_with("IGNORE", dialect=dialect)
        values = [{"type_no": number, "name": rows[number]} for number in sorted(rows)]
        database.run_transaction(lambda connection: connection.execute(new, values))
        found: dict[int, str] = {}
        names = sorted(rows.values())
        for start in range(0, len(names), NAMES_AT_ONCE):
            some = names[start : start + NAMES_AT_ONCE]
            found |= _fetch_types(database, _select_types(database).where(table.c.name.in_(some)))
        return found

    def _cached_copy(self, database: Database) -> _CachedCopy:
        return self._copies.get(database.index, _EMPTY_COPY)

    def _update_copy(
        self, database: Database, rows: Mapping[int, str], *, whole: bool = False
    ) -> _CachedCopy:
        """Updates the cache with rows of a database's copy; `whole`: `rows` is the complete copy."""
        with self._lock:
            old = self._cached_copy(database)
            if not whole:
                for learned in self._learned[database.index]:
                    learned.update(rows)
            names = dict(rows) if whole else {**old.names, **rows}
            if names == old.names and database.index in self._copies:
                return old
            copy = _CachedCopy(names, {name: number for number, name in names.items()})
            self._copies[database.index] = copy
            before = self.known
            found, conflicts = merge_copies(
                {index: each.names for index, each in sorted(self._copies.items())}
            )
            self.known = KnownTypes(
                found, conflicts, before.version + 1, names_with_several_numbers(found)
            )
            metrics.TYPE_CONFLICTS.set(len(conflicts))
        for number in sorted(conflicts.keys() - before.conflicts.keys()):
            log.error("biz_types: %s", describe_conflict(number, conflicts))
        return copy


def merge_copies(copies: Mapping[int, Mapping[int, str]]) -> tuple[dict[int, str], Conflicts]:
    """Merges the copies (by database): the names by number, and the conflicts."""
    said: dict[int, dict[int, str]] = {}
    for index, names in copies.items():
        for number, name in names.items():
            said.setdefault(number, {})[index] = name
    conflicts = {no: names for no, names in said.items() if len(set(names.values())) > 1}
    found = {no: next(iter(n.values())) for no, n in said.items() if no not in conflicts}
    return found, conflicts


def names_with_several_numbers(names: Mapping[int, str]) -> dict[str, tuple[int, ...]]:
    """The names that have several numbers, with their numbers."""
    numbers: dict[str, tuple[int, ...]] = {}
    for number, name in sorted(names.items()):
        numbers[name] = (*numbers.get(name, ()), number)
    return {name: several for name, several in numbers.items() if len(several) > 1}


def read_names_by_number(
    databases: Iterable[Database], *, all_must_answer: bool = False
) -> tuple[dict[int, str], Conflicts]:
    """As `merge_copies`, of copies that are read now from the databases that answer.

    Raises StoreUnavailable when none does; or when one does not and `all_must_answer`.
    """
    copies: dict[int, Mapping[int, str]] = {}
    failed: StoreUnavailable | None = None
    for database in databases:
        try:
            copies[database.index] = _fetch_types(database, _select_types(database))
        except StoreUnavailable as error:
            failed = error
    if failed is not None and (all_must_answer or not copies):
        raise failed
    return merge_copies(copies)


def describe_conflict(number: int, conflicts: Conflicts) -> str:
    """The text of a conflict, for logs and errors."""
    names = ", ".join(f"{name!r} in database {n}" for n, name in sorted(conflicts[number].items()))
    return (
        f"the number {number} is {names}: jobs of this number are not run and not accepted "
        "(`toc doctor` says how to mend it)"
    )


def _select_types(database: Database) -> Select[Any]:
    return select(database.biz_type.c.type_no, database.biz_type.c.name)


def _fetch_types(database: Database, query: Select[Any]) -> dict[int, str]:
    def rows(connection: Connection) -> dict[int, str]:
        return {row[0]: row[1] for row in connection.execute(query)}

    return database.read(rows)


def _wait_for_all(asked: Iterable[threading.Event | None], wait_s: float) -> bool:
    """Waits up to `wait_s`; whether all queries have ended. A query that was not started has not."""
    clock = SystemClock()  # threads take real time
    deadline_s, done = clock.monotonic_s() + wait_s, True
    for each in asked:
        done &= each is not None and each.wait(max(0.0, deadline_s - clock.monotonic_s()))
    return done


def _number_taken_error(name: str, number: int, holder: str) -> InvalidInput:
    rule = f"cannot be used: the type {holder!r} has its number, {number}; choose another name"
    return InvalidInput("biz_type", name, rule)
