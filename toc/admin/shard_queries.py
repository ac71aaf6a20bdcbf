"""The statements that shards get for a table query."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sqlglot import exp

from toc.admin.query_plan import TableQuery, conjuncts
from toc.admin.query_reader import BIZ_TYPES
from toc.admin.sql_writer import write_sql
from toc.admin.syntax_tree import whole_number
from toc.domain.ids import gene_of
from toc.domain.routing import Routing, hash_of
from toc.store.fan_out import Question
from toc.store.schema import job_table_name
from toc.store.views import (
    DEAD_JOBS,
    DEAD_JOBS_SELECT,
    EVENTS,
    EVENTS_SELECT,
    JOBS,
    PURGES,
    PURGES_SELECT,
    jobs_of_shard,
)

_PER_DATABASE = {
    DEAD_JOBS: ("toc_dead_job", DEAD_JOBS_SELECT),
    EVENTS: ("toc_event", EVENTS_SELECT),
    PURGES: ("toc_purge", PURGES_SELECT),
}
_SOURCE = "toc_source"
_TYPE_NAME = "t.name AS biz_type, "
_TYPES = re.compile(r" LEFT JOIN toc_biz_type AS t ON t\.type_no = \w\.type_no$")


def shard_queries(
    query: TableQuery,
    routing: Routing,
    *,
    sqlite: bool,
    rows_max: int,
    database: int | None = None,
) -> list[Question]:
    """The statements for the tables that can have matching rows, for at most `rows_max` rows each.

    `database`: only of this one.
    """
    select = query.select.copy()
    select.set("from_", exp.From(this=exp.to_table(_SOURCE)))
    select.set("limit", exp.Limit(expression=exp.Literal.number(rows_max)))
    sql, values = write_sql(select, sqlite=sqlite)
    before, _, after = sql.partition(_SOURCE)
    return [
        Question(place, index, table, f"{before}{source}{after}", values)
        for place, (index, table, source) in enumerate(
            _sources(query, routing, database, sqlite=sqlite)
        )
    ]


Source = tuple[int, str, str]
"""A database, a table of it, and the text after FROM."""


def _sources(
    query: TableQuery, routing: Routing, database: int | None, *, sqlite: bool
) -> list[Source]:
    if query.table == BIZ_TYPES:  # all databases have the same types
        return [(database or 0, BIZ_TYPES, BIZ_TYPES)]
    databases = range(routing.databases) if database is None else [database]
    if query.table != JOBS:
        table, select = _PER_DATABASE[query.table]
        source = f"({_without_unused_join(select, query)}) AS {query.table}"
        return [(index, table, source) for index in databases]
    shards = [shard for index in databases for shard in routing.shards_of_database(index)]
    possible = _shards_of(query.select.args.get("where"), routing)
    if possible is not None:
        shards = [shard for shard in shards if shard in possible] or shards[:1]
    return [
        (routing.database(shard), job_table_name(shard), f"({select}) AS {JOBS}")
        for shard in shards
        for select in [_without_unused_join(jobs_of_shard(shard, sqlite=sqlite), query)]
    ]


def _without_unused_join(select: str, query: TableQuery) -> str:
    """Leaves out the names of types if the query does not use them. MySQL would read each one all the
    same, which makes counting take three times as long.
    """
    if any(column.name == "biz_type" for column in query.select.find_all(exp.Column)):
        return select
    return _TYPES.sub("", select.replace(_TYPE_NAME, ""))


def _shards_of(where: exp.Expr | None, routing: Routing) -> set[int] | None:
    """The shards that can have matching rows; None: all. A job's ids determine its shard (design, §3)."""
    found: set[int] | None = None
    for column, choices in _choices(where):
        shard_of = _SHARD_OF.get(column)
        numbers = [whole_number(choice) for choice in choices]
        if shard_of is not None and None not in numbers:
            shards = {shard_of(routing, one) for one in numbers if one is not None}
            found = shards if found is None else found & shards
    return found


def _choices(where: exp.Expr | None) -> Iterator[tuple[str, list[exp.Expr]]]:
    """Columns, and the values of which each must have one."""
    for one in conjuncts(where):
        sides: list[exp.Expr] = []
        if isinstance(one, exp.EQ):
            sides = [one.this, one.expression]
            sides = sides if isinstance(one.this, exp.Column) else sides[::-1]
        elif isinstance(one, exp.In) and one.expressions:
            sides = [one.this, *one.expressions]
        if sides and isinstance(sides[0], exp.Column):
            yield sides[0].name, sides[1:]


_SHARD_OF: dict[str, Callable[[Routing, int], int]] = {
    "biz_id": lambda routing, number: routing.shard(hash_of(number)),
    "job_id": lambda routing, number: routing.shard(gene_of(number)),
    "shard": lambda routing, number: number,
}
