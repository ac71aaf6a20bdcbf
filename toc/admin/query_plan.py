"""Splits a statement of `toc sql` into the SELECTs that shards get and one that a server runs on their rows.

Every table that the statement names becomes a `TableQuery`. For a SELECT from one table the shards do as much
as is exact: WHERE; partial aggregates by group (AVG as a sum and a count; a DISTINCT of an aggregate is one
more key); or ORDER BY and LIMIT. For other SELECTs the shards send, for each table, the columns that are
used, of the rows that match the conditions on this table alone. The final query is the statement itself,
which reads the rows of the table queries instead of its tables. One of the servers runs it, so its result is
MySQL's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from toc.admin.allowed_functions import NOW_FUNCTIONS
from toc.admin.expression_parser import ResultColumn
from toc.admin.query_reader import IDS, TABLES, read_query
from toc.admin.syntax_tree import (
    clause_terms,
    has_aggregate,
    has_window,
    is_aggregate_call,
    is_id_expression,
    literal_whole_number,
    make_call,
    make_cast,
    make_order_term,
    number_literal,
    walk_without_subqueries,
)
from toc.store.views import JOBS

_AVERAGE_DIGITS = 9  # MySQL computes with words of nine digits

Order = tuple[tuple[int, bool], ...]
"""Places of columns, and whether each is descending."""


@dataclass(frozen=True, slots=True)
class IdFilter:
    """Only rows whose `column` is among the values in column number `place` of table query `other` matter."""

    column: str
    other: str
    place: int


@dataclass(frozen=True, slots=True)
class TableQuery:
    """The SELECT that each shard or database gets for a table; the FROM is added for each shard.

    Its columns are c0, c1, …; `ids` are the places of 64-bit ids. `rows_max`: how many rows of each shard are
    enough; None: all rows may matter. `is_groups`: the rows are partial groups.
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
    """The table queries of a statement, and the final query on their rows.

    `final` None: the answer is the rows of the only table query, merged in `order`; without equal rows if
    `distinct`; at most `limit` rows, after the first `offset` rows.
    """

    columns: tuple[ResultColumn, ...]
    tables: tuple[TableQuery, ...]
    final: exp.Query | None
    order: Order = ()
    distinct: bool = False
    limit: int | None = None
    offset: int = 0

    @property
    def uses_current_time(self) -> bool:
        trees: list[exp.Expr] = [table.select for table in self.tables]
        trees += [] if self.final is None else [self.final]
        return any(
            one.name in NOW_FUNCTIONS for tree in trees for one in tree.find_all(exp.Anonymous)
        )

    def rows_needed_per_shard(self, rows_max: int) -> int:
        """How many rows of a shard can matter. One more than `rows_max` shows that there are more."""
        return self.offset + min(rows_max + 1, rows_max + 1 if self.limit is None else self.limit)


def plan_query(statement: str, values: Mapping[str, str] | None = None) -> QueryPlan:
    """Parses a statement and plans its queries. `values`: the values of its @names.

    Raises InvalidInput with the part that is wrong.
    """
    query, columns = read_query(statement, values)
    if isinstance(query, exp.Select) and not query.args.get("with_") and _selects_plain_rows(query):
        return _plan_plain_rows(query, columns)
    planner = _TableQueryPlanner(query)
    final = planner.make_final_query()
    return QueryPlan(tuple(columns), tuple(planner.tables), final)


def _single_table(select: exp.Select) -> exp.Table | None:
    """The table of a SELECT that reads one table and has no subquery; None for other SELECTs."""
    table = select.args["from_"].this
    if select.args.get("joins") or not isinstance(table, exp.Table) or table.name not in TABLES:
        return None
    if any(one is not select for one in select.find_all(exp.Query)):
        return None
    columns = select.find_all(exp.Column)
    return table if all(one.table == table.alias for one in columns) else None


def _selects_plain_rows(select: exp.Select) -> bool:
    """Whether a SELECT selects rows of one table, without groups and window functions."""
    if _single_table(select) is None or select.args.get("group"):
        return False
    return not has_aggregate(select) and not has_window(select)


def _plan_plain_rows(select: exp.Select, columns: Sequence[ResultColumn]) -> QueryPlan:
    """Plans a SELECT of rows: shards run the whole SELECT, and their rows are merged."""
    exprs, order = [one.this for one in select.expressions], list[tuple[int, bool]]()
    for expr, desc in _order_expressions(select):
        order.append((_find_or_append(exprs, expr), desc))
    pushed = _make_shard_select(exprs, select.args.get("where"))
    if order:
        terms = [make_order_term(number_literal(place + 1), desc=desc) for place, desc in order]
        pushed.set("order", exp.Order(expressions=terms))
    distinct = select.args.get("distinct") is not None
    if distinct:
        pushed.set("distinct", exp.Distinct())
    table = TableQuery("l0", select.args["from_"].this.name, pushed)
    limit, offset = _limit_or_offset(select, "limit"), _limit_or_offset(select, "offset") or 0
    return QueryPlan(tuple(columns), (table,), None, tuple(order), distinct, limit, offset)


def _order_expressions(select: exp.Select) -> Iterator[tuple[exp.Expr, bool]]:
    """The expressions of ORDER BY, and whether each is descending."""
    for term in clause_terms(select, "order"):
        place = literal_whole_number(term.this)
        expr = term.this if place is None else select.expressions[place - 1].this
        yield expr, bool(term.args.get("desc"))


def _limit_or_offset(query: exp.Query, name: str) -> int | None:
    clause = query.args.get(name)
    return None if clause is None else int(clause.expression.name)


def _make_shard_select(exprs: Sequence[exp.Expr], where: exp.Expr | None) -> exp.Select:
    """A SELECT from one table: its columns are written without the name of the table."""
    made = exp.Select(expressions=[exp.alias_(one.copy(), f"c{i}") for i, one in enumerate(exprs)])
    if where is not None:
        made.set("where", where.copy())
    _remove_table_names(made)
    return made


def _remove_table_names(made: exp.Expr) -> None:
    for column in made.find_all(exp.Column):
        column.set("table", None)


def split_and_conditions(where: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that AND connects."""
    if isinstance(where, exp.Where):
        where = where.this
    if where is None:
        return []
    found: list[exp.Expr] = []
    for one in where.flatten() if isinstance(where, exp.And) else [where]:
        part = one.unnest()
        found += split_and_conditions(part) if isinstance(part, exp.And) else [part]
    return found


class _TableQueryPlanner:
    """Replaces the tables of a statement by table queries."""

    def __init__(self, query: exp.Query) -> None:
        self._query = query
        self.tables: list[TableQuery] = []
        self._equal_columns: list[tuple[exp.Column, exp.Column]] = []

    def make_final_query(self) -> exp.Query:
        for select in list(self._query.find_all(exp.Select)):
            if self._can_group_on_shards(select):
                self._push_groups_to_shards(select)
            else:
                for table in _tables_in_select(select):
                    self._push_columns_to_shards(select, table)
                self._equal_columns += _find_equal_columns(select)
        self._add_id_filters()
        return self._query

    def _add_table_query(self, table: exp.Table, query: TableQuery) -> None:
        name = f"l{len(self.tables)}"
        self.tables.append(replace(query, name=name, table=table.name))
        table.set("this", exp.to_identifier(name))

    # ---- groups

    def _can_group_on_shards(self, select: exp.Select) -> bool:
        """Whether the groups of a SELECT can be made of the shards' partial groups."""
        found = [one for one in walk_without_subqueries(select) if is_aggregate_call(one)]
        if any(isinstance(one, exp.GroupConcat) for one in found):
            return False
        return _single_table(select) is not None and bool(found or select.args.get("group"))

    def _push_groups_to_shards(self, select: exp.Select) -> None:
        table, group = select.args["from_"].this, select.args.get("group")
        keys: list[exp.Expr] = list(dict.fromkeys(group.expressions)) if group else []
        pushed = list(keys)
        for one in walk_without_subqueries(select):
            for arg in _distinct_arguments(one) if is_aggregate_call(one) else ():
                _find_or_append(pushed, arg)
        width = len(pushed)
        for clause in ("expressions", "having", "order"):
            part = select.args.get(clause)
            for one in part if isinstance(part, list) else [] if part is None else [part]:
                _aggregate_partial_groups(one, keys, pushed, table.alias)
        made = _make_shard_select(pushed, select.args.get("where"))
        if width:
            made.set("group", exp.Group(expressions=[number_literal(i + 1) for i in range(width)]))
        select.set("where", None)
        if keys:
            columns = [exp.column(f"c{i}", table=table.alias) for i in range(len(keys))]
            select.set("group", exp.Group(expressions=columns))
        ids = frozenset(i for i, one in enumerate(pushed) if is_id_expression(one))
        self._add_table_query(table, TableQuery("", "", made, ids, is_groups=True))

    # ---- rows

    def _push_columns_to_shards(self, select: exp.Select, table: exp.Table) -> None:
        key = table.alias
        columns = [one for one in self._query.find_all(exp.Column) if one.table == key]
        names = list(dict.fromkeys(one.name for one in columns)) or [TABLES[table.name][0]]
        own = [exp.Paren(this=one.copy()) for one in _single_table_conditions(select, table)]
        where = exp.Where(this=exp.and_(*own, copy=False)) if own else None
        made = _make_shard_select([exp.column(name, table=key) for name in names], where)
        rows_max = self._push_order_to_shards(select, made)
        for column in columns:
            column.meta["base"] = column.name
            column.set("this", exp.to_identifier(f"c{names.index(column.name)}"))
        ids = frozenset(i for i, name in enumerate(names) if name in IDS)
        self._add_table_query(table, TableQuery("", "", made, ids, rows_max))

    def _push_order_to_shards(self, select: exp.Select, made: exp.Select) -> int | None:
        """Copies ORDER BY and LIMIT of a SELECT of rows. Returns how many rows of a shard are enough."""
        limit = _limit_or_offset(select, "limit")
        if limit is None or not _selects_plain_rows(select) or select.args.get("distinct"):
            return None
        terms = [
            make_order_term(expr.copy(), desc=desc) for expr, desc in _order_expressions(select)
        ]
        if any(isinstance(term.this, exp.Literal) for term in terms):
            return None  # shards would take a literal for the position of a column
        if terms:
            made.set("order", exp.Order(expressions=terms))
            _remove_table_names(made)
        return limit + (_limit_or_offset(select, "offset") or 0)

    # ---- id filters

    def _add_id_filters(self) -> None:
        """Filters queries for jobs by the ids of other tables: these tables are small."""
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


def _tables_in_select(select: exp.Select) -> Iterator[exp.Table]:
    sources = [select.args["from_"].this, *(one.this for one in select.args.get("joins") or [])]
    return (one for one in sources if isinstance(one, exp.Table) and one.name in TABLES)


def _conditions_with_tables(select: exp.Select) -> list[tuple[exp.Expr, set[str]]]:
    """The conditions of a SELECT; with each, the tables whose rows matter only where it is true."""
    joins = select.args.get("joins") or []
    if any(join.side == "RIGHT" for join in joins):
        return []
    # Of a LEFT JOIN only the joined table depends on the condition.
    first = select.args["from_"].this.alias
    inner = {first, *(join.this.alias for join in joins if not join.side)}
    found = [(one, inner) for one in split_and_conditions(select.args.get("where"))]
    for join in joins:
        tables = {join.this.alias} if join.side else inner
        found += [(one, tables) for one in split_and_conditions(join.args.get("on"))]
    return found


def _find_equal_columns(select: exp.Select) -> Iterator[tuple[exp.Column, exp.Column]]:
    """Pairs of columns: rows of the first column's table matter only where the two columns are equal."""
    for condition, tables in _conditions_with_tables(select):
        for sides in _sides_of_equality(condition):
            match sides:
                case exp.Column() as left, exp.Column() as right if left.table in tables:
                    yield left, right


def _sides_of_equality(condition: exp.Expr) -> list[tuple[exp.Expr, exp.Expr]]:
    if isinstance(condition, exp.EQ):
        sides = (condition.this, condition.expression)
        return [sides, sides[::-1]]
    if isinstance(condition, exp.In) and condition.args.get("query") is not None:
        inner = condition.args["query"].this
        if isinstance(inner, exp.Select) and not has_aggregate(inner):
            return [(condition.this, inner.expressions[0].this)]
    return []


def _single_table_conditions(select: exp.Select, table: exp.Table) -> list[exp.Expr]:
    """The conditions on this table alone that its rows must match before they are joined."""
    return [
        condition
        for condition, tables in _conditions_with_tables(select)
        if table.alias in tables
        and {column.table for column in condition.find_all(exp.Column)} == {table.alias}
        and condition.find(exp.Query) is None
    ]


def _distinct_arguments(aggregate: exp.Expr) -> list[exp.Expr]:
    first = aggregate.expressions[0]
    return list(first.expressions) if isinstance(first, exp.Distinct) else []


def _find_or_append(pushed: list[exp.Expr], expr: exp.Expr) -> int:
    if expr not in pushed:
        pushed.append(expr.copy())
    return pushed.index(expr)


def _aggregate_partial_groups(
    node: exp.Expr, keys: list[exp.Expr], pushed: list[exp.Expr], key: str
) -> None:
    """Replaces keys by columns of the partial groups, and aggregates by aggregates of these columns.

    An AVG inside another expression gets more digits than a selected AVG, as in MySQL.
    """

    def pushed_column(expr: exp.Expr) -> exp.Expr:
        return exp.column(f"c{_find_or_append(pushed, expr)}", table=key)

    for one in list(node.iter_expressions()):
        if one in keys:
            one.replace(exp.column(f"c{keys.index(one)}", table=key))
        elif not is_aggregate_call(one):
            _aggregate_partial_groups(one, keys, pushed, key)
        elif _distinct_arguments(one):
            columns = [pushed_column(arg) for arg in _distinct_arguments(one)]
            one.replace(make_call(one.name, exp.Distinct(expressions=columns)))
        elif one.name == "AVG":
            sums: list[exp.Expr] = [
                make_call("SUM", pushed_column(make_call(name, *one.expressions)))
                for name in ("SUM", "COUNT")
            ]
            total, count = sums
            if not isinstance(one.parent, exp.Alias):
                total = exp.Mul(this=total, expression=number_literal(f"1.{'0' * _AVERAGE_DIGITS}"))
            one.replace(exp.Paren(this=exp.Div(this=total, expression=count)))
        elif one.name == "COUNT":
            total = make_call("COALESCE", make_call("SUM", pushed_column(one)), number_literal(0))
            one.replace(make_cast(total, "BIGINT"))
        else:
            one.replace(make_call(one.name, pushed_column(one)))
