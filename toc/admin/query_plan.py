"""Splits a statement of `toc sql` into the SELECTs that shards get and one that a server runs on their rows.

Every table that the statement names becomes a `TableQuery`. For a SELECT from one table the shards do as much
as is exact: WHERE; partial aggregates by group (AVG as a sum and a count; a DISTINCT of an aggregate is one
more key); or ORDER BY and LIMIT. For other tables they send the columns that are used, of the rows that match
the conditions on that table alone. The final query is the statement itself, which reads the rows of the table
queries instead of its tables. One of the servers runs it, so its result is MySQL's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from toc.admin.allowed_functions import NOW_FUNCTIONS
from toc.admin.expression_parser import ResultColumn
from toc.admin.query_reader import IDS, TABLES, read_query
from toc.admin.syntax_tree import (
    call,
    cast,
    clause_terms,
    has_aggregate,
    has_window,
    inside,
    is_aggregate,
    is_id,
    number,
    order_term,
    whole_number,
)
from toc.store.views import JOBS

_AVERAGE_DIGITS = 9  # MySQL computes with words of nine digits

Order = tuple[tuple[int, bool], ...]
"""Places of columns, and whether each is descending."""


@dataclass(frozen=True, slots=True)
class IdFilter:
    """Only rows whose `column` is among the values in column `place` of another table query can matter."""

    column: str
    other: str
    place: int


@dataclass(frozen=True, slots=True)
class TableQuery:
    """The SELECT that each shard or database gets for a table; its FROM is filled in for each.

    Its columns are c0, c1, …; `ids` are the places of 64-bit ids. `rows_max`: so many rows of each shard are
    enough; None: all may matter. `is_groups`: the rows are partial groups.
    """

    name: str
    table: str
    select: exp.Select
    ids: frozenset[int] = frozenset()
    rows_max: int | None = None
    is_groups: bool = False
    id_filters: tuple[IdFilter, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """`final` None: the answer is the rows of the only table query, merged in `order`; only different ones
    if `distinct`; `limit` of them, after the first `offset`."""

    columns: tuple[ResultColumn, ...]
    tables: tuple[TableQuery, ...]
    final: exp.Query | None
    order: Order = ()
    distinct: bool = False
    limit: int | None = None
    offset: int = 0

    @property
    def reads_the_clock(self) -> bool:
        trees: list[exp.Expr] = [table.select for table in self.tables]
        trees += [] if self.final is None else [self.final]
        return any(
            one.name in NOW_FUNCTIONS for tree in trees for one in tree.find_all(exp.Anonymous)
        )

    def rows_wanted(self, rows_max: int) -> int:
        """How many rows of a shard can matter. One more than `rows_max` shows that there are more."""
        return self.offset + min(rows_max + 1, rows_max + 1 if self.limit is None else self.limit)


def plan_query(statement: str, values: Mapping[str, str] | None = None) -> QueryPlan:
    """Reads a statement and splits it. `values` are those of its @names.

    Raises InvalidInput with the part that is wrong.
    """
    query, columns = read_query(statement, values)
    if isinstance(query, exp.Select) and not query.args.get("with_") and _is_only_rows(query):
        return _plan_rows(query, columns)
    planner = _Planner(query)
    final = planner.final_query()
    return QueryPlan(tuple(columns), tuple(planner.tables), final)


def _only_table(select: exp.Select) -> exp.Table | None:
    """The table of a SELECT that reads this one alone, and no subquery."""
    table = select.args["from_"].this
    if select.args.get("joins") or not isinstance(table, exp.Table) or table.name not in TABLES:
        return None
    if any(one is not select for one in select.find_all(exp.Query)):
        return None
    columns = select.find_all(exp.Column)
    return table if all(one.table == table.alias for one in columns) else None


def _is_only_rows(select: exp.Select) -> bool:
    """Whether it selects rows of one table, without groups and window functions."""
    if _only_table(select) is None or select.args.get("group"):
        return False
    return not has_aggregate(select) and not has_window(select)


def _plan_rows(select: exp.Select, columns: Sequence[ResultColumn]) -> QueryPlan:
    """For a SELECT of rows: shards compute all of it, and their rows are merged."""
    exprs, order = [one.this for one in select.expressions], list[tuple[int, bool]]()
    for expr, desc in _order_of(select):
        order.append((_place(exprs, expr), desc))
    pushed = _select_for_shards(exprs, select.args.get("where"))
    if order:
        terms = [order_term(number(place + 1), desc=desc) for place, desc in order]
        pushed.set("order", exp.Order(expressions=terms))
    distinct = select.args.get("distinct") is not None
    if distinct:
        pushed.set("distinct", exp.Distinct())
    table = TableQuery("l0", select.args["from_"].this.name, pushed)
    limit, offset = _count(select, "limit"), _count(select, "offset") or 0
    return QueryPlan(tuple(columns), (table,), None, tuple(order), distinct, limit, offset)


def _order_of(select: exp.Select) -> Iterator[tuple[exp.Expr, bool]]:
    """The expressions of ORDER BY, and whether each is descending."""
    for term in clause_terms(select, "order"):
        place = whole_number(term.this)
        expr = term.this if place is None else select.expressions[place - 1].this
        yield expr, bool(term.args.get("desc"))


def _count(query: exp.Query, name: str) -> int | None:
    clause = query.args.get(name)
    return None if clause is None else int(clause.expression.name)


def _select_for_shards(exprs: Sequence[exp.Expr], where: exp.Expr | None) -> exp.Select:
    """A SELECT from one table, so its columns need no table."""
    made = exp.Select(expressions=[exp.alias_(one.copy(), f"c{i}") for i, one in enumerate(exprs)])
    if where is not None:
        made.set("where", where.copy())
    _remove_tables(made)
    return made


def _remove_tables(made: exp.Expr) -> None:
    for column in made.find_all(exp.Column):
        column.set("table", None)


def conjuncts(where: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that must all be true."""
    if isinstance(where, exp.Where):
        where = where.this
    if where is None:
        return []
    found: list[exp.Expr] = []
    for one in where.flatten() if isinstance(where, exp.And) else [where]:
        part = one.unnest()
        found += conjuncts(part) if isinstance(part, exp.And) else [part]
    return found


class _Planner:
    """Replaces the tables of a statement by table queries."""

    def __init__(self, query: exp.Query) -> None:
        self._query = query
        self.tables: list[TableQuery] = []
        self._equal_columns: list[tuple[exp.Column, exp.Column]] = []

    def final_query(self) -> exp.Query:
        for select in list(self._query.find_all(exp.Select)):
            if self._is_grouped(select):
                self._push_groups(select)
            else:
                for table in _tables_of(select):
                    self._push_columns(select, table)
                self._equal_columns += _equal_columns(select)
        self._add_id_filters()
        return self._query

    def _add(self, table: exp.Table, query: TableQuery) -> None:
        name = f"l{len(self.tables)}"
        self.tables.append(replace(query, name=name, table=table.name))
        table.set("this", exp.to_identifier(name))

    # ---- groups

    def _is_grouped(self, select: exp.Select) -> bool:
        """Whether its groups can be made of the shards' partial groups."""
        found = [one for one in inside(select) if is_aggregate(one)]
        if any(isinstance(one, exp.GroupConcat) for one in found):
            return False
        return _only_table(select) is not None and bool(found or select.args.get("group"))

    def _push_groups(self, select: exp.Select) -> None:
        table, group = select.args["from_"].this, select.args.get("group")
        keys: list[exp.Expr] = list(dict.fromkeys(group.expressions)) if group else []
        pushed = list(keys)
        for one in inside(select):
            for arg in _distinct_arguments(one) if is_aggregate(one) else ():
                _place(pushed, arg)
        width = len(pushed)
        for clause in ("expressions", "having", "order"):
            part = select.args.get(clause)
            for one in part if isinstance(part, list) else [] if part is None else [part]:
                _combine_groups(one, keys, pushed, table.alias)
        made = _select_for_shards(pushed, select.args.get("where"))
        if width:
            made.set("group", exp.Group(expressions=[number(i + 1) for i in range(width)]))
        select.set("where", None)
        if keys:
            columns = [exp.column(f"c{i}", table=table.alias) for i in range(len(keys))]
            select.set("group", exp.Group(expressions=columns))
        ids = frozenset(i for i, one in enumerate(pushed) if is_id(one))
        self._add(table, TableQuery("", "", made, ids, is_groups=True))

    # ---- rows

    def _push_columns(self, select: exp.Select, table: exp.Table) -> None:
        key = table.alias
        columns = [one for one in self._query.find_all(exp.Column) if one.table == key]
        names = list(dict.fromkeys(one.name for one in columns)) or [TABLES[table.name][0]]
        own = [exp.Paren(this=one.copy()) for one in _own_conditions(select, table)]
        where = exp.Where(this=exp.and_(*own, copy=False)) if own else None
        made = _select_for_shards([exp.column(name, table=key) for name in names], where)
        rows_max = self._push_order(select, made)
        for column in columns:
            column.meta["base"] = column.name
            column.set("this", exp.to_identifier(f"c{names.index(column.name)}"))
        ids = frozenset(i for i, name in enumerate(names) if name in IDS)
        self._add(table, TableQuery("", "", made, ids, rows_max))

    def _push_order(self, select: exp.Select, made: exp.Select) -> int | None:
        """Copies ORDER BY and LIMIT of a SELECT of rows. Returns how many rows of a shard are enough."""
        limit = _count(select, "limit")
        if limit is None or not _is_only_rows(select) or select.args.get("distinct"):
            return None
        terms = [order_term(expr.copy(), desc=desc) for expr, desc in _order_of(select)]
        if any(isinstance(term.this, exp.Literal) for term in terms):
            return None  # shards would take it for the place of a column
        if terms:
            made.set("order", exp.Order(expressions=terms))
            _remove_tables(made)
        return limit + (_count(select, "offset") or 0)

    # ---- id filters

    def _add_id_filters(self) -> None:
        """Filters job queries by the ids of other tables, which are small."""
        names = {table.alias: table.name for table in self._query.find_all(exp.Table)}
        by_name = {table.name: table for table in self.tables}
        for left, right in self._equal_columns:
            column = str(left.meta.get("base", ""))
            own = by_name.get(names.get(left.table, ""))
            other = by_name.get(names.get(right.table, ""))
            if own is None or other is None or own.is_groups or other.is_groups:
                continue
            if own.table == JOBS != other.table and column in IDS and own.rows_max is None:
                added = IdFilter(column, other.name, int(right.name[1:]))
                by_name[own.name] = replace(own, id_filters=(*own.id_filters, added))
        self.tables = [by_name[table.name] for table in self.tables]


def _tables_of(select: exp.Select) -> Iterator[exp.Table]:
    sources = [select.args["from_"].this, *(one.this for one in select.args.get("joins") or [])]
    return (one for one in sources if isinstance(one, exp.Table) and one.name in TABLES)


def _conditions(select: exp.Select) -> list[tuple[exp.Expr, set[str]]]:
    """The conditions of a SELECT; with each, the tables whose rows matter only where it is true."""
    joins = select.args.get("joins") or []
    if any(join.side == "RIGHT" for join in joins):
        return []
    # Of a LEFT JOIN only the joined table depends on the condition.
    first = select.args["from_"].this.alias
    inner = {first, *(join.this.alias for join in joins if not join.side)}
    found = [(one, inner) for one in conjuncts(select.args.get("where"))]
    for join in joins:
        tables = {join.this.alias} if join.side else inner
        found += [(one, tables) for one in conjuncts(join.args.get("on"))]
    return found


def _equal_columns(select: exp.Select) -> Iterator[tuple[exp.Column, exp.Column]]:
    """Pairs of columns: rows of the first one's table matter only where the two are equal."""
    for condition, tables in _conditions(select):
        for sides in _equal_sides(condition):
            match sides:
                case exp.Column() as left, exp.Column() as right if left.table in tables:
                    yield left, right


def _equal_sides(condition: exp.Expr) -> list[tuple[exp.Expr, exp.Expr]]:
    if isinstance(condition, exp.EQ):
        sides = (condition.this, condition.expression)
        return [sides, sides[::-1]]
    if isinstance(condition, exp.In) and condition.args.get("query") is not None:
        inner = condition.args["query"].this
        if isinstance(inner, exp.Select) and not has_aggregate(inner):
            return [(condition.this, inner.expressions[0].this)]
    return []


def _own_conditions(select: exp.Select, table: exp.Table) -> list[exp.Expr]:
    """The conditions on this table alone that its rows must match before they are joined."""
    return [
        condition
        for condition, tables in _conditions(select)
        if table.alias in tables
        and {column.table for column in condition.find_all(exp.Column)} == {table.alias}
        and condition.find(exp.Query) is None
    ]


def _distinct_arguments(aggregate: exp.Expr) -> list[exp.Expr]:
    first = aggregate.expressions[0]
    return list(first.expressions) if isinstance(first, exp.Distinct) else []


def _place(pushed: list[exp.Expr], expr: exp.Expr) -> int:
    if expr not in pushed:
        pushed.append(expr.copy())
    return pushed.index(expr)


def _combine_groups(node: exp.Expr, keys: list[exp.Expr], pushed: list[exp.Expr], key: str) -> None:
    """Replaces keys by columns of the partial groups, and aggregates by aggregates of these columns.

    An AVG that is computed with has more digits than one that is shown: MySQL has them inside, too.
    """

    def column(expr: exp.Expr) -> exp.Expr:
        return exp.column(f"c{_place(pushed, expr)}", table=key)

    for one in list(node.iter_expressions()):
        if one in keys:
            one.replace(exp.column(f"c{keys.index(one)}", table=key))
        elif not is_aggregate(one):
            _combine_groups(one, keys, pushed, key)
        elif _distinct_arguments(one):
            columns = [column(arg) for arg in _distinct_arguments(one)]
            one.replace(call(one.name, exp.Distinct(expressions=columns)))
        elif one.name == "AVG":
            sums: list[exp.Expr] = [
                call("SUM", column(call(name, *one.expressions))) for name in ("SUM", "COUNT")
            ]
            total, count = sums
            if not isinstance(one.parent, exp.Alias):
                total = exp.Mul(this=total, expression=number(f"1.{'0' * _AVERAGE_DIGITS}"))
            one.replace(exp.Paren(this=exp.Div(this=total, expression=count)))
        elif one.name == "COUNT":
            total = call("COALESCE", call("SUM", column(one)), number(0))
            one.replace(cast(total, "BIGINT"))
        else:
            one.replace(call(one.name, column(one)))
