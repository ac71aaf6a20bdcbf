"""Writes trees of `query_reader` as SQL: the statements of the shards, and the final query.

All names in these statements are made by toc, and all literal texts become bound values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from sqlglot import exp

from toc.admin.query_plan import TableQuery, split_and_conditions
from toc.admin.query_reader import BIZ_TYPES
from toc.admin.sqlite_dialect import translate_to_sqlite
from toc.admin.statement_parser import TocMySQLDialect
from toc.admin.syntax_tree import is_aggregate_call, literal_whole_number
from toc.domain.ids import routing_bits_of
from toc.domain.routing import Routing, routing_hash_of
from toc.store.query_fan_out import DatabaseQuery
from toc.store.schema import job_table_name
from toc.store.views import (
    DEAD_JOBS,
    DEAD_JOBS_SELECT,
    EVENTS,
    EVENTS_SELECT,
    JOBS,
    PURGES,
    PURGES_SELECT,
    jobs_of_shard_sql,
)

_PER_DATABASE = {
    DEAD_JOBS: ("toc_dead_job", DEAD_JOBS_SELECT),
    EVENTS: ("toc_event", EVENTS_SELECT),
    PURGES: ("toc_purge", PURGES_SELECT),
}
_SOURCE = "toc_source"
_TYPE_NAME = "t.name AS biz_type, "
_TYPES = re.compile(r" LEFT JOIN toc_biz_type AS t ON t\.type_no = \w\.type_no$")


def make_sql(tree: exp.Expr, *, sqlite: bool) -> tuple[str, dict[str, object]]:
    """SQL for one kind of server, and the values to bind."""
    tree = translate_to_sqlite(tree.copy()) if sqlite else tree.copy()
    names: dict[str, str] = {}
    for literal in list(tree.find_all(exp.Literal)):
        if literal.is_string:
            name = names.setdefault(literal.name, f"t{len(names)}")
            literal.replace(exp.Placeholder(this=name))
    sql = tree.sql(dialect=TocMySQLDialect, comments=False, normalize_functions=False)
    return sql, {name: value for value, name in names.items()}


def sql_for_display(sql: str, values: Mapping[str, object], *, sqlite: bool) -> str:
    """`sql` with its bound texts written into it. For people to read: it is never sent to a server."""

    def quote_value(match: re.Match[str]) -> str:
        text = str(values[match[1]]).replace("'", "''")
        return f"'{text}'" if sqlite else "'" + text.replace("\\", "\\\\") + "'"

    return re.sub(r":(t\d+)\b", quote_value, sql)


def make_final_sql(
    final: exp.Query, types: Mapping[str, Sequence[str]], *, limit: int, sqlite: bool
) -> tuple[str, dict[str, object]]:
    """The query that runs last, on the rows that the shards sent.

    These rows are to be bound as JSON, under the names of their tables.

    `types`: for each table the types of its columns.
    """
    final = final.copy()
    if not final.args.get("limit"):
        final.set("limit", exp.Limit(expression=exp.Literal.number(limit)))
    if sqlite:  # SQLite's SUM fails beyond 64 bits
        for one in list(final.find_all(exp.Anonymous)):
            if one.name == "SUM" and is_aggregate_call(one):
                one.set("this", "my_sum")
    tables = [
        exp.CTE(
            this=exp.var(_select_from_json(name, of, sqlite=sqlite)), alias=exp.to_identifier(name)
        )
        for name, of in types.items()
    ]
    own = final.args.get("with_")
    final.set("with_", exp.With(expressions=[*tables, *(own.expressions if own else [])]))
    return make_sql(final, sqlite=sqlite)


def _select_from_json(name: str, types: Sequence[str], *, sqlite: bool) -> str:
    if sqlite:
        columns = ", ".join(f"json_extract(value, '$[{i}]') AS c{i}" for i, _ in enumerate(types))
        return f"SELECT {columns} FROM json_each(:{name}) LIMIT -1"  # noqa: S608 - made of places
    columns = ", ".join(f"c{i} {type_} PATH '$[{i}]'" for i, type_ in enumerate(types))
    # With a LIMIT the server reads the JSON once, and not for each row of a joined table.
    return f"SELECT * FROM JSON_TABLE(:{name}, '$[*]' COLUMNS ({columns})) AS j LIMIT {2**63}"  # noqa: S608


# ---- for the shards


def make_shard_queries(
    query: TableQuery,
    routing: Routing,
    *,
    sqlite: bool,
    rows_max: int,
    database: int | None = None,
) -> list[DatabaseQuery]:
    """The statements for the tables that can have matching rows, for at most `rows_max` rows each.

    `database`: only the tables of this database.
    """
    select = query.select.copy()
    select.set("from_", exp.From(this=exp.to_table(_SOURCE)))
    select.set("limit", exp.Limit(expression=exp.Literal.number(rows_max)))
    sql, values = make_sql(select, sqlite=sqlite)
    before, _, after = sql.partition(_SOURCE)
    return [
        DatabaseQuery(place, index, table, f"{before}{source}{after}", values)
        for place, (index, table, source) in enumerate(
            _shard_sources(query, routing, database, sqlite=sqlite)
        )
    ]


Source = tuple[int, str, str]
"""A database, a table of it, and the text after FROM."""


def _shard_sources(
    query: TableQuery, routing: Routing, database: int | None, *, sqlite: bool
) -> list[Source]:
    if query.table == BIZ_TYPES:  # all databases have the same types
        return [(database or 0, BIZ_TYPES, BIZ_TYPES)]
    databases = range(routing.databases) if database is None else [database]
    if query.table != JOBS:
        table, select = _PER_DATABASE[query.table]
        source = f"({_without_type_join(select, query)}) AS {query.table}"
        return [(index, table, source) for index in databases]
    shards = [shard for index in databases for shard in routing.shards_of_database(index)]
    possible = _possible_shards(query.select.args.get("where"), routing)
    if possible is not None:
        shards = [shard for shard in shards if shard in possible] or shards[:1]
    return [
        (routing.database_index(shard), job_table_name(shard), f"({select}) AS {JOBS}")
        for shard in shards
        for select in [_without_type_join(jobs_of_shard_sql(shard, sqlite=sqlite), query)]
    ]


def _without_type_join(select: str, query: TableQuery) -> str:
    """Leaves out the join with the types' names if the query does not use biz_type. MySQL would read the name
    of each row's type all the same, and counting would take three times as long.
    """
    if any(column.name == "biz_type" for column in query.select.find_all(exp.Column)):
        return select
    return _TYPES.sub("", select.replace(_TYPE_NAME, ""))


def _possible_shards(where: exp.Expr | None, routing: Routing) -> set[int] | None:
    """The shards that can have matching rows; None: all. A job's ids determine its shard (design, §3)."""
    found: set[int] | None = None
    for column, choices in _allowed_values(where):
        shard_of = _SHARD_OF.get(column)
        numbers = [literal_whole_number(choice) for choice in choices]
        if shard_of is not None and None not in numbers:
            shards = {shard_of(routing, one) for one in numbers if one is not None}
            found = shards if found is None else found & shards
    return found


def _allowed_values(where: exp.Expr | None) -> Iterator[tuple[str, list[exp.Expr]]]:
    """Yields columns, each with the values that the column may have in a matching row."""
    for one in split_and_conditions(where):
        sides: list[exp.Expr] = []
        if isinstance(one, exp.EQ):
            sides = [one.this, one.expression]
            sides = sides if isinstance(one.this, exp.Column) else sides[::-1]
        elif isinstance(one, exp.In) and one.expressions:
            sides = [one.this, *one.expressions]
        if sides and isinstance(sides[0], exp.Column):
            yield sides[0].name, sides[1:]


_SHARD_OF: dict[str, Callable[[Routing, int], int]] = {
    "biz_id": lambda routing, number: routing.shard_of_hash(routing_hash_of(number)),
    "job_id": lambda routing, number: routing.shard_of_hash(routing_bits_of(number)),
    "shard": lambda routing, number: number,
}
