"""Pages of live rows for the loader and the scanner, by (due_time, job_id): they never walk ended rows.

And the question before it, whether there is any such row: of many shards at once, since of most there
is none, and a round trip for each is what an idle worker would cost.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Dialect,
    Integer,
    Select,
    bindparam,
    literal_column,
    or_,
    select,
)

from toc.errors import SchemaMismatch, StoreUnavailable
from toc.store.columns import Millis, UInt64, db_now_plus
from toc.store.databases import Databases, execute_on
from toc.store.prepared import Prepared
from toc.store.schema import JOB

REST = 4  # times as long as it took is a shard left alone that could not be read, as one that is locked
AT_ONCE = 240  # shards that one statement asks about
BITS = 60  # each is a bit of its answer's numbers; of the 63 that all engines have

c = JOB.c


class DueRow(NamedTuple):
    due_ms: int
    job_id: int
    type_no: int


class Pages:
    """Reads from the primary, a fresh transaction per page."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases

    def due_after(
        self, shard: int, after: tuple[int, int], until_ms: int, limit: int
    ) -> list[DueRow]:
        """Live rows (running ones too) with (due_time, job_id) > after and due_time <= until_ms."""
        return self._page(shard, after, until_ms, None, limit)

    def any_after(self, wanted: Mapping[int, tuple[tuple[int, int], int]]) -> set[int]:
        """Of shards of one database (-> after, until_ms) those in which `due_after` finds a row.

        At most AT_ONCE of them.
        """
        return self._any(
            _AFTER,
            {
                shard: {"after_ms": after[0], "after_id": after[1], "until_ms": until_ms}
                for shard, (after, until_ms) in wanted.items()
            },
        )

    def overdue(
        self,
        shard: int,
        after: tuple[int, int],
        grace_ms: int,
        types: Collection[int] | None,
        limit: int,
    ) -> list[DueRow]:
        """Live rows that are due for longer than `grace_ms`, by the database's clock, oldest first.

        `types`: only these type numbers; None: all.
        """
        return self._page(shard, after, db_now_plus(-grace_ms), types, limit)

    def any_overdue(self, grace_ms: Mapping[int, int]) -> set[int]:
        """Of shards of one database (-> grace_ms) those in which a row of any type is overdue.

        At most AT_ONCE of them.
        """
        # Were it to tell types apart, it would walk all that other services have left undone, in so
        # many shards at once: the index does not have them.
        return self._any(_OVERDUE, {shard: {"plus_ms": -ms} for shard, ms in grace_ms.items()})

    def answers(self, shard: int) -> bool:
        """Whether the shard's database can be asked: then what has failed there is one table's."""
        try:
            self._databases.of_shard(shard).now_ms()
        except (StoreUnavailable, SchemaMismatch):
            return False
        return True

    def _page(
        self,
        shard: int,
        after: tuple[int, int],
        until: Any,
        types: Collection[int] | None,
        limit: int,
    ) -> list[DueRow]:
        database = self._databases.of_shard(shard)
        query = (
            select(c.due_time, c.job_id, c.biz_type)
            .where(*_between(*after, until))
            .order_by(c.due_time, c.job_id)
            .limit(limit)
        )
        if types is not None:
            query = query.where(c.biz_type.in_(sorted(types)))
        rows = database.read(lambda connection: execute_on(connection, shard, query).all())
        return [DueRow(*(int(value) for value in row)) for row in rows]

    def _any(self, query: Select[Any], values: Mapping[int, Mapping[str, Any]]) -> set[int]:
        """The shards in which the query, run with their values, finds a row."""
        if not values:
            return set()
        database = self._databases.of_shard(next(iter(values)))
        prepared = _prepared(query, database.engine.dialect)
        bits: list[str] = []
        arguments: list[Any] = []
        for position, (shard, given) in enumerate(values.items()):
            text, filled = prepared.on(database.job_table_name(shard), **given)
            bits.append(f"(EXISTS ({text}) << {position % BITS})")
            arguments += filled
        numbers = [" | ".join(bits[at : at + BITS]) for at in range(0, len(bits), BITS)]
        statement = f"SELECT {', '.join(numbers)}"
        found = database.read(
            lambda connection: connection.exec_driver_sql(statement, tuple(arguments)).one()
        )
        return {
            shard
            for position, shard in enumerate(values)
            if int(found[position // BITS]) >> position % BITS & 1
        }


def _between(after_ms: Any, after_id: Any, until: Any) -> list[ColumnElement[bool]]:
    return [
        c.due_time >= after_ms,
        c.due_time <= until,
        or_(c.due_time > after_ms, c.job_id > after_id),
    ]


_ONE: Select[Any] = select(literal_column("1"))
_AFTER = _ONE.where(
    *_between(
        bindparam("after_ms", type_=Millis),
        bindparam("after_id", type_=UInt64),
        bindparam("until_ms", type_=Millis),
    )
)
_OVERDUE = _ONE.where(c.due_time <= db_now_plus(bindparam("plus_ms", type_=Integer)))


@lru_cache(maxsize=64)
def _prepared(query: Select[Any], dialect: Dialect) -> Prepared:
    return Prepared(query, dialect)
