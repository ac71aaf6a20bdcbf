"""What `toc sql` does with a statement: what tables are asked (leaves), and what is left to do (the rest).

Every table that the statement names is a leaf. Where a SELECT is of one table alone, all shards do as much
of it as is exact: WHERE; partial aggregates by group (AVG as a sum and a count; a DISTINCT of an aggregate
is one more key); or ORDER BY and LIMIT. Of other tables they send the columns that are used, of the rows
that the conditions on that table alone let pass. The rest is the statement itself with leaves in its tables'
place, and one of the servers runs it: what it answers is what MySQL means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from toc.admin.allowed_functions import NOW_FUNCTIONS
from toc.admin.expression_parser import Output
from toc.admin.query_reader import IDS, TABLES, read
from toc.admin.syntax_tree import call, cast, has_aggregate, inside, is_aggregate, number
from toc.store.views import JOBS

Order = tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class Link:
    """Rows of a leaf matter only if `column` of its table is among the values in `place` of another leaf."""

    column: str
    leaf: str
    place: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """What each shard or database is asked of a table: `select`, whose FROM is filled in for each.

    Its columns are c0, c1, …; `ids` are the places of 64-bit ids. `wanted`: so many rows of each are
    enough; None: there is no telling. `is_groups`: they are groups.
    """

    name: str
    table: str
    select: exp.Select
    ids: frozenset[int]
    wanted: int | None = None
    is_groups: bool = False
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """`rest` None: the answer is the rows of the only leaf, put into `order` (places of columns; whether
    each goes down), different ones if `distinct`, from `offset` on, `limit` of them."""

    outputs: tuple[Output, ...]
    leaves: tuple[Leaf, ...]
    rest: exp.Query | None
    order: Order = ()
    distinct: bool = False
    limit: int | None = None
    offset: int = 0

    @property
    def reads_the_clock(self) -> bool:
        trees = [
            *(leaf.select for leaf in self.leaves),
            *([] if self.rest is None else [self.rest]),
        ]
        return any(
            one.name in NOW_FUNCTIONS for tree in trees for one in tree.find_all(exp.Anonymous)
        )

    def rows_wanted(self, rows_max: int) -> int:
        """How many rows of a shard can matter: one more than are shown tells that there are more."""
        return self.offset + min(rows_max + 1, rows_max + 1 if self.limit is None else self.limit)


def plan(text: str, values: Mapping[str, str] | None = None) -> Plan:
    """Reads a statement and says how it is answered. `values` are those of its @names.

    Raises InvalidInput with the part that is wrong.
    """
    query, outputs = read(text, values)
    if isinstance(query, exp.Select) and not query.args.get("with_") and _is_rows(query):
        return _rows(query, outputs)
    planner = _Planner(query)
    rest = planner.rest()
    return Plan(tuple(outputs), tuple(planner.leaves), rest)


def _alone(select: exp.Select) -> exp.Table | None:
    """The table of a SELECT that is of this one alone."""
    table = select.args["from_"].this
    if select.args.get("joins") or not isinstance(table, exp.Table) or table.name not in TABLES:
        return None
    if any(one is not select for one in select.find_all(exp.Query)):
        return None
    key = table.alias
    return table if all(one.table == key for one in select.find_all(exp.Column)) else None


def _is_rows(select: exp.Select) -> bool:
    if _alone(select) is None or select.args.get("group"):
        return False
    return not has_aggregate(select) and not any(
        isinstance(one, exp.Window) for one in inside(select)
    )


def _rows(select: exp.Select, outputs: Sequence[Output]) -> Plan:
    """Of a SELECT without groups: shards compute all of it, and its rows are merged."""
    exprs = [one.this for one in select.expressions]
    order: list[tuple[int, bool]] = []
    for one in _ordered_by(select):
        is_place = isinstance(one.this, exp.Literal) and not one.this.is_string
        place = int(one.this.name) - 1 if is_place else len(exprs)
        if place == len(exprs):
            exprs.append(one.this)
        order.append((place, bool(one.args.get("desc"))))
    pushed = _pushed(exprs, select.args.get("where"))
    if order:
        terms = [
            exp.Ordered(this=number(place + 1), desc=desc or None, nulls_first=not desc)
            for place, desc in order
        ]
        pushed.set("order", exp.Order(expressions=terms))
    distinct = select.args.get("distinct") is not None
    if distinct:
        pushed.set("distinct", exp.Distinct())
    leaf = Leaf("l0", select.args["from_"].this.name, pushed, frozenset())
    return Plan(
        tuple(outputs), (leaf,), None, tuple(order), distinct,
        _count(select, "limit"), _count(select, "offset") or 0,
    )  # fmt: skip


def _ordered_by(query: exp.Query) -> list[exp.Expr]:
    order = query.args.get("order")
    return [] if order is None else list(order.expressions)


def _count(query: exp.Query, name: str) -> int | None:
    clause = query.args.get(name)
    return None if clause is None else int(clause.expression.name)


def _pushed(exprs: Sequence[exp.Expr], where: exp.Expr | None) -> exp.Select:
    """What a shard selects: of one table, so columns need not say theirs."""
    made = exp.Select(expressions=[exp.alias_(one.copy(), f"c{i}") for i, one in enumerate(exprs)])
    if where is not None:
        made.set("where", where.copy())
    for column in made.find_all(exp.Column):
        column.set("table", None)
    return made


def conjuncts(where: exp.Expr | None) -> list[exp.Expr]:
    """The conditions that must all hold."""
    if isinstance(where, exp.Where):
        where = where.this
    if where is None:
        return []
    parts = where.flatten() if isinstance(where, exp.And) else [where]
    found: list[exp.Expr] = []
    for one in parts:
        part = one.unnest()
        found += conjuncts(part) if isinstance(part, exp.And) else [part]
    return found


class _Planner:
    """Puts leaves into the place of tables."""

    def __init__(self, query: exp.Query) -> None:
        self._query = query
        self.leaves: list[Leaf] = []
        self._links: list[tuple[exp.Column, exp.Column]] = []
        self._places: dict[str, tuple[int, dict[str, int]]] = {}

    def rest(self) -> exp.Query:
        """The statement, of leaves."""
        for select in list(self._query.find_all(exp.Select)):
            if not self._groups(select):
                for table in self._tables(select):
                    self._columns(select, table)
                self._link(select)
        self._add_links()
        return self._query

    def _leaf(self, table: exp.Table, select: exp.Select, **more: object) -> str:
        name = f"l{len(self.leaves)}"
        self.leaves.append(Leaf(name, table.name, select, **more))  # type: ignore[arg-type]
        table.set("this", exp.to_identifier(name))
        return name

    # ---- groups

    def _groups(self, select: exp.Select) -> bool:
        """Replaces aggregates by those of the shards' partial ones, where they can be added up."""
        table = _alone(select)
        found = [one for one in inside(select) if is_aggregate(one)]
        group = select.args.get("group")
        if (
            table is None
            or not (found or group)
            or any(isinstance(one, exp.GroupConcat) for one in found)
        ):
            return False
        keys: list[exp.Expr] = list(dict.fromkeys(group.expressions)) if group else []
        pushed = list(keys)
        for one in found:
            for arg in _distinct_of(one):
                _place(pushed, arg)
        spread = len(pushed)
        for clause in ("expressions", "having", "order"):
            part = select.args.get(clause)
            for one in part if isinstance(part, list) else [] if part is None else [part]:
                _replace(one, keys, pushed, table.alias)
        where = select.args.get("where")
        leaf = _pushed(pushed, where)
        if spread:
            leaf.set("group", exp.Group(expressions=[number(i + 1) for i in range(spread)]))
        select.set("where", None)
        if keys:
            columns = [exp.column(f"c{i}", table=table.alias) for i in range(len(keys))]
            select.set("group", exp.Group(expressions=columns))
        ids = frozenset(i for i, one in enumerate(pushed) if _is_id(one))
        self._leaf(table, leaf, ids=ids, is_groups=True)
        return True

    # ---- rows

    def _tables(self, select: exp.Select) -> Iterator[exp.Table]:
        sources = [select.args["from_"].this, *(one.this for one in select.args.get("joins") or [])]
        return (one for one in sources if isinstance(one, exp.Table) and one.name in TABLES)

    def _columns(self, select: exp.Select, table: exp.Table) -> None:
        key = table.alias
        used = [one.name for one in self._query.find_all(exp.Column) if one.table == key]
        names = list(dict.fromkeys(used)) or [TABLES[table.name][0]]
        conditions = [one.copy() for one in _own_conditions(select, table)]
        where = exp.and_(*map(_wrapped, conditions), copy=False) if conditions else None
        columns = [exp.column(name, table=key) for name in names]
        leaf = _pushed(columns, None if where is None else exp.Where(this=where))
        wanted = self._push_order(select, leaf, names)
        for column in self._query.find_all(exp.Column):
            if column.table == key:
                column.meta["base"] = column.name
                column.set("this", exp.to_identifier(f"c{names.index(column.name)}"))
        ids = frozenset(i for i, name in enumerate(names) if name in IDS)
        self._leaf(table, leaf, ids=ids, wanted=wanted)

    def _push_order(self, select: exp.Select, leaf: exp.Select, names: list[str]) -> int | None:
        """ORDER BY columns, and LIMIT."""
        limit = _count(select, "limit")
        if limit is None or not _is_rows(select) or select.args.get("distinct"):
            return None
        terms = []
        for one in _ordered_by(select):
            expr = one.this
            if isinstance(expr, exp.Literal) and not expr.is_string:
                expr = select.expressions[int(expr.name) - 1].this
            expr = expr.copy()
            for column in expr.find_all(exp.Column):
                column.set("table", None)
            if isinstance(expr, exp.Literal):
                return None  # a text, which would be a place
            terms.append(
                exp.Ordered(
                    this=expr, desc=one.args.get("desc"), nulls_first=one.args.get("nulls_first")
                )
            )
        if terms:
            leaf.set("order", exp.Order(expressions=terms))
        return limit + (_count(select, "offset") or 0)

    # ---- links

    def _link(self, select: exp.Select) -> None:
        """Notes columns that must be equal for a row to matter."""
        joins = select.args.get("joins") or []
        if any(join.side == "RIGHT" for join in joins):
            return
        # Of a LEFT JOIN only the table itself depends on its condition.
        free = {
            select.args["from_"].this.alias,
            *(join.this.alias for join in joins if not join.side),
        }
        for join in joins:
            for one in conjuncts(join.args.get("on")):
                self._note(one, {join.this.alias} if join.side else free)
        for one in conjuncts(select.args.get("where")):
            self._note(one, free)

    def _note(self, one: exp.Expr, keys: set[str]) -> None:
        sides: list[exp.Expr] = []
        if isinstance(one, exp.EQ):
            sides = [one.this, one.expression]
        elif isinstance(one, exp.In) and one.args.get("query") is not None:
            inner = one.args["query"].this
            if isinstance(inner, exp.Select) and not has_aggregate(inner):
                sides = [one.this, inner.expressions[0].this]
        columns = [side for side in sides if isinstance(side, exp.Column)]
        if len(columns) == 2:
            pairs = [columns, columns[::-1]] if isinstance(one, exp.EQ) else [columns]
            self._links += [(left, right) for left, right in pairs if left.table in keys]

    def _add_links(self) -> None:
        """Of jobs to other tables: these are small."""
        by_key = {
            table.alias: table.name
            for table in self._query.find_all(exp.Table)
            if any(leaf.name == table.name for leaf in self.leaves)
        }
        by_name = {leaf.name: leaf for leaf in self.leaves}
        for left, right in self._links:
            name = str(left.meta.get("base", ""))
            own, other = (
                by_name.get(by_key.get(left.table, "")),
                by_name.get(by_key.get(right.table, "")),
            )
            if own is None or other is None or own.is_groups or other.is_groups:
                continue
            if own.table == JOBS and other.table != JOBS and name in IDS and own.wanted is None:
                link = Link(name, other.name, int(right.name[1:]))
                by_name[own.name] = replace(own, links=(*own.links, link))
        self.leaves = [by_name[leaf.name] for leaf in self.leaves]


def _own_conditions(select: exp.Select, table: exp.Table) -> Iterator[exp.Expr]:
    """What can be asked of a table before it is joined: conditions on its columns alone."""
    key = table.alias
    joins = select.args.get("joins") or []
    if any(join.side == "RIGHT" for join in joins):
        return
    own = next((join for join in joins if join.this is table), None)
    found = [] if own is None else conjuncts(own.args.get("on"))
    if own is None or not own.side:  # or rows without a match would be judged, too
        found += conjuncts(select.args.get("where"))
        found += [
            one
            for join in joins
            if not join.side and join is not own
            for one in conjuncts(join.args.get("on"))
        ]
    for one in found:
        columns = list(one.find_all(exp.Column))
        if (
            columns
            and all(column.table == key for column in columns)
            and one.find(exp.Query) is None
        ):
            yield one


def _wrapped(node: exp.Expr) -> exp.Expr:
    return node if isinstance(node, exp.Paren) else exp.Paren(this=node)


def _is_id(expr: exp.Expr) -> bool:
    if isinstance(expr, exp.Anonymous) and expr.name in ("MIN", "MAX"):
        expr = expr.expressions[0]
    return isinstance(expr, exp.Column) and expr.name in IDS


def _distinct_of(aggregate: exp.Expr) -> list[exp.Expr]:
    first = aggregate.expressions[0]
    return list(first.expressions) if isinstance(first, exp.Distinct) else []


def _place(pushed: list[exp.Expr], expr: exp.Expr) -> int:
    if expr not in pushed:
        pushed.append(expr.copy())
    return pushed.index(expr)


def _replace(node: exp.Expr, keys: list[exp.Expr], pushed: list[exp.Expr], key: str) -> None:
    """Keys and aggregates by columns of the partial groups, and aggregates of these."""

    def column(place: int) -> exp.Expr:
        return exp.column(f"c{place}", table=key)

    def total(expr: exp.Expr) -> exp.Expr:
        return call("SUM", column(_place(pushed, expr)))

    for one in list(node.iter_expressions()):
        if one in keys:
            one.replace(column(keys.index(one)))
        elif not is_aggregate(one):
            _replace(one, keys, pushed, key)
        elif _distinct_of(one):
            columns = [column(_place(pushed, arg)) for arg in _distinct_of(one)]
            one.replace(call(one.name, exp.Distinct(expressions=columns)))
        elif one.name == "AVG":
            parts = [total(call(name, *one.expressions)) for name in ("SUM", "COUNT")]
            one.replace(call("AVERAGE" if isinstance(one.parent, exp.Alias) else "MEAN", *parts))
        elif one.name == "COUNT":
            one.replace(cast(call("COALESCE", total(one), number(0)), "BIGINT"))
        else:
            one.replace(call(one.name, column(_place(pushed, one))))
