"""Translates an expression of sqlglot's tree into a checked tree of toc's own.

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
from toc.admin.function_calls import FunctionCallParser, make_case
from toc.admin.statement_parser import node_as_text, not_accepted_error, refusal_error
from toc.admin.syntax_tree import (
    is_text_literal,
    make_cast,
    number_literal,
    parenthesize_operand,
    set_kind,
    text_literal,
    value_kind,
)
from toc.admin.type_check import (
    check_numbers,
    convert_compared_values,
    make_checked_call,
    parse_time_literal,
)

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
"""sqlglot's name of a type -> the type of the value, and how many sizes CAST accepts for this type."""


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of an answer. `is_id`: its values are 64-bit ids."""

    name: str
    kind: Kind
    is_id: bool


Columns = dict[str, exp.Expr]
"""The columns of a table, by the user's names in small letters."""


@dataclass(slots=True)
class NameScope:
    """The names that a SELECT knows: its tables, aliases and WITH queries, and those of the outer SELECT."""

    outer: NameScope | None = None
    ctes: Mapping[str, tuple[str, list[ResultColumn]]] = field(default_factory=dict)
    tables: dict[str, Columns] = field(default_factory=dict)
    aliases: Columns = field(default_factory=dict)
    unusable_aliases: frozenset[str] = frozenset()
    """The aliases of the SELECT, while its WHERE is translated: a WHERE cannot use aliases."""


class ExpressionParser(FunctionCallParser):
    """Translates expressions in a scope of names. `values`: the values of the @names. `offsets`: times may
    have the offset of a zone.
    """

    def __init__(self, values: Mapping[str, str], *, offsets: bool = False) -> None:
        self._values, self._offsets = values, offsets
        self.used: set[str] = set()
        """The @names that the statement uses."""
        self.scope = NameScope()

    def translate_query(
        self, node: exp.Expr, outer: NameScope
    ) -> tuple[exp.Query, list[ResultColumn]]:
        """Translates a subquery; returns its tree and its columns."""
        raise not_accepted_error(node)

    def translate_expression(self, node: exp.Expr, *, json: bool = False) -> exp.Expr:
        reader = self._READERS.get(type(node))
        if reader is None:
            raise not_accepted_error(node)
        made = reader(self, node)
        if value_kind(made) == "json" and not json:
            rule = "JSON has no order and is not compared: ->> and JSON_UNQUOTE make a text of it"
            raise refusal_error(node_as_text(node), rule)
        return made

    # ---- names

    def _translate_column(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node.this, exp.Identifier):
            raise not_accepted_error(node.this)
        name, table = node.name.lower(), node.text("table").lower()
        if table:
            return self._find_column_of_table(table, name)
        function = ALIASES.get(name.upper(), name.upper())
        is_word = not node.this.args.get("quoted") and "_" in name
        if is_word and function in FUNCTIONS and FUNCTIONS[function].least == 0:
            return make_checked_call(function, [])  # UTC_TIMESTAMP without parentheses
        return self._find_column(name)

    def _find_column(self, name: str) -> exp.Expr:
        scope: NameScope | None = self.scope
        while scope is not None:
            found = [columns[name] for columns in scope.tables.values() if name in columns]
            if len(found) > 1:
                raise refusal_error(
                    name, "more than one table has this column: write the table before it"
                )
            alias = scope.aliases.get(name)
            if found and alias is not None and alias != found[0]:
                raise refusal_error(
                    name, "this is a column and another column's alias: choose another alias"
                )
            if found or alias is not None:
                return (found[0] if alias is None else alias).copy()
            if name in scope.unusable_aliases:
                raise refusal_error(name, "this is an alias, and WHERE can only use columns")
            scope = scope.outer
        tables = self.scope.tables
        near = [*(one for columns in tables.values() for one in columns), *self.scope.aliases]
        raise refusal_error(name, f"{' or '.join(tables)} has no such column", near)

    def _find_column_of_table(self, table: str, name: str) -> exp.Expr:
        scope: NameScope | None = self.scope
        while scope is not None and table not in scope.tables:
            scope = scope.outer
        if scope is None:
            known = ", ".join(self.scope.tables)
            raise refusal_error(
                f"{table}.{name}", f"there is no such table in FROM; there are {known}"
            )
        columns = scope.tables[table]
        if name not in columns:
            raise refusal_error(name, f"{table} has no such column", columns)
        return columns[name].copy()

    def _translate_parameter(self, node: exp.Expr) -> exp.Expr:
        name = node.name
        if name not in self._values:
            raise refusal_error(
                f"@{name}", f"this name has no value: add --set {name}=VALUE", self._values
            )
        self.used.add(name)
        value = self._values[name]
        if re.fullmatch(r"-?\d{1,20}", value, re.ASCII):
            return number_literal(int(value))
        quoted = re.fullmatch(r"'(.*)'", value, re.DOTALL)
        return text_literal(quoted[1] if quoted else value)

    # ---- operators

    def _translate_operands(self, operator: str, *nodes: exp.Expr) -> list[exp.Expr]:
        for node in nodes:
            if isinstance(node, _TESTS):
                raise refusal_error(
                    node_as_text(node), f"put this operand in parentheses beside {operator}"
                )
        return self.translate_all(list(nodes))

    def _translate_and_or(self, node: exp.Expr) -> exp.Expr:
        parts = self.translate_all(list(node.flatten(unnest=False)))
        parts = [
            parenthesize_operand(part) for part in check_numbers(parts, type(node).__name__.upper())
        ]
        return set_kind(
            reduce(lambda left, right: type(node)(this=left, expression=right), parts), "number"
        )

    def _translate_comparison(self, node: exp.Expr) -> exp.Expr:
        operator = _OPERATORS[type(node)]
        parts = self._translate_operands(operator, node.this, node.expression)
        left, right = map(parenthesize_operand, convert_compared_values(parts, operator))
        return set_kind(type(node)(this=left, expression=right), "number")

    def _translate_arithmetic(self, node: exp.Expr) -> exp.Expr:
        left, right = node.this, node.expression
        if isinstance(left, exp.Interval):
            # MySQL takes all that follows for the time: INTERVAL 1 HOUR + (due_time < NOW()).
            raise refusal_error(node_as_text(left), "write the INTERVAL after the time")
        if isinstance(right, exp.Interval) and isinstance(node, (exp.Add, exp.Sub)):
            return self.add_interval(left, right, minus=isinstance(node, exp.Sub))
        return self.make_arithmetic(type(node), _OPERATORS[type(node)], [left, right])

    def _translate_unary(self, node: exp.Expr) -> exp.Expr:
        (part,) = check_numbers(
            [self.translate_expression(node.this)], "NOT" if isinstance(node, exp.Not) else "-"
        )
        return set_kind(type(node)(this=parenthesize_operand(part)), "number")

    def _translate_parentheses(self, node: exp.Expr) -> exp.Expr:
        return self.translate_expression(node.this, json=True)

    def _translate_is(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node.expression, (exp.Null, exp.Boolean)):
            raise not_accepted_error(node.expression)
        if isinstance(node.expression, exp.Boolean):
            (part,) = check_numbers(self._translate_operands("IS", node.this), "IS")
        elif isinstance(node.this, _TESTS):
            raise refusal_error(
                node_as_text(node.this), "put this operand in parentheses before IS"
            )
        else:
            part = self.translate_expression(node.this, json=True)
        return set_kind(
            exp.Is(this=parenthesize_operand(part), expression=node.expression.copy()), "number"
        )

    def _translate_in(self, node: exp.Expr) -> exp.Expr:
        query = node.args.get("query")
        if query is None:
            parts = self._translate_operands("IN", node.this, *node.expressions)
            left, *choices = convert_compared_values(parts, "IN")
            made = exp.In(this=parenthesize_operand(left), expressions=choices)
        else:
            (left,) = self._translate_operands("IN", node.this)
            subquery = self._translate_scalar_subquery(query)
            left, _ = convert_compared_values(
                [left, set_kind(exp.Null(), value_kind(subquery))], "IN"
            )
            made = exp.In(this=parenthesize_operand(left), query=subquery)
        return set_kind(made, "number")

    def _translate_between(self, node: exp.Expr) -> exp.Expr:
        parts = self._translate_operands("BETWEEN", node.this, node.args["low"], node.args["high"])
        value, low, high = map(parenthesize_operand, convert_compared_values(parts, "BETWEEN"))
        return set_kind(exp.Between(this=value, low=low, high=high), "number")

    def _translate_like(self, node: exp.Expr, escape: exp.Expr | None = None) -> exp.Expr:
        word = "LIKE" if isinstance(node, exp.Like) else "REGEXP"
        parts = self._translate_operands(word, node.this, node.expression)
        if any(value_kind(part) == "number" for part in parts):
            raise refusal_error(word, "this operator compares texts only")
        left, right = map(parenthesize_operand, parts)
        like: exp.Expr = type(node)(this=left, expression=right)
        like = like if escape is None else exp.Escape(this=like, expression=escape)
        if node.args.get("negate"):
            like = exp.Not(this=parenthesize_operand(set_kind(like, "number")))
        return set_kind(like, "number")

    def _translate_escape(self, node: exp.Expr) -> exp.Expr:
        escape = self.translate_expression(node.expression)
        if (
            not isinstance(node.this, exp.Like)
            or not is_text_literal(escape)
            or len(escape.name) > 1
        ):
            raise refusal_error(node_as_text(node), "ESCAPE takes one character, after LIKE")
        return self._translate_like(node.this, escape)

    # ---- subqueries

    def _translate_exists(self, node: exp.Expr) -> exp.Expr:
        made, _ = self.translate_query(node.this, self.scope)
        return set_kind(exp.Exists(this=made), "number")

    def _translate_scalar_subquery(self, node: exp.Expr) -> exp.Expr:
        made, columns = self.translate_query(node, self.scope)
        if len(columns) != 1:
            raise refusal_error(node_as_text(node), "this subquery must have one column")
        return set_kind(exp.Subquery(this=made), columns[0].kind)

    # ---- values

    def _translate_literal(self, node: exp.Expr) -> exp.Expr:
        if node.is_string:
            made = text_literal(node.name)
            made.meta["offsets"] = self._offsets
            return made
        if not re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", node.name, re.ASCII):
            raise refusal_error(node.name, "this is no number")
        return number_literal(node.name)

    def _translate_constant(self, node: exp.Expr) -> exp.Expr:
        return set_kind(node.copy(), "any")

    def _join_text_literals(self, node: exp.Expr) -> exp.Expr:
        """Translates adjacent literals such as 'a' 'b', which are one text."""
        if not all(map(is_text_literal, node.expressions)):
            raise not_accepted_error(node)
        return text_literal("".join(part.name for part in node.expressions))

    def _translate_now(self, node: exp.Expr) -> exp.Expr:
        return make_checked_call("CURDATE" if isinstance(node, exp.CurrentDate) else "NOW", [])

    def _translate_case(self, node: exp.Expr) -> exp.Expr:
        subject, default = node.args.get("this"), node.args.get("default")
        whens = self.translate_all([one.this for one in node.args["ifs"]])
        results = [one.args["true"] for one in node.args["ifs"]]
        results += [] if default is None else [default]
        return make_case(
            None if subject is None else self.translate_expression(subject),
            whens,
            self.translate_all(results, json=True),
        )

    def _translate_cast(self, node: exp.Expr) -> exp.Expr:
        to = node.args["to"]
        name = to.this.name if isinstance(to.this, exp.DType) else ""
        if name == "TIMESTAMPTZ" and is_text_literal(node.this):  # TIMESTAMP '2030-01-31'
            return set_kind(
                make_cast(parse_time_literal(self.translate_expression(node.this)), "DATETIME", 3),
                "time",
            )
        kind, most = _CASTS.get(name, ("any", -1))
        sizes = [size.this for size in to.expressions]
        if len(sizes) > most:
            known = "SIGNED, UNSIGNED, DECIMAL, CHAR, DATE, DATETIME, DOUBLE"
            raise refusal_error(node_as_text(node), f"CAST converts to one of {known}")
        if not all(isinstance(size, exp.Literal) and size.name.isdigit() for size in sizes):
            raise refusal_error(node_as_text(node), "sizes are whole numbers")
        return set_kind(
            make_cast(
                self.translate_expression(node.this), name, *(int(size.name) for size in sizes)
            ),
            kind,
        )

    def _translate_json_path(self, node: exp.Expr) -> exp.Expr:
        """Translates -> and ->> to functions: MariaDB does not have these operators."""
        path = "$"
        for one in node.expression.expressions[1:]:
            if isinstance(one, exp.JSONPathKey) and re.fullmatch(r"[\w ./-]+", str(one.this)):
                path += f'."{one.this}"'
            elif isinstance(one, exp.JSONPathSubscript) and str(one.this).isdigit():
                path += f"[{one.this}]"
            else:
                raise refusal_error(node_as_text(node), "write a path like '$.key[0].key'")
        found = make_checked_call(
            "JSON_EXTRACT", [self.translate_expression(node.this), text_literal(path)]
        )
        is_text_wanted = type(node) is exp.JSONExtractScalar
        return make_checked_call("JSON_UNQUOTE", [found]) if is_text_wanted else found

    _READERS: ClassVar[Mapping[type[Any], Callable[[Any, Any], exp.Expr]]] = {
        **dict.fromkeys(_OPERATORS, _translate_arithmetic),
        **dict.fromkeys(_COMPARISONS, _translate_comparison),
        exp.And: _translate_and_or,
        exp.Or: _translate_and_or,
        exp.Not: _translate_unary,
        exp.Neg: _translate_unary,
        exp.Paren: _translate_parentheses,
        exp.Is: _translate_is,
        exp.In: _translate_in,
        exp.Between: _translate_between,
        exp.Like: _translate_like,
        exp.RegexpLike: _translate_like,
        exp.Escape: _translate_escape,
        exp.Literal: _translate_literal,
        exp.Boolean: _translate_constant,
        exp.Null: _translate_constant,
        exp.Concat: _join_text_literals,
        exp.Parameter: _translate_parameter,
        exp.Column: _translate_column,
        exp.CurrentTimestamp: _translate_now,
        exp.CurrentDate: _translate_now,
        exp.Localtime: _translate_now,
        exp.Localtimestamp: _translate_now,
        exp.Case: _translate_case,
        exp.Cast: _translate_cast,
        exp.JSONExtract: _translate_json_path,
        exp.JSONExtractScalar: _translate_json_path,
        exp.Anonymous: FunctionCallParser.translate_call,
        exp.GroupConcat: FunctionCallParser.translate_group_concat,
        exp.Window: FunctionCallParser.translate_window,
        exp.Extract: FunctionCallParser.translate_extract,
        exp.Exists: _translate_exists,
        exp.Subquery: _translate_scalar_subquery,
    }


def make_column(table: str, name: str, column: ResultColumn) -> exp.Expr:
    """A column of the new tree, with the type and the user's name of `column`."""
    made = set_kind(exp.column(name, table=table), column.kind)
    made.meta.update(name=column.name, is_id=column.is_id)
    return made
