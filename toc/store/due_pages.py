"""Reads pages of live rows by (due_time, job_id) for the loader and the scanner, and no ended rows.

One statement can also find which of many shards have any such row. Most shards have none, so an idle worker
saves a round trip per shard.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Dialect, Integer, Select, bindparam, literal_column, select

from toc.errors import SchemaMismatch, StoreUnavailable
from toc.store.column_types import DatetimeAsMillis, UInt64, db_now_plus
from toc.store.compiled_statement import CompiledStatement
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
    ) -> list[DueRow]:
        """Live rows whose due time, or lease if they run, ended more than `grace_ms` ago; oldest due first.

        The database's clock decides. Leaves out rows that are due only because that clock jumped ahead (see
        `runtime.server_clock`). `types`: only these type numbers; None: all.
        """
        until_ms = (
            self._databases.database_of_shard(shard).server_clock.statement_bounds().due_ms
            - grace_ms
        )
        overdue = _overdue_conditions(db_now_plus(-grace_ms), until_ms)
        return self._read_due_page(shard, after, overdue, types, limit)

    def find_overdue_shards(
        self, grace_ms: Mapping[int, int], left_out: Collection[int] = ()
    ) -> set[int]:
        """The shards with an overdue row of any type but those `left_out`. `grace_ms`: by shard.

        The shards must be in one database, and at most SHARDS_PER_QUERY_MAX.
        """
        # No filter by type where it can be avoided: the index does not contain the type, so the statement has
        # to read all overdue rows of the types that are left out.
        if not grace_ms:
            return set()
        until_ms = (
            self._databases.database_of_shard(next(iter(grace_ms)))
            .server_clock.statement_bounds()
            .due_ms
        )
        query = _OVERDUE
        if left_out:
            query = query.where(c.type_no.not_in(sorted(left_out)))
        return self._find_shards_with_rows(
            query,
            {shard: {"plus_ms": -ms, "until_ms": until_ms - ms} for shard, ms in grace_ms.items()},
        )

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
        dialect = database.engine.dialect
        is_fixed = query is _AFTER or query is _OVERDUE
        compiled = (_compile_cached if is_fixed else CompiledStatement)(query, dialect)
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
_AFTER = _ONE.where(
    *after_due_key_condition(
        bindparam("after_ms", type_=DatetimeAsMillis), bindparam("after_id", type_=UInt64)
    ),
    c.due_time <= _UNTIL,
)
_OVERDUE = _ONE.where(
    *_overdue_conditions(db_now_plus(bindparam("plus_ms", type_=Integer)), _UNTIL)
)


@lru_cache(maxsize=64)
def _compile_cached(query: Select[Any], dialect: Dialect) -> CompiledStatement:
    return CompiledStatement(query, dialect)
