"""Expressions of a statement: from sqlglot's tree to one of our own making, with the kind of each value.

What is not listed here is refused by its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, ClassVar

from sqlglot import exp

from toc.admin.allowed_functions import (
    ALIASES,
    FUNCTIONS,
    Kind,
)
from toc.admin.function_calls import Calls, choice
from toc.admin.statement_parser import not_taken, only, refused, shown
from toc.admin.syntax_tree import cast, is_text, number, operand
from toc.admin.type_check import (
    Typed,
    alike,
    called,
    check_numbers,
    time_literal,
)

_COMPARED: Mapping[type[Any], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
}  # fmt: skip
_COMPUTED: Mapping[type[Any], str] = {exp.Mul: "*", exp.Div: "/", exp.IntDiv: "DIV", exp.Mod: "%"}
_TESTS = (*_COMPARED, exp.Not, exp.Is, exp.In, exp.Between, exp.Like, exp.RegexpLike)
"""Of one level of MySQL's precedence, nearly. Which comes first is for the reader to say, in parentheses."""
_CASTS: Mapping[str, tuple[Kind, int]] = {
    "BIGINT": ("number", 0), "UBIGINT": ("number", 0), "DECIMAL": ("number", 2), "CHAR": ("text", 1),
    "DATE": ("date", 0), "DATETIME": ("time", 1), "DOUBLE": ("number", 0),
}  # fmt: skip
"""By sqlglot's name of a type: the kind, and how many sizes it takes."""


@dataclass(frozen=True, slots=True)
class Output:
    """A column of an answer. `is_id`: a 64-bit number that names something."""

    name: str
    kind: Kind
    is_id: bool


@dataclass(frozen=True, slots=True)
class Source:
    """A table, or a query, under a name. `columns`: by the person's names, with ours."""

    key: str
    columns: Mapping[str, tuple[str, Output]]


@dataclass(slots=True)
class Scope:
    outer: Scope | None
    sources: dict[str, Source] = field(default_factory=dict)
    aliases: dict[str, Typed] = field(default_factory=dict)
    no_aliases: frozenset[str] = frozenset()
    """Of the SELECT, where a WHERE is read."""


class Terms(Calls):
    """Reads expressions in a scope. `values` are those of the @names."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values
        self.used: set[str] = set()
        """The @names that were met."""
        self._scope = Scope(None)
        self._ctes: Mapping[str, Source] = {}

    def query(
        self, node: exp.Expr, outer: Scope | None, ctes: Mapping[str, Source]
    ) -> tuple[exp.Query, list[Output]]:
        """A query within an expression."""
        raise NotImplementedError

    def expr(self, node: exp.Expr) -> Typed:
        reader = self._READERS.get(type(node))
        if reader is None:
            raise not_taken(node)
        return reader(self, node)

    def _column(self, node: exp.Expr) -> Typed:
        if not isinstance(node.this, exp.Identifier):
            raise not_taken(node.this)
        only(node, "this", "table")
        name, table = node.name.lower(), node.text("table").lower()
        if not node.this.args.get("quoted") and not table:
            function = ALIASES.get(name.upper(), name.upper())
            if function in FUNCTIONS and FUNCTIONS[function].least == 0 and "_" in name:
                return called(function, [])  # UTC_TIMESTAMP without parentheses
        if table:
            return self._of_table(table, name)
        return self._unqualified(name)

    def _unqualified(self, name: str) -> Typed:
        scope: Scope | None = self._scope
        while scope is not None:
            found = [s for s in scope.sources.values() if name in s.columns]
            if len(found) > 1:
                raise refused(name, "is in more than one table: write the table before it")
            alias = scope.aliases.get(name)
            if found:
                own = column_of(found[0].key, *found[0].columns[name])
                if alias is not None and alias[0] != own:
                    rule = "is a column and another column's alias: name it anew"
                    raise refused(name, rule)
                return own, found[0].columns[name][1].kind
            if alias is not None:
                return alias[0].copy(), alias[1]
            if name in scope.no_aliases:
                raise refused(name, "is an alias, and WHERE knows columns only")
            scope = scope.outer
        sources = self._scope.sources
        near = [*(one for s in sources.values() for one in s.columns), *self._scope.aliases]
        raise refused(name, f"{' or '.join(sources)} has no such column", near)

    def _of_table(self, table: str, name: str) -> Typed:
        scope: Scope | None = self._scope
        while scope is not None and table not in scope.sources:
            scope = scope.outer
        if scope is None:
            known = ", ".join(self._scope.sources)
            raise refused(f"{table}.{name}", f"the table here is {known}")
        columns = scope.sources[table].columns
        if name not in columns:
            raise refused(name, f"{table} has no such column", columns)
        return column_of(scope.sources[table].key, *columns[name]), columns[name][1].kind

    def _connector(self, node: exp.Expr) -> Typed:
        word = "AND" if isinstance(node, exp.And) else "OR"
        made = [self.expr(part) for part in node.flatten(unnest=False)]
        check_numbers(word, made)
        parts = [operand(part) for part, _ in made]
        return reduce(lambda left, right: type(node)(this=left, expression=right), parts), "number"

    def _comparison(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression", "safe", "typed")
        operator = _COMPARED[type(node)]
        parts = self._ordered_parts(operator, node.this, node.expression)
        (left, right), _ = alike(parts, operator)
        return type(node)(this=operand(left), expression=operand(right)), "number"

    def _arithmetic(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression", "safe", "typed")
        return self._computed(
            type(node), _COMPUTED[type(node)], self._all([node.this, node.expression])
        )

    def _ordered_parts(self, operator: str, *nodes: exp.Expr) -> list[Typed]:
        for node in nodes:
            if isinstance(node, _TESTS):
                rule = f"put it in parentheses, before or after {operator}"
                raise refused(shown(node), rule)
        return self._all(list(nodes))

    def _sum(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        left, right, minus = node.this, node.expression, isinstance(node, exp.Sub)
        if isinstance(left, exp.Interval):
            # MySQL takes all that follows for the time: INTERVAL 1 HOUR + (due_time < NOW()).
            raise refused(shown(left), "put the INTERVAL behind the time")
        if isinstance(right, exp.Interval):
            return self._shift(left, right, minus=minus)
        return self._computed(type(node), "-" if minus else "+", self._all([left, right]))

    def _unary(self, node: exp.Expr) -> Typed:
        only(node, "this")
        typed = self.expr(node.this)
        check_numbers("NOT" if isinstance(node, exp.Not) else "NEG", [typed])
        return type(node)(this=operand(typed[0])), "number"

    def _paren(self, node: exp.Expr) -> Typed:
        only(node, "this")
        return self.expr(node.this)

    def _is(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        if not isinstance(node.expression, (exp.Null, exp.Boolean)):
            raise not_taken(node.expression)
        ((part, kind),) = self._ordered_parts("IS", node.this)
        if isinstance(node.expression, exp.Boolean):
            check_numbers("IS", [(part, kind)])
        return exp.Is(this=operand(part), expression=node.expression.copy()), "number"

    def _in(self, node: exp.Expr) -> Typed:
        only(node, "this", "expressions", "query")
        query = node.args.get("query")
        if query is not None:
            ((left, kind),) = self._ordered_parts("IN", node.this)
            made, output = self._subquery(query)
            (left, _), _ = alike([(left, kind), (exp.Null(), output.kind)], "IN")
            return exp.In(this=operand(left), query=exp.Subquery(this=made)), "number"
        (left, *choices), _ = alike(self._ordered_parts("IN", node.this, *node.expressions), "IN")
        return exp.In(this=operand(left), expressions=choices), "number"

    def _exists(self, node: exp.Expr) -> Typed:
        only(node, "this")
        made, _ = self.query(node.this, self._scope, self._ctes)
        return exp.Exists(this=made), "number"

    def _scalar(self, node: exp.Expr) -> Typed:
        made, output = self._subquery(node)
        return exp.Subquery(this=made), output.kind

    def _subquery(self, node: exp.Expr) -> tuple[exp.Query, Output]:
        made, outputs = self.query(node, self._scope, self._ctes)
        if len(outputs) != 1:
            raise refused(shown(node), "must have one column")
        return made, outputs[0]

    def _between(self, node: exp.Expr) -> Typed:
        only(node, "this", "low", "high")
        parts = self._ordered_parts("BETWEEN", node.this, node.args["low"], node.args["high"])
        (value, low, high), _ = alike(parts, "BETWEEN")
        return exp.Between(this=operand(value), low=operand(low), high=operand(high)), "number"

    def _like(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression", "negate")
        word = "LIKE" if isinstance(node, exp.Like) else "REGEXP"
        parts = self._ordered_parts(word, node.this, node.expression)
        if any(kind in ("number", "json") for _, kind in parts):
            raise refused(word, "is for texts")
        left, right = (operand(part) for part, _ in parts)
        like = type(node)(this=left, expression=right)
        return (exp.Not(this=operand(like)) if node.args.get("negate") else like), "number"

    def _literal(self, node: exp.Expr) -> Typed:
        only(node, "this", "is_string")
        if node.is_string:
            return exp.Literal.string(node.name), "text"
        if not re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", node.name, re.ASCII):
            raise refused(node.name, "is no number")
        return number(node.name), "number"

    def _word(self, node: exp.Expr) -> Typed:
        return node.copy(), "any"

    def _texts(self, node: exp.Expr) -> Typed:
        """'a' 'b' is one literal."""
        if not all(map(is_text, node.expressions)):
            raise not_taken(node)
        return exp.Literal.string("".join(part.name for part in node.expressions)), "text"

    def _parameter(self, node: exp.Expr) -> Typed:
        only(node, "this")
        name = node.name
        if name not in self._values:
            raise refused(f"@{name}", f"has no value: --set {name}=VALUE", self._values)
        self.used.add(name)
        value = self._values[name]
        if re.fullmatch(r"-?\d{1,20}", value, re.ASCII):
            return number(int(value)), "number"
        quoted = re.fullmatch(r"'(.*)'", value, re.DOTALL)
        return exp.Literal.string(quoted[1] if quoted else value), "text"

    def _now(self, node: exp.Expr) -> Typed:
        only(node)
        return called("CURDATE" if isinstance(node, exp.CurrentDate) else "NOW", [])

    def _case(self, node: exp.Expr) -> Typed:
        only(node, "this", "ifs", "default")
        for one in node.args["ifs"]:
            only(one, "this", "true")
        whens = self._all([one.this for one in node.args["ifs"]])
        results = self._all([one.args["true"] for one in node.args["ifs"]])
        default = node.args.get("default")
        otherwise = [] if default is None else [self.expr(default)]
        if node.args.get("this") is None:
            return choice(None, whens, results, otherwise)
        return choice(self.expr(node.this), whens, results, otherwise)

    def _cast(self, node: exp.Expr) -> Typed:
        only(node, "this", "to")
        to = node.args["to"]
        only(to, "this", "expressions", "nested")
        name = to.this.name if isinstance(to.this, exp.DType) else ""
        if name == "TIMESTAMPTZ" and is_text(node.this):
            return cast(
                time_literal(node.this.name), "DATETIME", 3
            ), "time"  # TIMESTAMP '2030-01-31'
        kind, most = _CASTS.get(name, ("any", -1))
        sizes = [size.this for size in to.expressions]
        if len(sizes) > most:
            known = "SIGNED, UNSIGNED, DECIMAL, CHAR, DATE, DATETIME, DOUBLE"
            raise refused(shown(node), f"CAST goes to one of {known}")
        if not all(isinstance(size, exp.Literal) and size.name.isdigit() for size in sizes):
            raise refused(shown(node), "sizes are whole numbers")
        part, own = self.expr(node.this)
        if own == "json":
            raise refused(shown(node), "takes no JSON: ->> and JSON_UNQUOTE make a text of it")
        return cast(part, name, *(int(size.name) for size in sizes)), kind

    def _json(self, node: exp.Expr) -> Typed:
        """-> and ->>, which MariaDB has not."""
        only(node, "this", "expression", "only_json_types", "scalar_only")
        path = "$"
        for one in node.expression.expressions[1:]:
            if isinstance(one, exp.JSONPathKey) and re.fullmatch(r"[\w ./-]+", str(one.this)):
                path += f'."{one.this}"'
            elif isinstance(one, exp.JSONPathSubscript) and str(one.this).isdigit():
                path += f"[{one.this}]"
            else:
                raise refused(shown(node), "a path is one like '$.key[0].key'")
        found = called("JSON_EXTRACT", [self.expr(node.this), (exp.Literal.string(path), "text")])
        return called("JSON_UNQUOTE", [found]) if type(node) is exp.JSONExtractScalar else found

    _READERS: ClassVar[Mapping[type[Any], Callable[[Terms, Any], Typed]]] = {
        **dict.fromkeys(_COMPARED, _comparison), **dict.fromkeys(_COMPUTED, _arithmetic),
        exp.And: _connector, exp.Or: _connector, exp.Add: _sum, exp.Sub: _sum, exp.Not: _unary,
        exp.Neg: _unary, exp.Paren: _paren, exp.Is: _is, exp.In: _in, exp.Between: _between,
        exp.Like: _like, exp.RegexpLike: _like, exp.Literal: _literal, exp.Boolean: _word,
        exp.Null: _word, exp.Concat: _texts, exp.Parameter: _parameter, exp.Column: _column,
        exp.CurrentTimestamp: _now, exp.CurrentDate: _now, exp.Localtime: _now,
        exp.Localtimestamp: _now, exp.Case: _case, exp.Cast: _cast, exp.JSONExtract: _json,
        exp.JSONExtractScalar: _json, exp.Anonymous: Calls.call, exp.GroupConcat: Calls.group_concat,
        exp.Window: Calls.window, exp.Extract: Calls.extract, exp.Exists: _exists, exp.Subquery: _scalar,
    }  # fmt: skip


def column_of(key: str, name: str, output: Output) -> exp.Column:
    made = exp.column(name, table=key)
    made.meta.update(name=output.name, is_id=output.is_id)
    return made
