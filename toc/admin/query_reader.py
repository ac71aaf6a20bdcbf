"""Reads a SELECT: makes a checked tree of our own from sqlglot's tree.

In the new tree every column names its table (t0, t1, … in the order of the statement, w0, … for WITH), every
column of a SELECT is called c0, c1, …, aliases and positions are replaced by their expressions, and operands
that are expressions are in parentheses. So it has no name of the user's text; texts are bound later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sqlglot import exp

from toc.admin.expression_parser import Columns, ExpressionParser, ResultColumn, Scope, column_of
from toc.admin.function_calls import ordered
from toc.admin.statement_parser import (
    not_accepted,
    parse_statement,
    refused,
    shown,
    too_deep,
)
from toc.admin.syntax_tree import (
    clause_terms,
    has_aggregate,
    has_window,
    inside,
    is_aggregate,
    is_id,
    kind_of,
    name_of,
    number,
    whole_number,
)
from toc.admin.type_check import kind_of_column, numbers
from toc.store.views import COLUMNS, JOBS

BIZ_TYPES = "toc_biz_type"
TABLES: Mapping[str, tuple[str, ...]] = {**COLUMNS, BIZ_TYPES: ("type_no", "name")}
"""The columns of each table that can be read."""
IDS = frozenset({"job_id", "biz_id", "first_id", "last_id"})
WINDOW_MAX = 100_000
"""The most that OFFSET and LIMIT may be together: each shard sends so many rows."""

Item = tuple[str, exp.Expr, bool]
"""A column that is selected: its name, its expression, and whether the name is an alias."""


def read_query(
    statement: str, values: Mapping[str, str] | None = None
) -> tuple[exp.Query, list[ResultColumn]]:
    """Reads a SELECT of MySQL's dialect: the tree described above, and the columns of the answer.

    `values` are those of its @names. Raises InvalidInput with the part that is wrong.
    """
    given = values or {}
    reader = QueryReader(given)
    try:
        query, columns = reader.query(parse_statement(statement), Scope())
    except RecursionError:
        raise too_deep() from None
    unused = given.keys() - reader.used
    if unused:
        rule = "has a value, and the statement does not have this name"
        raise refused(f"@{min(unused)}", rule, reader.used)
    return query, columns


def read_condition(tree: exp.Expr) -> exp.Expr:
    """Reads a parsed condition on the columns of `toc_jobs`. Raises InvalidInput."""
    reader = QueryReader({}, offsets=True)
    reader.scope.tables[JOBS] = columns_of_table(JOBS, JOBS)
    return reader.expr(tree)


def columns_of_table(table: str, key: str) -> Columns:
    """The columns of one of TABLES, which is called `key` in the new tree."""
    return {
        name: column_of(key, name, ResultColumn(name, kind_of_column(name), name in IDS))
        for name in TABLES[table]
    }


class QueryReader(ExpressionParser):
    """Reads queries, and the expressions in them."""

    def __init__(self, values: Mapping[str, str], *, offsets: bool = False) -> None:
        super().__init__(values, offsets=offsets)
        self._made: Counter[str] = Counter()

    def _make_name(self, letter: str) -> str:
        """Makes a name that this statement does not use yet."""
        self._made[letter] += 1
        return f"{letter}{self._made[letter] - 1}"

    # ---- queries

    def query(self, node: exp.Expr, outer: Scope) -> tuple[exp.Query, list[ResultColumn]]:
        """A SELECT, or several with UNION, in parentheses or not."""
        scope, made_ctes = Scope(outer, outer.ctes), []
        with_ = node.args.get("with_")
        for cte in with_.expressions if with_ is not None else ():
            query, columns = self.query(cte.this, scope)
            key, named = self._make_name("w"), _renamed(cte.args["alias"], columns)
            made_ctes.append(exp.CTE(this=query, alias=_alias(key)))
            scope.ctes = {**scope.ctes, cte.alias.lower(): (key, named)}
        if isinstance(node, exp.Subquery):
            return self.query(node.this, scope)
        before, self.scope = self.scope, scope
        try:
            read = self._union if isinstance(node, exp.Union) else self._select
            if not isinstance(node, (exp.Union, exp.Select)):
                raise not_accepted(node)
            query, columns = read(node)
            self._limit(node, query)
        finally:
            self.scope = before
        if made_ctes:
            query.set("with_", exp.With(expressions=made_ctes))
        return query, columns

    def _union(self, node: exp.Expr) -> tuple[exp.Query, list[ResultColumn]]:
        left, columns = self.query(node.this, self.scope)
        right, others = self.query(node.expression, self.scope)
        if len(columns) != len(others):
            rule = f"its parts have {len(columns)} and {len(others)} columns"
            raise refused("UNION", rule)
        for one, other in zip(columns, others, strict=True):
            if one.kind != other.kind and "any" not in (one.kind, other.kind):
                raise refused(one.name, f"UNION puts a {one.kind} and a {other.kind} in one column")
        columns = [
            replace(one, kind=other.kind) if one.kind == "any" else one
            for one, other in zip(columns, others, strict=True)
        ]
        query = exp.Union(
            this=self._part(node.this, left),
            expression=self._part(node.expression, right),
            distinct=bool(node.args.get("distinct")),
        )
        names = [one.name.lower() for one in columns]
        order = []
        for by in clause_terms(node, "order"):
            place = whole_number(by.this)
            if place is not None:
                place = _checked_place(place, "ORDER BY", len(names))
            elif by.this.name.lower() in names:
                place = names.index(by.this.name.lower()) + 1
            else:
                raise refused(shown(by.this), "order a UNION by names or places of its columns")
            order.append(ordered(by, number(place)))
        if order:
            query.set("order", exp.Order(expressions=order))
        return query, columns

    def _part(self, node: exp.Expr, made: exp.Query) -> exp.Expr:
        """A part of a UNION. SQLite accepts no parentheses here, so a limited part becomes a table."""
        if not any(made.args.get(name) for name in ("order", "limit", "with_")):
            return made
        if not isinstance(node, exp.Subquery) and not isinstance(made, exp.Union):
            raise refused("UNION", "put a SELECT with ORDER BY or LIMIT in parentheses")
        inner = exp.Subquery(this=made, alias=_alias(self._make_name("t")))
        return exp.Select(expressions=[exp.Star()], from_=exp.From(this=inner))

    def _select(self, node: exp.Expr) -> tuple[exp.Query, list[ResultColumn]]:
        made = exp.Select()
        if node.args.get("from_") is None:
            raise refused("SELECT", "it needs a table: SELECT … FROM toc_jobs")
        made.set("from_", exp.From(this=self._table(node.args["from_"].this)))
        made.set("joins", [self._join(one) for one in node.args.get("joins") or []])
        items = [one for item in node.expressions for one in self._items(item)]
        aliases = {name.lower(): expr for name, expr, is_alias in items if is_alias}
        self.scope.unusable_aliases = frozenset(aliases)
        where = self._condition(node, "where")
        self.scope.unusable_aliases, self.scope.aliases = frozenset(), aliases
        exprs = [expr for _, expr, _ in items]
        group = [self._group_term(one, exprs) for one in clause_terms(node, "group")]
        having = self._condition(node, "having")
        order = [(self._order_term(one, exprs), one) for one in clause_terms(node, "order")]
        distinct = exp.Distinct() if node.args.get("distinct") is not None else None
        columns = [ResultColumn(name, kind_of(expr), is_id(expr)) for name, expr, _ in items]
        _check_names(columns)
        by = [expr for expr, _ in order]
        if distinct and any(expr not in exprs for expr in by):
            raise refused("ORDER BY", "with DISTINCT it can only use selected columns")
        _check_json([*group, *by, *(exprs if distinct or group else [])])
        self._check_groups([*exprs, *([] if having is None else [having]), *by], group, having)
        made.set("expressions", [exp.alias_(one, f"c{i}") for i, one in enumerate(exprs)])
        made.set("distinct", distinct)
        made.set("where", where and exp.Where(this=where))
        made.set("group", exp.Group(expressions=group) if group else None)
        made.set("having", having and exp.Having(this=having))
        if order:
            terms = [
                ordered(one, number(exprs.index(expr) + 1) if expr in exprs else expr)
                for expr, one in order
            ]
            made.set("order", exp.Order(expressions=terms))
        return made, columns

    def _check_groups(
        self, exprs: list[exp.Expr], group: list[exp.Expr], having: exp.Expr | None
    ) -> None:
        """Refuses columns that are neither grouped nor aggregated: their value would be any of several."""
        is_grouped = bool(group) or any(map(has_aggregate, exprs))
        if having is not None and not is_grouped:
            raise refused(
                "HAVING", "it needs GROUP BY or an aggregate: put this condition in WHERE"
            )
        todo = list(exprs) if is_grouped else []
        while todo:
            one = todo.pop()
            if one in group:
                continue
            if is_aggregate(one):
                if any(is_aggregate(part) or isinstance(part, exp.Window)
                       for part in inside(one) if part is not one):  # fmt: skip
                    raise refused(shown(one), "an aggregate of an aggregate or window function")
                continue
            if isinstance(one, exp.Column) and one.table in self._own_tables():
                raise refused(name_of(one), "it is neither in GROUP BY nor in an aggregate")
            todo += one.iter_expressions()

    def _own_tables(self) -> set[str]:
        tables = self.scope.tables.values()
        return {column.text("table") for columns in tables for column in columns.values()}

    def _limit(self, node: exp.Expr, made: exp.Query) -> None:
        total = 0
        for name, kind in (("limit", exp.Limit), ("offset", exp.Offset)):
            clause = node.args.get(name)
            if clause is not None:
                count = whole_number(self.expr(clause.expression))
                if count is None:
                    raise refused(shown(clause.expression), f"{name.upper()} takes a whole number")
                made.set(name, kind(expression=number(count)))
                total += count
        if total > WINDOW_MAX:
            rule = f"LIMIT and OFFSET together can be {WINDOW_MAX} at most"
            raise refused(str(total), rule)

    # ---- tables

    def _table(self, node: exp.Expr) -> exp.Expr:
        key = self._make_name("t")
        if isinstance(node, exp.Subquery):
            if not node.alias:
                raise refused(shown(node), "a subquery after FROM needs a name")
            query, columns = self.query(node.this, Scope(ctes=self.scope.ctes))
            self._add(node.alias, _columns_of_query(key, _renamed(node.args["alias"], columns)))
            return exp.Subquery(this=query, alias=_alias(key))
        if not isinstance(node, exp.Table):
            raise not_accepted(node)
        if not isinstance(node.this, exp.Identifier):
            raise not_accepted(node.this)
        if node.args.get("alias") is not None and node.args["alias"].args.get("columns"):
            raise refused(shown(node), "a table's alias has no names of columns")
        name = node.name.lower()
        if name in self.scope.ctes:
            name, columns = self.scope.ctes[name]
            self._add(node.alias_or_name, _columns_of_query(key, columns))
        elif name in TABLES:
            self._add(node.alias_or_name, columns_of_table(name, key))
        else:
            raise refused(name, f"there is no such table; there are {', '.join(TABLES)}", TABLES)
        return exp.Table(this=exp.to_identifier(name), alias=_alias(key))

    def _add(self, name: str, columns: Columns) -> None:
        if name.lower() in self.scope.tables:
            raise refused(name, "two tables have this name: give one of them another (AS)")
        self.scope.tables[name.lower()] = columns

    def _join(self, node: exp.Expr) -> exp.Expr:
        side, kind = node.text("side").upper(), node.text("kind").upper()
        if side not in ("", "LEFT", "RIGHT") or kind not in ("", "INNER", "CROSS", "OUTER"):
            raise not_accepted(node)
        made = exp.Join(this=self._table(node.this))
        on = self._condition(node, "on")
        if side and on is None:
            raise refused(shown(node), "it needs ON")
        made.set("side", side or None)
        made.set("kind", None if side else "CROSS" if on is None else "INNER")
        made.set("on", on)
        return made

    # ---- clauses

    def _items(self, node: exp.Expr) -> list[Item]:
        if isinstance(node, exp.Alias):
            return [(node.alias, self.expr(node.this, json=True), True)]
        table = ""
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            table, node = node.text("table").lower(), node.this
            if table not in self.scope.tables:
                raise refused(
                    table, f"there is no such table; there are {', '.join(self.scope.tables)}"
                )
        if isinstance(node, exp.Star):
            return [
                (name_of(column), column.copy(), False)
                for key, columns in self.scope.tables.items()
                if not table or key == table
                for column in columns.values()
            ]
        expr = self.expr(node, json=True)
        return [(name_of(expr) or shown(node), expr, False)]

    def _condition(self, node: exp.Expr, clause: str) -> exp.Expr | None:
        found, word = node.args.get(clause), clause.upper()
        if found is None:
            return None
        (condition,) = numbers([self.expr(found if clause == "on" else found.this)], word)
        if clause != "having" and has_aggregate(condition):
            raise refused(word, "it cannot use aggregates: put this condition in HAVING")
        if has_window(condition):
            text = "this clause cannot use window functions: compute them in a subquery in FROM"
            raise refused(word, text)
        return condition

    def _group_term(self, node: exp.Expr, exprs: list[exp.Expr]) -> exp.Expr:
        found = self._by_place(node, "GROUP BY", exprs) or self.expr(node, json=True)
        if has_aggregate(found) or has_window(found):
            raise refused("GROUP BY", "it cannot use aggregates or window functions")
        return found.copy()

    def _order_term(self, node: exp.Expr, exprs: list[exp.Expr]) -> exp.Expr:
        return self._by_place(node.this, "ORDER BY", exprs) or self.expr(node.this, json=True)

    def _by_place(self, node: exp.Expr, clause: str, exprs: list[exp.Expr]) -> exp.Expr | None:
        """The selected column that a number means."""
        if isinstance(node, exp.Parameter):
            node = self.expr(node)
        if not isinstance(node, exp.Literal) or node.is_string:
            return None
        return exprs[_checked_place(whole_number(node), clause, len(exprs)) - 1]


def _checked_place(place: int | None, clause: str, count: int) -> int:
    if place is None or not 1 <= place <= count:
        raise refused(f"{clause} {place}", f"a number here is a column, from 1 to {count}")
    return place


def _renamed(alias: exp.Expr, columns: list[ResultColumn]) -> list[ResultColumn]:
    """The columns of a query under the names that its alias has for them, as in WITH x (a, b)."""
    names = [one.name for one in alias.args.get("columns") or []] or [one.name for one in columns]
    if len(names) != len(columns):
        raise refused(shown(alias), f"it names {len(names)} columns, and there are {len(columns)}")
    renamed = [replace(one, name=name) for name, one in zip(names, columns, strict=True)]
    _check_names(renamed)
    return renamed


def _columns_of_query(key: str, columns: Iterable[ResultColumn]) -> Columns:
    return {one.name.lower(): column_of(key, f"c{i}", one) for i, one in enumerate(columns)}


def _alias(key: str) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(key))


def _check_names(columns: list[ResultColumn]) -> None:
    counts = Counter(one.name.lower() for one in columns)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise refused(twice[0], "two columns have this name: give one of them another (AS)")


def _check_json(exprs: list[exp.Expr]) -> None:
    for expr in exprs:
        if kind_of(expr) == "json":
            raise refused(
                shown(expr), "JSON has no order and cannot be grouped: ->> makes a text of it"
            )
