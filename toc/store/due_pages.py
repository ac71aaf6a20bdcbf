"""Reads pages of live rows by (due_time, job_id) for the loader and the scanner, and no ended rows.

One statement can also find which of many shards have any such row. Most shards have none, so an idle worker
saves a round trip per shard.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    bindparam,
    literal_column,
    or_,
    select,
)

from toc.errors import SchemaMismatch, StoreUnavailable
from toc.store.column_types import DatetimeAsMillis, UInt64, db_now_plus
from toc.store.compiled_statement import compile_once
from toc.store.databases import Databases
from toc.store.job_rows import after_due_key_condition, due_or_lease_end
from toc.store.schema import JOB

PAUSE_FACTOR = 4  # after a failed read a shard is skipped for 4 times as long as the read took
SHARDS_PER_QUERY_MAX = 240  # shards that one statement asks about
BITS = 60  # shards per number of the result, one bit for each shard; integers of all engines have 63 bits

c = JOB.c


class DueRow(NamedTuple):
    """A live row. `key`: its place in the index. `due_ms`: its due time; running: the end of its lease."""

    key: tuple[int, int]
    due_ms: int
    type_no: int
    priority: int = 0

    @property
    def job_id(self) -> int:
        return self.key[1]


class TypesExcept(NamedTuple):
    """Every type number except these."""

    numbers: frozenset[int]


class DuePages:
    """Reads due rows from the primaries, a new transaction per page."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def read_due_rows(
        self, shard: int, after: tuple[int, int], until_ms: int, limit: int
    ) -> list[DueRow]:
        """Live rows (running ones too) with (due_time, job_id) > after and due_time <= until_ms."""
        return self._read_due_page(shard, after, (c.due_time <= until_ms,), None, limit)

    def find_shards_with_due(self, wanted: Mapping[int, tuple[tuple[int, int], int]]) -> set[int]:
        """The shards in which `read_due_rows` finds a row. `wanted`: shard -> (after, until_ms).

        The shards must be in one database, and at most SHARDS_PER_QUERY_MAX.
        """
        return self._find_shards_with_rows(
            _AFTER,
            {
                shard: {"after_ms": after[0], "after_id": after[1], "until_ms": until_ms}
                for shard, (after, until_ms) in wanted.items()
            },
        )

    def read_overdue_rows(
        self,
        shard: int,
        after: tuple[int, int],
        grace_ms: int,
        types: Collection[int] | TypesExcept | None,
        limit: int,
        end: tuple[int, int] | None = None,
    ) -> list[DueRow]:
        """Live rows whose due time, or lease if they run, ended more than `grace_ms` ago; oldest due first.

        The database's clock decides. Leaves out rows that are due only because that clock jumped ahead (see
        `runtime.server_clock`). `types`: only these type numbers; None: all. `end`: the key of the last row
        that it reads; None: all rows.
        """
        until_ms = self._due_ms(shard) - grace_ms
        overdue = _overdue_conditions(db_now_plus(-grace_ms), until_ms)
        if end is not None:
            overdue += (c.due_time <= end[0], or_(c.due_time < end[0], c.job_id <= end[1]))
        return self._read_due_page(shard, after, overdue, types, limit)

    def find_overdue_shards(self, grace_ms: Mapping[int, int]) -> set[int]:
        """The shards with an overdue row of any type. `grace_ms`: by shard.

        The shards must be in one database, and at most SHARDS_PER_QUERY_MAX.
        """
        return self._find_shards_with_rows(_OVERDUE, self._overdue_values(grace_ms))

    def find_overdue_shards_after(
        self,
        grace_ms: Mapping[int, int],
        after: Mapping[int, tuple[int, int]],
        rows_max: int,
        left_out: Collection[int],
    ) -> set[int]:
        """The shards with a row of any type but those `left_out` among the first overdue rows after a key.

        It reads at most `rows_max` rows of each shard: the index does not contain the type.
        """
        rows = (
            select(c.type_no)
            .where(*_AFTER_KEY, *_OVERDUE_UNTIL)
            .order_by(c.due_time, c.job_id)
            .limit(literal_column(str(rows_max)))
            .subquery()
        )
        query = _ONE.select_from(rows).where(rows.c.type_no.not_in(sorted(left_out)))
        return self._find_shards_with_rows(query, self._overdue_values(grace_ms, after))

    def find_shards_with_rows_behind(
        self, grace_ms: Mapping[int, int], after: Mapping[int, tuple[int, int]], rows: int
    ) -> set[int]:
        """The shards in which `read_due_key` finds a key."""
        key = (
            _ONE.where(*_AFTER_KEY, *_DUE_UNTIL)
            .order_by(c.due_time, c.job_id)
            .limit(literal_column("1"))
            .offset(literal_column(str(rows - 1)))
            .subquery()
        )
        query = _ONE.select_from(key)
        return self._find_shards_with_rows(query, self._overdue_values(grace_ms, after))

    def read_due_key(
        self, shard: int, after: tuple[int, int], grace_ms: int, rows: int
    ) -> tuple[int, int] | None:
        """The key that is `rows` rows after the key `after` in the index, of rows that were due before.

        None: there are fewer rows. It reads the index only.
        """
        until_ms = self._due_ms(shard) - grace_ms
        query = (
            select(c.due_time, c.job_id)
            .where(
                *after_due_key_condition(*after),
                c.due_time <= db_now_plus(-grace_ms),
                c.due_time <= until_ms,
            )
            .order_by(c.due_time, c.job_id)
            .limit(1)
            .offset(rows - 1)
        )
        found = self._databases.select(query, shard)
        return (found[0][0], found[0][1]) if found else None

    def _overdue_values(
        self,
        grace_ms: Mapping[int, int],
        after: Mapping[int, tuple[int, int]] | None = None,
    ) -> dict[int, dict[str, int]]:
        """The values of a query of overdue rows, by shard."""
        if not grace_ms:
            return {}
        until_ms = self._due_ms(next(iter(grace_ms)))
        values = {
            shard: {"plus_ms": -ms, "until_ms": until_ms - ms} for shard, ms in grace_ms.items()
        }
        for shard, key in (after or {}).items():
            if shard in values:
                values[shard] |= {"after_ms": key[0], "after_id": key[1]}
        return values

    def _due_ms(self, shard: int) -> int:
        """The databases' time up to which rows are due, which does not follow a jump of the clock."""
        return self._databases.database_of_shard(shard).server_clock.statement_bounds().due_ms

    def database_answers(self, shard: int) -> bool:
        """Whether the shard's database answers. If it does, a failed read concerns one table only."""
        try:
            self._databases.database_of_shard(shard).now_ms()
        except (StoreUnavailable, SchemaMismatch):
            return False
        return True

    def _read_due_page(
        self,
        shard: int,
        after: tuple[int, int],
        until: Collection[ColumnElement[bool]],
        types: Collection[int] | TypesExcept | None,
        limit: int,
    ) -> list[DueRow]:
        query = (  # guard: load-running-too
            select(c.due_time, c.job_id, due_or_lease_end, c.type_no, c.priority)
            .where(*after_due_key_condition(*after), *until)
            .order_by(c.due_time, c.job_id)
            .limit(limit)
        )
        if isinstance(types, TypesExcept):
            query = query.where(c.type_no.not_in(sorted(types.numbers)))
        elif types is not None:
            query = query.where(c.type_no.in_(sorted(types)))
        rows = self._databases.select(query, shard)
        return [DueRow((due_ms, job_id), *rest) for due_ms, job_id, *rest in rows]

    def _find_shards_with_rows(
        self, query: Select[Any], values: Mapping[int, Mapping[str, Any]]
    ) -> set[int]:
        """The shards in which the query finds a row. `values`: the query's values by shard."""
        if not values:
            return set()
        database = self._databases.database_of_shard(next(iter(values)))
        compiled = compile_once(query, database.engine.dialect)
        bits: list[str] = []
        arguments: list[Any] = []
        for position, (shard, given) in enumerate(values.items()):
            statement = compiled.bind(database.job_table_name(shard), **given)
            bits.append(f"(EXISTS ({statement.text}) << {position % BITS})")
            arguments += statement.values
        numbers = [" | ".join(bits[at : at + BITS]) for at in range(0, len(bits), BITS)]
        query_text = f"SELECT {', '.join(numbers)}"
        found = database.run_read(
            lambda connection: connection.exec_driver_sql(query_text, tuple(arguments)).one()
        )
        return {
            shard
            for position, shard in enumerate(values)
            if int(found[position // BITS]) >> position % BITS & 1
        }


def _overdue_conditions(*until: Any) -> tuple[ColumnElement[bool], ...]:
    """Conditions: the row was due, or its lease ended if it runs, before each of these times."""
    # Those on due_time bound the search in the index: a lease never ends before its job is due.
    return (
        *(c.due_time <= time for time in until),
        *(due_or_lease_end <= time for time in until),
    )


_ONE: Select[Any] = select(literal_column("1"))
_UNTIL = bindparam("until_ms", type_=DatetimeAsMillis)
_AFTER_KEY = after_due_key_condition(
    bindparam("after_ms", type_=DatetimeAsMillis), bindparam("after_id", type_=UInt64)
)
_AFTER = _ONE.where(*_AFTER_KEY, c.due_time <= _UNTIL)
_GRACE_AGO = db_now_plus(bindparam("plus_ms", type_=Integer))
_DUE_UNTIL = (c.due_time <= _GRACE_AGO, c.due_time <= _UNTIL)
_OVERDUE_UNTIL = _overdue_conditions(_GRACE_AGO, _UNTIL)
_OVERDUE = _ONE.where(*_OVERDUE_UNTIL)
