"""Reads an expression: makes a checked tree of our own from sqlglot's tree.

An expression that is not listed in `_READERS` is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar

from sqlglot import exp

from toc.admin.allowed_functions import ALIASES, FUNCTIONS, Kind
from toc.admin.function_calls import FunctionCalls, case
from toc.admin.statement_parser import not_accepted, refused, shown
from toc.admin.syntax_tree import cast, is_text, kind_of, number, operand, text, typed
from toc.admin.type_check import checked_call, numbers, same_kind, time_literal

_OPERATORS: Mapping[type[Any], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "<=>", exp.Mul: "*", exp.Div: "/", exp.IntDiv: "DIV", exp.Mod: "%",
    exp.Add: "+", exp.Sub: "-",
}  # fmt: skip
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ)
_TESTS = (*_COMPARISONS, exp.Not, exp.Is, exp.In, exp.Between, exp.Like, exp.RegexpLike)
"""Operators of nearly equal precedence in MySQL. The user must write parentheses between them."""
_CASTS: Mapping[str, tuple[Kind, int]] = {
    "BIGINT": ("number", 0), "UBIGINT": ("number", 0), "DECIMAL": ("number", 2), "CHAR": ("text", 1),
    "DATE": ("date", 0), "DATETIME": ("time", 1), "DOUBLE": ("number", 0),
}  # fmt: skip
"""By sqlglot's name of a type: the type for us, and how many sizes it takes."""


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of an answer. `is_id`: its values are 64-bit ids."""

    name: str
    kind: Kind
    is_id: bool


Columns = dict[str, exp.Expr]
"""The columns of a table, by the user's names in small letters."""


@dataclass(slots=True)
class Scope:
    """The names that a SELECT knows: its tables, aliases and WITH queries, and those of the outer SELECT."""

    outer: Scope | None = None
    ctes: Mapping[str, tuple[str, list[ResultColumn]]] = field(default_factory=dict)
    tables: dict[str, Columns] = field(default_factory=dict)
    aliases: Columns = field(default_factory=dict)
    unusable_aliases: frozenset[str] = frozenset()
    """The aliases, while a WHERE is read, which cannot use them."""


class ExpressionParser(FunctionCalls):
    """Reads expressions in a scope. `values` are those of the @names. `offsets`: times may have a zone's
    offset.
    """

    def __init__(self, values: Mapping[str, str], *, offsets: bool = False) -> None:
        self._values, self._offsets = values, offsets
        self.used: set[str] = set()
        """The @names that the statement has."""
        self.scope = Scope()

    def query(self, node: exp.Expr, outer: Scope) -> tuple[exp.Query, list[ResultColumn]]:
        """Reads a subquery."""
        raise not_accepted(node)

    def expr(self, node: exp.Expr, *, json: bool = False) -> exp.Expr:
        reader = self._READERS.get(type(node))
        if reader is None:
            raise not_accepted(node)
        made = reader(self, node)
        if kind_of(made) == "json" and not json:
            rule = "JSON has no order and is not compared: ->> and JSON_UNQUOTE make a text of it"
            raise refused(shown(node), rule)
        return made

    # ---- names

    def _column(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node.this, exp.Identifier):
            raise not_accepted(node.this)
        name, table = node.name.lower(), node.text("table").lower()
        if table:
            return self._column_of(table, name)
        function = ALIASES.get(name.upper(), name.upper())
        is_word = not node.this.args.get("quoted") and "_" in name
        if is_word and function in FUNCTIONS and FUNCTIONS[function].least == 0:
            return checked_call(function, [])  # UTC_TIMESTAMP without parentheses
        return self._unqualified(name)

    def _unqualified(self, name: str) -> exp.Expr:
        scope: Scope | None = self.scope
        while scope is not None:
            found = [columns[name] for columns in scope.tables.values() if name in columns]
            if len(found) > 1:
                raise refused(
                    name, "more than one table has this column: write the table before it"
                )
            alias = scope.aliases.get(name)
            if found and alias is not None and alias != found[0]:
                raise refused(
                    name, "this is a column and another column's alias: choose another alias"
                )
            if found or alias is not None:
                return (found[0] if alias is None else alias).copy()
            if name in scope.unusable_aliases:
                raise refused(name, "this is an alias, and WHERE can only use columns")
            scope = scope.outer
        tables = self.scope.tables
        near = [*(one for columns in tables.values() for one in columns), *self.scope.aliases]
        raise refused(name, f"{' or '.join(tables)} has no such column", near)

    def _column_of(self, table: str, name: str) -> exp.Expr:
        scope: Scope | None = self.scope
        while scope is not None and table not in scope.tables:
            scope = scope.outer
        if scope is None:
            known = ", ".join(self.scope.tables)
            raise refused(f"{table}.{name}", f"there is no such table in FROM; there are {known}")
        columns = scope.tables[table]
        if name not in columns:
            raise refused(name, f"{table} has no such column", columns)
        return columns[name].copy()

    def _parameter(self, node: exp.Expr) -> exp.Expr:
        name = node.name
        if name not in self._values:
            raise refused(f"@{name}", f"it has no value: add --set {name}=VALUE", self._values)
        self.used.add(name)
        value = self._values[name]
        if re.fullmatch(r"-?\d{1,20}", value, re.ASCII):
            return number(int(value))
        quoted = re.fullmatch(r"'(.*)'", value, re.DOTALL)
        return text(quoted[1] if quoted else value)

    # ---- operators

    def _operands(self, operator: str, *nodes: exp.Expr) -> list[exp.Expr]:
        for node in nodes:
            if isinstance(node, _TESTS):
                raise refused(shown(node), f"put it in parentheses beside {operator}")
        return self.all(list(nodes))

    def _connector(self, node: exp.Expr) -> exp.Expr:
        parts = self.all(list(node.flatten(unnest=False)))
        parts = [operand(part) for part in numbers(parts, type(node).__name__.upper())]
        return typed(
            reduce(lambda left, right: type(node)(this=left, expression=right), parts), "number"
        )

    def _comparison(self, node: exp.Expr) -> exp.Expr:
        operator = _OPERATORS[type(node)]
        parts = self._operands(operator, node.this, node.expression)
        left, right = map(operand, same_kind(parts, operator))
        return typed(type(node)(this=left, expression=right), "number")

    def _arithmetic(self, node: exp.Expr) -> exp.Expr:
        left, right = node.this, node.expression
        if isinstance(left, exp.Interval):
            # MySQL takes all that follows for the time: INTERVAL 1 HOUR + (due_time < NOW()).
            raise refused(shown(left), "write the INTERVAL after the time")
        if isinstance(right, exp.Interval) and isinstance(node, (exp.Add, exp.Sub)):
            return self.shifted(left, right, minus=isinstance(node, exp.Sub))
        return self.computed(type(node), _OPERATORS[type(node)], [left, right])

    def _unary(self, node: exp.Expr) -> exp.Expr:
        (part,) = numbers([self.expr(node.this)], "NOT" if isinstance(node, exp.Not) else "-")
        return typed(type(node)(this=operand(part)), "number")

    def _paren(self, node: exp.Expr) -> exp.Expr:
        return self.expr(node.this, json=True)

    def _is(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node.expression, (exp.Null, exp.Boolean)):
            raise not_accepted(node.expression)
        if isinstance(node.expression, exp.Boolean):
            (part,) = numbers(self._operands("IS", node.this), "IS")
        elif isinstance(node.this, _TESTS):
            raise refused(shown(node.this), "put it in parentheses before IS")
        else:
            part = self.expr(node.this, json=True)
        return typed(exp.Is(this=operand(part), expression=node.expression.copy()), "number")

    def _in(self, node: exp.Expr) -> exp.Expr:
        query = node.args.get("query")
        if query is None:
            parts = self._operands("IN", node.this, *node.expressions)
            left, *choices = same_kind(parts, "IN")
            made = exp.In(this=operand(left), expressions=choices)
        else:
            (left,) = self._operands("IN", node.this)
            subquery = self._scalar(query)
            left, _ = same_kind([left, typed(exp.Null(), kind_of(subquery))], "IN")
            made = exp.In(this=operand(left), query=subquery)
        return typed(made, "number")

    def _between(self, node: exp.Expr) -> exp.Expr:
        parts = self._operands("BETWEEN", node.this, node.args["low"], node.args["high"])
        value, low, high = map(operand, same_kind(parts, "BETWEEN"))
        return typed(exp.Between(this=value, low=low, high=high), "number")

    def _like(self, node: exp.Expr, escape: exp.Expr | None = None) -> exp.Expr:
        word = "LIKE" if isinstance(node, exp.Like) else "REGEXP"
        parts = self._operands(word, node.this, node.expression)
        if any(kind_of(part) == "number" for part in parts):
            raise refused(word, "it is for texts")
        left, right = map(operand, parts)
        like: exp.Expr = type(node)(this=left, expression=right)
        like = like if escape is None else exp.Escape(this=like, expression=escape)
        if node.args.get("negate"):
            like = exp.Not(this=operand(typed(like, "number")))
        return typed(like, "number")

    def _escape(self, node: exp.Expr) -> exp.Expr:
        escape = self.expr(node.expression)
        if not isinstance(node.this, exp.Like) or not is_text(escape) or len(escape.name) > 1:
            raise refused(shown(node), "ESCAPE takes one character, after LIKE")
        return self._like(node.this, escape)

    # ---- subqueries

    def _exists(self, node: exp.Expr) -> exp.Expr:
        made, _ = self.query(node.this, self.scope)
        return typed(exp.Exists(this=made), "number")

    def _scalar(self, node: exp.Expr) -> exp.Expr:
        made, columns = self.query(node, self.scope)
        if len(columns) != 1:
            raise refused(shown(node), "this subquery must have one column")
        return typed(exp.Subquery(this=made), columns[0].kind)

    # ---- values

    def _literal(self, node: exp.Expr) -> exp.Expr:
        if node.is_string:
            made = text(node.name)
            made.meta["offsets"] = self._offsets
            return made
        if not re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", node.name, re.ASCII):
            raise refused(node.name, "this is no number")
        return number(node.name)

    def _null(self, node: exp.Expr) -> exp.Expr:
        return typed(node.copy(), "any")

    def _texts(self, node: exp.Expr) -> exp.Expr:
        """'a' 'b' is one literal."""
        if not all(map(is_text, node.expressions)):
            raise not_accepted(node)
        return text("".join(part.name for part in node.expressions))

    def _now(self, node: exp.Expr) -> exp.Expr:
        return checked_call("CURDATE" if isinstance(node, exp.CurrentDate) else "NOW", [])

    def _case(self, node: exp.Expr) -> exp.Expr:
        subject, default = node.args.get("this"), node.args.get("default")
        whens = self.all([one.this for one in node.args["ifs"]])
        results = [one.args["true"] for one in node.args["ifs"]]
        results += [] if default is None else [default]
        return case(
            None if subject is None else self.expr(subject), whens, self.all(results, json=True)
        )

    def _cast(self, node: exp.Expr) -> exp.Expr:
        to = node.args["to"]
        name = to.this.name if isinstance(to.this, exp.DType) else ""
        if name == "TIMESTAMPTZ" and is_text(node.this):  # TIMESTAMP '2030-01-31'
            return typed(cast(time_literal(self.expr(node.this)), "DATETIME", 3), "time")
        kind, most = _CASTS.get(name, ("any", -1))
        sizes = [size.this for size in to.expressions]
        if len(sizes) > most:
            known = "SIGNED, UNSIGNED, DECIMAL, CHAR, DATE, DATETIME, DOUBLE"
            raise refused(shown(node), f"CAST converts to one of {known}")
        if not all(isinstance(size, exp.Literal) and size.name.isdigit() for size in sizes):
            raise refused(shown(node), "sizes are whole numbers")
        return typed(cast(self.expr(node.this), name, *(int(size.name) for size in sizes)), kind)

    def _json(self, node: exp.Expr) -> exp.Expr:
        """-> and ->>, which MariaDB does not have."""
        path = "$"
        for one in node.expression.expressions[1:]:
            if isinstance(one, exp.JSONPathKey) and re.fullmatch(r"[\w ./-]+", str(one.this)):
                path += f'."{one.this}"'
            elif isinstance(one, exp.JSONPathSubscript) and str(one.this).isdigit():
                path += f"[{one.this}]"
            else:
                raise refused(shown(node), "write a path like '$.key[0].key'")
        found = checked_call("JSON_EXTRACT", [self.expr(node.this), text(path)])
        is_text_wanted = type(node) is exp.JSONExtractScalar
        return checked_call("JSON_UNQUOTE", [found]) if is_text_wanted else found

    _READERS: ClassVar[Mapping[type[Any], Callable[[Any, Any], exp.Expr]]] = {
        **dict.fromkeys(_OPERATORS, _arithmetic), **dict.fromkeys(_COMPARISONS, _comparison),
        exp.And: _connector, exp.Or: _connector, exp.Not: _unary, exp.Neg: _unary, exp.Paren: _paren,
        exp.Is: _is, exp.In: _in, exp.Between: _between, exp.Like: _like, exp.RegexpLike: _like,
        exp.Escape: _escape,
        exp.Literal: _literal, exp.Boolean: _null, exp.Null: _null, exp.Concat: _texts,
        exp.Parameter: _parameter, exp.Column: _column, exp.CurrentTimestamp: _now,
        exp.CurrentDate: _now, exp.Localtime: _now, exp.Localtimestamp: _now, exp.Case: _case,
        exp.Cast: _cast, exp.JSONExtract: _json, exp.JSONExtractScalar: _json,
        exp.Anonymous: FunctionCalls.call, exp.GroupConcat: FunctionCalls.group_concat,
        exp.Window: FunctionCalls.window, exp.Extract: FunctionCalls.extract, exp.Exists: _exists,
        exp.Subquery: _scalar,
    }  # fmt: skip


def column_of(table: str, name: str, column: ResultColumn) -> exp.Expr:
    """A column of a table, under our names, with the facts of the user's column."""
    made = typed(exp.column(name, table=table), column.kind)
    made.meta.update(name=column.name, is_id=column.is_id)
    return made
