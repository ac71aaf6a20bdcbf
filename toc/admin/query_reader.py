"""From sqlglot's tree of a statement to a tree of our own making: checked, with names that are ours.

Nothing is passed over: what is not listed here is refused by its name. In the tree that comes out, every
column says its table (t0, t1, … in the order of the statement, w0, … for WITH), every column of a SELECT
is called c0, c1, …, aliases and positions are replaced by what they mean, and parentheses stand where an
operand has operands. So no name or word of a person's text is in it, other than texts, which are bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from sqlglot import exp

from toc.admin.expression_parser import Output, Scope, Source, Terms, column_of
from toc.admin.function_calls import aggregate_name
from toc.admin.statement_parser import not_taken, only, parsed, refused, shown, too_deep
from toc.admin.syntax_tree import (
    clause_list,
    has_aggregate,
    inside,
    is_aggregate,
    is_id,
    name_of,
    number,
    ordered,
)
from toc.admin.type_check import Typed, kind_of_column, truth
from toc.store.views import COLUMNS

BIZ_TYPES = "toc_biz_type"
TABLES: Mapping[str, tuple[str, ...]] = {**COLUMNS, BIZ_TYPES: ("type_no", "name")}
"""The columns of each table that can be asked."""
IDS = frozenset({"job_id", "biz_id", "first_id", "last_id"})
WINDOW_MAX = 100_000
"""OFFSET and LIMIT together: each shard sends so many rows."""


def read(text: str, values: Mapping[str, str] | None = None) -> tuple[exp.Query, list[Output]]:
    """Reads a SELECT of MySQL's dialect: the tree described above, and the answer's columns.

    `values` are those of its @names. Raises InvalidInput with the part that is wrong.
    """
    given = values or {}
    reader = _Reader(given)
    try:
        query, outputs = reader.query(parsed(text), None, {})
    except RecursionError:
        raise too_deep(text) from None
    unused = given.keys() - reader.used
    if unused:
        raise refused(
            f"@{min(unused)}", "was given a value and is not in the statement", reader.used
        )
    return query, outputs


class _Reader(Terms):
    def __init__(self, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self._made: Counter[str] = Counter()

    def _new(self, letter: str) -> str:
        self._made[letter] += 1
        return f"{letter}{self._made[letter] - 1}"

    # ---- queries

    def query(
        self, node: exp.Expr, outer: Scope | None, ctes: Mapping[str, Source]
    ) -> tuple[exp.Query, list[Output]]:
        """A SELECT, or several with UNION."""
        with_, made_ctes = node.args.get("with_"), []
        if with_ is not None:
            only(with_, "expressions")
            for cte in with_.expressions:
                made, source = self._cte(cte, outer, ctes)
                made_ctes.append(made)
                ctes = {**ctes, cte.alias.lower(): source}
        if isinstance(node, exp.Subquery):
            only(node, "this")
            return self.query(node.this, outer, ctes)
        before = self._scope, self._ctes
        try:
            if isinstance(node, exp.Union):
                query, outputs = self._union(node, outer, ctes)
            elif isinstance(node, exp.Select):
                self._scope, self._ctes = Scope(outer), ctes
                query, outputs = self._select(node)
            else:
                raise not_taken(node)
        finally:
            self._scope, self._ctes = before
        if made_ctes:
            query.set("with_", exp.With(expressions=made_ctes))
        self._limit(node, query)
        return query, outputs

    def _cte(
        self, node: exp.Expr, outer: Scope | None, ctes: Mapping[str, Source]
    ) -> tuple[exp.Expr, Source]:
        only(node, "this", "alias")
        query, outputs = self.query(node.this, outer, ctes)
        key = self._new("w")
        alias = exp.TableAlias(this=exp.to_identifier(key))
        return exp.CTE(this=query, alias=alias), self._named(key, node, outputs)

    def _named(self, key: str, node: exp.Expr, outputs: list[Output]) -> Source:
        """What a query gives to those who select from it."""
        alias = node.args["alias"]
        only(alias, "this", "columns")
        names = [one.name for one in alias.args.get("columns") or []]
        if names and len(names) != len(outputs):
            raise refused(shown(alias), f"names {len(names)} columns, and there are {len(outputs)}")
        named = [
            Output(name, one.kind, one.is_id)
            for name, one in zip(names or [one.name for one in outputs], outputs, strict=True)
        ]
        _check_names(named)
        return Source(key, {one.name.lower(): (f"c{i}", one) for i, one in enumerate(named)})

    def _union(
        self, node: exp.Expr, outer: Scope | None, ctes: Mapping[str, Source]
    ) -> tuple[exp.Query, list[Output]]:
        only(node, "this", "expression", "distinct", "order", "limit", "offset", "with_")
        sides = [self.query(part, outer, ctes) for part in (node.this, node.expression)]
        (left, outputs), (right, others) = sides
        if len(outputs) != len(others):
            raise refused("UNION", f"of {len(outputs)} and of {len(others)} columns")
        for one, other in zip(outputs, others, strict=True):
            if one.kind != other.kind and "any" not in (one.kind, other.kind):
                raise refused(one.name, f"UNION of a {one.kind} and a {other.kind}")
        outputs = [
            Output(a.name, b.kind if a.kind == "any" else a.kind, a.is_id)
            for a, b in zip(outputs, others, strict=True)
        ]
        query = exp.Union(
            this=self._side(node.this, left),
            expression=self._side(node.expression, right),
            distinct=bool(node.args.get("distinct")),
        )
        names = [one.name.lower() for one in outputs]
        order = []
        for by in clause_list(node, "order"):
            term = by.this
            place = names.index(term.name.lower()) + 1 if term.name.lower() in names else 0
            if isinstance(term, exp.Literal) and not term.is_string:
                place = self._place(term, "ORDER BY", len(names))
            if not place:
                raise refused(shown(term), "a UNION is ordered by its columns' names or places")
            order.append(ordered(by, number(place)))
        if order:
            query.set("order", exp.Order(expressions=order))
        return query, outputs

    def _side(self, node: exp.Expr, made: exp.Query) -> exp.Expr:
        limited = any(made.args.get(name) for name in ("order", "limit", "with_"))
        if limited and not isinstance(node, exp.Subquery) and not isinstance(made, exp.Union):
            raise refused("UNION", "put a SELECT with ORDER BY or LIMIT in parentheses")
        # SQLite knows no parentheses here, so such a part becomes a table.
        if not limited:
            return made
        key = self._new("t")
        names = [exp.column(one.alias) for one in _first(made).expressions]
        inner = exp.Subquery(this=made, alias=exp.TableAlias(this=exp.to_identifier(key)))
        return exp.Select(
            expressions=[exp.alias_(one, one.name) for one in names], from_=exp.From(this=inner)
        )

    def _select(self, node: exp.Expr) -> tuple[exp.Query, list[Output]]:
        only(node, "expressions", "from_", "joins", "where", "group", "having", "order", "limit",
             "offset", "distinct", "with_")  # fmt: skip
        scope, made = self._scope, exp.Select()
        from_ = node.args.get("from_")
        if from_ is None:
            raise refused("SELECT", "needs a table, as in SELECT ... FROM toc_jobs")
        only(from_, "this")
        made.set("from_", exp.From(this=self._source(from_.this)))
        made.set("joins", [self._join(one) for one in node.args.get("joins") or []])
        items = [one for item in node.expressions for one in self._item(item)]
        outputs = [Output(name, kind, is_id(expr)) for name, (expr, kind), _ in items]
        aliases = {name.lower(): typed for name, typed, has_alias in items if has_alias}
        where = node.args.get("where")
        if where is not None:
            scope.no_aliases = frozenset(aliases)
            made.set("where", exp.Where(this=self._condition(where, "WHERE")))
            scope.no_aliases = frozenset()
        scope.aliases = aliases
        exprs = [expr for _, (expr, _), _ in items]
        group = [self._grouped(one, exprs) for one in clause_list(node, "group")]
        having = node.args.get("having")
        condition = None if having is None else self._condition(having, "HAVING")
        order = [self._order_term(one, exprs) for one in clause_list(node, "order")]
        if node.args.get("distinct") is not None:
            only(node.args["distinct"])
            made.set("distinct", exp.Distinct())
            if any(expr not in exprs for expr, _ in order):
                raise refused("ORDER BY", "with DISTINCT it can be only by what is selected")
        _check_names(outputs)
        for output in outputs:
            if output.kind == "json" and (group or made.args.get("distinct")):
                raise refused(output.name, "JSON cannot be grouped: ->> makes a text of it")
        outer = [*exprs, *([] if condition is None else [condition]), *(expr for expr, _ in order)]
        self._check_groups(outer, group, condition is not None)
        made.set("expressions", [exp.alias_(one, f"c{i}") for i, one in enumerate(exprs)])
        if group:
            made.set("group", exp.Group(expressions=group))
        if condition is not None:
            made.set("having", exp.Having(this=condition))
        if order:
            terms = [
                ordered(one, number(exprs.index(expr) + 1) if expr in exprs else expr)
                for expr, one in order
            ]
            made.set("order", exp.Order(expressions=terms))
        return made, outputs

    def _check_groups(self, outer: list[exp.Expr], group: list[exp.Expr], has_having: bool) -> None:
        found = [one for expr in outer for one in inside(expr) if is_aggregate(one)]
        for one in found:
            if any(is_aggregate(part) for part in inside(one) if part is not one):
                raise refused(aggregate_name(one), "an aggregate of an aggregate")
            if any(isinstance(part, exp.Window) for part in inside(one)):
                raise refused(aggregate_name(one), "an aggregate of a window function")
        if has_having and not group and not found:
            raise refused("HAVING", "needs GROUP BY or an aggregate: this belongs in WHERE")
        if not group and not found:
            return
        own = {source.key for source in self._scope.sources.values()}
        todo = list(outer)
        while todo:
            one = todo.pop()
            if one in group or is_aggregate(one):
                continue
            if isinstance(one, exp.Column) and one.table in own:
                raise refused(name_of(one), "is neither in GROUP BY nor in an aggregate")
            todo += one.iter_expressions()

    def _limit(self, node: exp.Expr, made: exp.Query) -> None:
        counts = {}
        for name in ("limit", "offset"):
            clause = node.args.get(name)
            if clause is None:
                continue
            only(clause, "expression")
            value, _ = self.expr(clause.expression)
            if not (
                isinstance(value, exp.Literal) and not value.is_string and value.name.isdigit()
            ):
                raise refused(shown(clause.expression), f"{name.upper()} takes a whole number")
            counts[name] = int(value.name)
        if sum(counts.values()) > WINDOW_MAX:
            rule = f"LIMIT and OFFSET together may be {WINDOW_MAX} at most"
            raise refused(str(sum(counts.values())), rule)
        if "limit" in counts:
            made.set("limit", exp.Limit(expression=number(counts["limit"])))
        if counts.get("offset"):
            made.set("offset", exp.Offset(expression=number(counts["offset"])))

    # ---- tables

    def _source(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Subquery):
            only(node, "this", "alias")
            if not node.alias:
                raise refused(shown(node), "a subquery behind FROM needs a name")
            query, outputs = self.query(node.this, None, self._ctes)
            source = self._named(self._new("t"), node, outputs)
            self._add(node.alias, source)
            return exp.Subquery(this=query, alias=_alias(source.key))
        if not isinstance(node, exp.Table):
            raise not_taken(node)
        if not isinstance(node.this, exp.Identifier):
            raise not_taken(node.this)
        only(node, "this", "alias")
        name, key = node.name.lower(), self._new("t")
        if node.args.get("alias") is not None:
            only(node.args["alias"], "this")
        if name in self._ctes:
            self._add(node.alias_or_name, Source(key, self._ctes[name].columns))
            return exp.Table(this=exp.to_identifier(self._ctes[name].key), alias=_alias(key))
        if name not in TABLES:
            raise refused(name, f"there is no such table: there are {', '.join(TABLES)}", TABLES)
        columns = {one: (one, Output(one, kind_of_column(one), one in IDS)) for one in TABLES[name]}
        self._add(node.alias_or_name, Source(key, columns))
        return exp.Table(this=exp.to_identifier(name), alias=_alias(key))

    def _add(self, name: str, source: Source) -> None:
        if name.lower() in self._scope.sources:
            raise refused(name, "two tables have this name: give one another (AS)")
        self._scope.sources[name.lower()] = source

    def _join(self, node: exp.Expr) -> exp.Expr:
        if node.args.get("using"):
            raise refused("USING", "write ON a.x = b.x")
        only(node, "this", "on", "side", "kind")
        side, kind = node.text("side").upper(), node.text("kind").upper()
        if side not in ("", "LEFT", "RIGHT") or kind not in ("", "INNER", "CROSS", "OUTER"):
            raise not_taken(node)
        made = exp.Join(this=self._source(node.this))
        on = node.args.get("on")
        if side:
            made.set("side", side)
            if on is None:
                raise refused(shown(node), "needs ON")
        made.set("kind", None if side else "CROSS" if on is None else "INNER")
        if on is not None:
            made.set("on", _checked(truth(self.expr(on), "ON"), "ON"))
        return made

    # ---- clauses

    def _item(self, node: exp.Expr) -> list[tuple[str, Typed, bool]]:
        """Columns of the answer: their names, what they are, whether the name is an alias."""
        if isinstance(node, exp.Alias):
            only(node, "this", "alias")
            return [(node.alias, self.expr(node.this), True)]
        table = ""
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            only(node, "this", "table")
            table, node = node.text("table").lower(), node.this
            if table not in self._scope.sources:
                raise refused(table, f"the table here is {', '.join(self._scope.sources)}")
        if isinstance(node, exp.Star):
            only(node)
            return [
                (one.name, (column_of(source.key, name, one), one.kind), False)
                for key, source in self._scope.sources.items()
                if not table or key == table
                for name, one in source.columns.values()
            ]
        typed = self.expr(node)
        return [(name_of(typed[0]) or shown(node), typed, False)]

    def _condition(self, clause: exp.Expr, name: str) -> exp.Expr:
        only(clause, "this")
        return _checked(truth(self.expr(clause.this), name), name)

    def _grouped(self, node: exp.Expr, exprs: list[exp.Expr]) -> exp.Expr:
        found = self._by_place(node, "GROUP BY", exprs)
        if found is None:
            found, kind = self.expr(node)
            if kind == "json":
                raise refused(shown(node), "JSON cannot be grouped: ->> makes a text of it")
        if has_aggregate(found) or any(isinstance(one, exp.Window) for one in inside(found)):
            raise refused("GROUP BY", "cannot be by an aggregate")
        return found.copy()

    def _order_term(self, node: exp.Expr, exprs: list[exp.Expr]) -> tuple[exp.Expr, exp.Expr]:
        found = self._by_place(node.this, "ORDER BY", exprs)
        return (self._sorted(node) if found is None else found), node

    def _by_place(self, node: exp.Expr, clause: str, exprs: list[exp.Expr]) -> exp.Expr | None:
        """The column of the answer that a whole number means."""
        if isinstance(node, exp.Parameter):
            node, _ = self.expr(node)
        if not isinstance(node, exp.Literal) or node.is_string:
            return None
        return exprs[self._place(node, clause, len(exprs)) - 1]

    def _place(self, node: exp.Expr, clause: str, count: int) -> int:
        place = int(node.name) if node.name.isdigit() else 0
        if not 1 <= place <= count:
            raise refused(node.name, f"{clause} a number from 1 to {count} is a column")
        return place


def _first(query: exp.Query) -> exp.Select:
    """The SELECT that names the columns."""
    return query if isinstance(query, exp.Select) else _first(query.this)


def _alias(key: str) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(key))


def _check_names(outputs: list[Output]) -> None:
    counts = Counter(one.name.lower() for one in outputs)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise refused(twice[0], "two columns have this name: give one another (AS)")


def _checked(condition: exp.Expr, clause: str) -> exp.Expr:
    if clause != "HAVING" and has_aggregate(condition):
        raise refused(clause, "comes before aggregates: put this in HAVING")
    if any(isinstance(one, exp.Window) for one in inside(condition)):
        raise refused(clause, "comes before window functions: select from a subquery of them")
    return condition
