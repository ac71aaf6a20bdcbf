"""Translates a SELECT of sqlglot's tree into a checked tree of toc's own.

In the new tree every column names its table (t0, t1, … in the order of the statement, w0, … for WITH), every
column of a SELECT is called c0, c1, …, aliases and positions are replaced by their expressions, and operands
that are expressions are in parentheses. So the new tree has no name from the user's text; literal texts are
bound later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sqlglot import exp

from toc.admin.expression_parser import (
    Columns,
    ExpressionParser,
    NameScope,
    ResultColumn,
    make_column,
)
from toc.admin.function_calls import make_order_term_like
from toc.admin.statement_parser import (
    node_as_text,
    not_accepted_error,
    parse_statement,
    refusal_error,
    too_deep_error,
)
from toc.admin.syntax_tree import (
    clause_terms,
    column_name,
    has_aggregate,
    has_window,
    is_aggregate_call,
    is_id_expression,
    literal_whole_number,
    number_literal,
    value_kind,
    walk_without_subqueries,
)
from toc.admin.type_check import check_numbers, kind_of_column
from toc.store.views import COLUMNS, JOBS

BIZ_TYPES = "toc_biz_type"
TABLES: Mapping[str, tuple[str, ...]] = {**COLUMNS, BIZ_TYPES: ("type_no", "name")}
"""The columns of each table that can be read."""
IDS = frozenset({"job_id", "biz_id", "first_id", "last_id"})
WINDOW_MAX = 100_000
"""The largest sum of OFFSET and LIMIT: each shard sends up to this number of rows."""

Item = tuple[str, exp.Expr, bool]
"""A column that is selected: its name, its expression, and whether the name is an alias."""


def read_query(
    statement: str, values: Mapping[str, str] | None = None
) -> tuple[exp.Query, list[ResultColumn]]:
    """Parses a SELECT of MySQL's dialect; returns the checked tree and the columns of the answer.

    `values`: the values of its @names. Raises InvalidInput with the part that is wrong.
    """
    given = values or {}
    reader = QueryReader(given)
    try:
        query, columns = reader.translate_query(parse_statement(statement), NameScope())
    except RecursionError:
        raise too_deep_error() from None
    unused = given.keys() - reader.used
    if unused:
        rule = "has a value, and the statement does not have this name"
        raise refusal_error(f"@{min(unused)}", rule, reader.used)
    return query, columns


def read_condition(tree: exp.Expr) -> exp.Expr:
    """Translates a parsed condition on the columns of `toc_jobs`. Raises InvalidInput."""
    reader = QueryReader({}, offsets=True)
    reader.scope.tables[JOBS] = columns_of_table(JOBS, JOBS)
    return reader.translate_expression(tree)


def columns_of_table(table: str, key: str) -> Columns:
    """The columns of one of TABLES, which is called `key` in the new tree."""
    return {
        name: make_column(key, name, ResultColumn(name, kind_of_column(name), name in IDS))
        for name in TABLES[table]
    }


class QueryReader(ExpressionParser):
    """Translates queries, and the expressions in queries."""

    def __init__(self, values: Mapping[str, str], *, offsets: bool = False) -> None:
        super().__init__(values, offsets=offsets)
        self._made: Counter[str] = Counter()

    def _make_unused_name(self, letter: str) -> str:
        """Makes a name that this statement does not use yet."""
        self._made[letter] += 1
        return f"{letter}{self._made[letter] - 1}"

    # ---- queries

    def translate_query(
        self, node: exp.Expr, outer: NameScope
    ) -> tuple[exp.Query, list[ResultColumn]]:
        """Translates a SELECT, or several with UNION, in parentheses or not."""
        scope, made_ctes = NameScope(outer, outer.ctes), []
        with_ = node.args.get("with_")
        for cte in with_.expressions if with_ is not None else ():
            query, columns = self.translate_query(cte.this, scope)
            key, named = self._make_unused_name("w"), _rename_columns(cte.args["alias"], columns)
            made_ctes.append(exp.CTE(this=query, alias=_make_table_alias(key)))
            scope.ctes = {**scope.ctes, cte.alias.lower(): (key, named)}
        if isinstance(node, exp.Subquery):
            return self.translate_query(node.this, scope)
        before, self.scope = self.scope, scope
        try:
            read = self._translate_union if isinstance(node, exp.Union) else self._translate_select
            if not isinstance(node, (exp.Union, exp.Select)):
                raise not_accepted_error(node)
            query, columns = read(node)
            self._copy_limit_and_offset(node, query)
        finally:
            self.scope = before
        if made_ctes:
            query.set("with_", exp.With(expressions=made_ctes))
        return query, columns

    def _translate_union(self, node: exp.Expr) -> tuple[exp.Query, list[ResultColumn]]:
        left, columns = self.translate_query(node.this, self.scope)
        right, others = self.translate_query(node.expression, self.scope)
        if len(columns) != len(others):
            rule = f"the parts of a UNION have {len(columns)} and {len(others)} columns"
            raise refusal_error("UNION", rule)
        for one, other in zip(columns, others, strict=True):
            if one.kind != other.kind and "any" not in (one.kind, other.kind):
                raise refusal_error(
                    one.name, f"UNION puts a {one.kind} and a {other.kind} in one column"
                )
        columns = [
            replace(one, kind=other.kind) if one.kind == "any" else one
            for one, other in zip(columns, others, strict=True)
        ]
        query = exp.Union(
            this=self._make_union_part(node.this, left),
            expression=self._make_union_part(node.expression, right),
            distinct=bool(node.args.get("distinct")),
        )
        names = [one.name.lower() for one in columns]
        order = []
        for by in clause_terms(node, "order"):
            place = literal_whole_number(by.this)
            if place is not None:
                place = _check_column_position(place, "ORDER BY", len(names))
            elif by.this.name.lower() in names:
                place = names.index(by.this.name.lower()) + 1
            else:
                raise refusal_error(
                    node_as_text(by.this), "order a UNION by names or places of its columns"
                )
            order.append(make_order_term_like(by, number_literal(place)))
        if order:
            query.set("order", exp.Order(expressions=order))
        return query, columns

    def _make_union_part(self, node: exp.Expr, made: exp.Query) -> exp.Expr:
        """A part of a UNION. A part with ORDER BY, LIMIT or WITH becomes a subquery in FROM: SQLite accepts
        no parentheses around a part.
        """
        if not any(made.args.get(name) for name in ("order", "limit", "with_")):
            return made
        if not isinstance(node, exp.Subquery) and not isinstance(made, exp.Union):
            raise refusal_error("UNION", "put a SELECT with ORDER BY or LIMIT in parentheses")
        inner = exp.Subquery(this=made, alias=_make_table_alias(self._make_unused_name("t")))
        return exp.Select(expressions=[exp.Star()], from_=exp.From(this=inner))

    def _translate_select(self, node: exp.Expr) -> tuple[exp.Query, list[ResultColumn]]:
        made = exp.Select()
        if node.args.get("from_") is None:
            raise refusal_error("SELECT", "a SELECT needs a table: SELECT … FROM toc_jobs")
        made.set("from_", exp.From(this=self._translate_table(node.args["from_"].this)))
        made.set("joins", [self._translate_join(one) for one in node.args.get("joins") or []])
        items = [one for item in node.expressions for one in self._translate_selected_items(item)]
        aliases = {name.lower(): expr for name, expr, is_alias in items if is_alias}
        self.scope.unusable_aliases = frozenset(aliases)
        where = self._translate_condition(node, "where")
        self.scope.unusable_aliases, self.scope.aliases = frozenset(), aliases
        exprs = [expr for _, expr, _ in items]
        group = [self._translate_group_term(one, exprs) for one in clause_terms(node, "group")]
        having = self._translate_condition(node, "having")
        order = [
            (self._translate_order_term(one, exprs), one) for one in clause_terms(node, "order")
        ]
        distinct = exp.Distinct() if node.args.get("distinct") is not None else None
        columns = [
            ResultColumn(name, value_kind(expr), is_id_expression(expr)) for name, expr, _ in items
        ]
        _refuse_duplicate_names(columns)
        by = [expr for expr, _ in order]
        if distinct and any(expr not in exprs for expr in by):
            raise refusal_error("ORDER BY", "with DISTINCT, ORDER BY can only use selected columns")
        _refuse_json([*group, *by, *(exprs if distinct or group else [])])
        self._refuse_ungrouped_columns(
            [*exprs, *([] if having is None else [having]), *by], group, having
        )
        made.set("expressions", [exp.alias_(one, f"c{i}") for i, one in enumerate(exprs)])
        made.set("distinct", distinct)
        made.set("where", where and exp.Where(this=where))
        made.set("group", exp.Group(expressions=group) if group else None)
        made.set("having", having and exp.Having(this=having))
        if order:
            terms = [
                make_order_term_like(
                    one, number_literal(exprs.index(expr) + 1) if expr in exprs else expr
                )
                for expr, one in order
            ]
            made.set("order", exp.Order(expressions=terms))
        return made, columns

    def _refuse_ungrouped_columns(
        self, exprs: list[exp.Expr], group: list[exp.Expr], having: exp.Expr | None
    ) -> None:
        """Refuses columns that are neither grouped nor aggregated: their value would be any of several."""
        is_grouped = bool(group) or any(map(has_aggregate, exprs))
        if having is not None and not is_grouped:
            raise refusal_error(
                "HAVING", "HAVING needs GROUP BY or an aggregate: put this condition in WHERE"
            )
        todo = list(exprs) if is_grouped else []
        while todo:
            one = todo.pop()
            if one in group:
                continue
            if is_aggregate_call(one):
                if any(is_aggregate_call(part) or isinstance(part, exp.Window)
                       for part in walk_without_subqueries(one) if part is not one):  # fmt: skip
                    raise refusal_error(
                        node_as_text(one), "an aggregate of an aggregate or window function"
                    )
                continue
            if isinstance(one, exp.Column) and one.table in self._table_names_in_scope():
                raise refusal_error(
                    column_name(one), "this column is neither in GROUP BY nor in an aggregate"
                )
            todo += one.iter_expressions()

    def _table_names_in_scope(self) -> set[str]:
        tables = self.scope.tables.values()
        return {column.text("table") for columns in tables for column in columns.values()}

    def _copy_limit_and_offset(self, node: exp.Expr, made: exp.Query) -> None:
        total = 0
        for name, kind in (("limit", exp.Limit), ("offset", exp.Offset)):
            clause = node.args.get(name)
            if clause is not None:
                count = literal_whole_number(self.translate_expression(clause.expression))
                if count is None:
                    raise refusal_error(
                        node_as_text(clause.expression), f"{name.upper()} takes a whole number"
                    )
                made.set(name, kind(expression=number_literal(count)))
                total += count
        if total > WINDOW_MAX:
            rule = f"LIMIT and OFFSET together can be {WINDOW_MAX} at most"
            raise refusal_error(str(total), rule)

    # ---- tables

    def _translate_table(self, node: exp.Expr) -> exp.Expr:
        key = self._make_unused_name("t")
        if isinstance(node, exp.Subquery):
            if not node.alias:
                raise refusal_error(node_as_text(node), "a subquery after FROM needs a name")
            query, columns = self.translate_query(node.this, NameScope(ctes=self.scope.ctes))
            self._add_table_to_scope(
                node.alias, _columns_of_query(key, _rename_columns(node.args["alias"], columns))
            )
            return exp.Subquery(this=query, alias=_make_table_alias(key))
        if not isinstance(node, exp.Table):
            raise not_accepted_error(node)
        if not isinstance(node.this, exp.Identifier):
            raise not_accepted_error(node.this)
        if node.args.get("alias") is not None and node.args["alias"].args.get("columns"):
            raise refusal_error(node_as_text(node), "a table's alias has no names of columns")
        name = node.name.lower()
        if name in self.scope.ctes:
            name, columns = self.scope.ctes[name]
            self._add_table_to_scope(node.alias_or_name, _columns_of_query(key, columns))
        elif name in TABLES:
            self._add_table_to_scope(node.alias_or_name, columns_of_table(name, key))
        else:
            raise refusal_error(
                name, f"there is no such table; there are {', '.join(TABLES)}", TABLES
            )
        return exp.Table(this=exp.to_identifier(name), alias=_make_table_alias(key))

    def _add_table_to_scope(self, name: str, columns: Columns) -> None:
        if name.lower() in self.scope.tables:
            raise refusal_error(name, "two tables have this name: give one of them another (AS)")
        self.scope.tables[name.lower()] = columns

    def _translate_join(self, node: exp.Expr) -> exp.Expr:
        side, kind = node.text("side").upper(), node.text("kind").upper()
        if side not in ("", "LEFT", "RIGHT") or kind not in ("", "INNER", "CROSS", "OUTER"):
            raise not_accepted_error(node)
        made = exp.Join(this=self._translate_table(node.this))
        on = self._translate_condition(node, "on")
        if side and on is None:
            raise refusal_error(node_as_text(node), "this join needs ON")
        made.set("side", side or None)
        made.set("kind", None if side else "CROSS" if on is None else "INNER")
        made.set("on", on)
        return made

    # ---- clauses

    def _translate_selected_items(self, node: exp.Expr) -> list[Item]:
        if isinstance(node, exp.Alias):
            return [(node.alias, self.translate_expression(node.this, json=True), True)]
        table = ""
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            table, node = node.text("table").lower(), node.this
            if table not in self.scope.tables:
                raise refusal_error(
                    table, f"there is no such table; there are {', '.join(self.scope.tables)}"
                )
        if isinstance(node, exp.Star):
            return [
                (column_name(column), column.copy(), False)
                for key, columns in self.scope.tables.items()
                if not table or key == table
                for column in columns.values()
            ]
        expr = self.translate_expression(node, json=True)
        return [(column_name(expr) or node_as_text(node), expr, False)]

    def _translate_condition(self, node: exp.Expr, clause: str) -> exp.Expr | None:
        found, word = node.args.get(clause), clause.upper()
        if found is None:
            return None
        (condition,) = check_numbers(
            [self.translate_expression(found if clause == "on" else found.this)], word
        )
        if clause != "having" and has_aggregate(condition):
            raise refusal_error(word, f"{word} cannot use aggregates: put this condition in HAVING")
        if has_window(condition):
            text = "this clause cannot use window functions: compute them in a subquery in FROM"
            raise refusal_error(word, text)
        return condition

    def _translate_group_term(self, node: exp.Expr, exprs: list[exp.Expr]) -> exp.Expr:
        found = self._column_at_position(node, "GROUP BY", exprs) or self.translate_expression(
            node, json=True
        )
        if has_aggregate(found) or has_window(found):
            raise refusal_error("GROUP BY", "GROUP BY cannot use aggregates or window functions")
        return found.copy()

    def _translate_order_term(self, node: exp.Expr, exprs: list[exp.Expr]) -> exp.Expr:
        return self._column_at_position(node.this, "ORDER BY", exprs) or self.translate_expression(
            node.this, json=True
        )

    def _column_at_position(
        self, node: exp.Expr, clause: str, exprs: list[exp.Expr]
    ) -> exp.Expr | None:
        """The selected column at the position that a number names; None if `node` is no number."""
        if isinstance(node, exp.Parameter):
            node = self.translate_expression(node)
        if not isinstance(node, exp.Literal) or node.is_string:
            return None
        return exprs[_check_column_position(literal_whole_number(node), clause, len(exprs)) - 1]


def _check_column_position(place: int | None, clause: str, count: int) -> int:
    if place is None or not 1 <= place <= count:
        raise refusal_error(f"{clause} {place}", f"a number here is a column, from 1 to {count}")
    return place


def _rename_columns(alias: exp.Expr, columns: list[ResultColumn]) -> list[ResultColumn]:
    """The columns of a query under the names that its alias has for them, as in WITH x (a, b)."""
    names = [one.name for one in alias.args.get("columns") or []] or [one.name for one in columns]
    if len(names) != len(columns):
        raise refusal_error(
            node_as_text(alias),
            f"this alias names {len(names)} columns, and the query has {len(columns)}",
        )
    renamed = [replace(one, name=name) for name, one in zip(names, columns, strict=True)]
    _refuse_duplicate_names(renamed)
    return renamed


def _columns_of_query(key: str, columns: Iterable[ResultColumn]) -> Columns:
    return {one.name.lower(): make_column(key, f"c{i}", one) for i, one in enumerate(columns)}


def _make_table_alias(key: str) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(key))


def _refuse_duplicate_names(columns: list[ResultColumn]) -> None:
    counts = Counter(one.name.lower() for one in columns)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise refusal_error(twice[0], "two columns have this name: give one of them another (AS)")


def _refuse_json(exprs: list[exp.Expr]) -> None:
    for expr in exprs:
        if value_kind(expr) == "json":
            raise refusal_error(
                node_as_text(expr),
                "JSON has no order and cannot be grouped: ->> makes a text of it",
            )
