"""From sqlglot's tree of an expression to ours. What is not listed here is refused by its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import ClassVar

from sqlglot import exp

from toc.admin.expressions import (
    AGGREGATES,
    COMPARISONS,
    TESTS,
    Aggregate,
    Call,
    Case,
    Cast,
    Column,
    Expr,
    Number,
    Operation,
    Shift,
    Span,
    Text,
    Word,
)
from toc.admin.functions import ALIASES, FUNCTIONS, SPELLED, UNITS
from toc.admin.grammar import not_taken, only, shown
from toc.admin.refusals import refused
from toc.errors import InvalidInput

_BINARY: Mapping[type[exp.Expr], str] = {
    exp.And: "AND", exp.Or: "OR", exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=",
    exp.GT: ">", exp.GTE: ">=", exp.NullSafeEQ: "<=>", exp.Mul: "*", exp.Div: "/",
    exp.IntDiv: "DIV", exp.Mod: "%",
}  # fmt: skip

_SAME_LEVEL = COMPARISONS | TESTS | {"IN", "BETWEEN", "LIKE", "NOT"}
"""Of MySQL's precedence. Which of two comes first is for the reader to say, in parentheses."""

_CASTS = {
    "BIGINT": ("SIGNED", 0), "UBIGINT": ("UNSIGNED", 0), "DECIMAL": ("DECIMAL", 2),
    "CHAR": ("CHAR", 1), "DATE": ("DATE", 0), "DATETIME": ("DATETIME", 1), "DOUBLE": ("DOUBLE", 0),
}  # fmt: skip
"""sqlglot's name of a type -> MySQL's, and how many sizes it takes."""


class Terms:
    """Reads expressions on one table. `values` are those of the @names."""

    def __init__(self, table_name: str, values: Mapping[str, str]) -> None:
        self._table_name, self._values = table_name, values
        self.used: set[str] = set()
        """The @names that were met."""

    def read(self, node: exp.Expr) -> Expr:
        operator = _BINARY.get(type(node))
        if operator is not None:
            only(node, "this", "expression", "safe", "typed")
            return self._operation(operator, node.this, node.expression)
        read = self._READERS.get(type(node))
        if read is None:
            raise not_taken(node)
        return read(self, node)

    def _operation(self, operator: str, *nodes: exp.Expr) -> Operation:
        if operator in _SAME_LEVEL - {"NOT"}:
            for node in nodes:
                self._check_order(operator, node)
        return Operation(operator, tuple(self.read(node) for node in nodes))

    def _check_order(self, operator: str, node: exp.Expr) -> None:
        if isinstance(node, (exp.Not, exp.Is, exp.In, exp.Between, exp.Like)) or (
            _BINARY.get(type(node), "") in _SAME_LEVEL
        ):
            raise refused(shown(node), f"put it in parentheses, before or after {operator}")

    def _sum(self, node: exp.Expr) -> Expr:
        only(node, "this", "expression")
        left, right, minus = node.this, node.expression, isinstance(node, exp.Sub)
        if isinstance(left, exp.Interval):
            # MySQL takes all that follows for the time: INTERVAL 1 HOUR + (due_time < NOW()).
            raise refused(shown(left), "put the INTERVAL behind the time")
        if isinstance(right, exp.Interval):
            return self._shift(left, right, minus=minus)
        return self._operation("-" if minus else "+", left, right)

    def _shift(self, base: exp.Expr, interval: exp.Expr, *, minus: bool) -> Shift:
        if not isinstance(interval, exp.Interval):
            raise refused(shown(interval), "write INTERVAL n UNIT")
        only(interval, "this", "unit")
        amount = self._whole(interval.this)
        if minus:
            amount = _negative(amount)
        return Shift(self.read(base), amount, self._unit(interval.args.get("unit")))

    def _whole(self, node: exp.Expr) -> Expr:
        """The number of units; sqlglot makes a text of a literal."""
        if isinstance(node, exp.Literal):
            if not re.fullmatch(r"-?\d{1,12}", node.name, re.ASCII):
                raise refused(node.name, "an INTERVAL takes a whole number")
            return _number(int(node.name))
        return self.read(node)

    def _unit(self, node: exp.Expr | None) -> str:
        name = "" if node is None else node.name.upper().removeprefix("SQL_TSI_")
        if name not in UNITS:
            raise refused(name, f"a unit is one of {', '.join(UNITS)}")
        return name

    def _not(self, node: exp.Expr) -> Expr:
        only(node, "this")
        return Operation("NOT", (self.read(node.this),))

    def _minus(self, node: exp.Expr) -> Expr:
        only(node, "this")
        return Operation("NEG", (self.read(node.this),))

    def _paren(self, node: exp.Expr) -> Expr:
        only(node, "this")
        return self.read(node.this)

    def _is(self, node: exp.Expr) -> Expr:
        only(node, "this", "expression")
        what = node.expression
        if isinstance(what, exp.Null):
            return self._operation("IS NULL", node.this)
        if isinstance(what, exp.Boolean):
            return self._operation("IS TRUE" if what.this else "IS FALSE", node.this)
        raise not_taken(what)

    def _in(self, node: exp.Expr) -> Expr:
        only(node, "this", "expressions")
        return self._operation("IN", node.this, *node.expressions)

    def _between(self, node: exp.Expr) -> Expr:
        only(node, "this", "low", "high")
        return self._operation("BETWEEN", node.this, node.args["low"], node.args["high"])

    def _like(self, node: exp.Expr) -> Expr:
        only(node, "this", "expression", "negate")
        like = self._operation("LIKE", node.this, node.expression)
        return Operation("NOT", (like,)) if node.args.get("negate") else like

    def _literal(self, node: exp.Expr) -> Expr:
        only(node, "this", "is_string")
        if node.is_string:
            return Text(node.name)
        if not re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", node.name, re.ASCII):
            raise refused(node.name, "is no number")
        return Number(node.name)

    def _boolean(self, node: exp.Expr) -> Expr:
        return Word("TRUE" if node.this else "FALSE")

    def _null(self, node: exp.Expr) -> Expr:
        return Word("NULL")

    def _texts(self, node: exp.Expr) -> Expr:
        """'a' 'b' is one literal."""
        if not all(isinstance(part, exp.Literal) and part.is_string for part in node.expressions):
            raise not_taken(node)
        return Text("".join(part.name for part in node.expressions))

    def _parameter(self, node: exp.Expr) -> Expr:
        only(node, "this")
        name = node.name
        if name not in self._values:
            raise refused(f"@{name}", f"has no value: --set {name}=VALUE", self._values)
        self.used.add(name)
        value = self._values[name]
        if re.fullmatch(r"-?\d{1,20}", value, re.ASCII):
            return _number(int(value))
        quoted = re.fullmatch(r"'(.*)'", value, re.DOTALL)
        return Text(quoted[1] if quoted else value)

    def _column(self, node: exp.Expr) -> Expr:
        if not isinstance(node.this, exp.Identifier):
            raise not_taken(node.this)
        self.check_table(node)
        if not node.this.args.get("quoted") and not node.args.get("table"):
            called = ALIASES.get(node.name.upper(), node.name.upper())
            if called in FUNCTIONS and FUNCTIONS[called].least == 0 and "_" in node.name:
                return Call(called, ())  # UTC_TIMESTAMP without parentheses
        return Column(node.name.lower())

    def check_table(self, node: exp.Expr) -> None:
        only(node, "this", "table")
        table = node.text("table").lower()
        if table and table != self._table_name:
            raise refused(shown(node), f"the table here is {self._table_name}")

    def _now(self, node: exp.Expr) -> Expr:
        only(node)
        return Call("CURDATE" if isinstance(node, exp.CurrentDate) else "NOW", ())

    def _case(self, node: exp.Expr) -> Expr:
        only(node, "this", "ifs", "default")
        subject, otherwise = node.args.get("this"), node.args.get("default")
        whens = []
        for one in node.args["ifs"]:
            only(one, "this", "true")
            whens.append((self.read(one.this), self.read(one.args["true"])))
        return Case(
            None if subject is None else self.read(subject),
            tuple(whens),
            None if otherwise is None else self.read(otherwise),
        )

    def _cast(self, node: exp.Expr) -> Expr:
        only(node, "this", "to")
        to = node.args["to"]
        only(to, "this", "expressions", "nested")
        kind = to.this
        name, most = _CASTS.get(kind.name if isinstance(kind, exp.DType) else "", ("", 0))
        sizes = [size.this for size in to.expressions]
        if not name or len(sizes) > most:
            known = ", ".join(known for known, _ in _CASTS.values())
            raise refused(shown(node), f"CAST goes to one of {known}")
        if not all(isinstance(size, exp.Literal) and size.name.isdigit() for size in sizes):
            raise refused(shown(node), "sizes are whole numbers")
        return Cast(self.read(node.this), name, tuple(int(size.name) for size in sizes))

    # ---- calls

    def _call(self, node: exp.Expr) -> Expr:
        only(node, "this", "expressions")
        if not isinstance(node.this, str):
            raise refused(shown(node), "is no function of MySQL's")
        name = ALIASES.get(node.this.upper(), node.this.upper())
        nodes = node.expressions
        if name in AGGREGATES:
            return self._aggregate(name, nodes)
        if name in SPELLED:
            return self._spelled(name, nodes)
        function = FUNCTIONS.get(name)
        if function is None:
            known = [*FUNCTIONS, *ALIASES, *SPELLED, *AGGREGATES]
            raise refused(name, "this function is not taken", known)
        if not function.least <= len(nodes) <= function.most:
            raise _arguments(name, function.least, function.most)
        if name == "MOD":
            return self._operation("%", *nodes)
        return Call(name, tuple(self.read(one) for one in nodes))

    def _aggregate(self, name: str, nodes: list[exp.Expr]) -> Expr:
        if name == "COUNT" and len(nodes) == 1 and isinstance(nodes[0], exp.Star):
            only(nodes[0])
            return Aggregate("COUNT", ())
        if len(nodes) == 1 and isinstance(nodes[0], exp.Distinct):
            only(nodes[0], "expressions")
            if name != "COUNT":
                raise refused(f"{name}(DISTINCT ...)", "cannot be merged; COUNT(DISTINCT ...) can")
            args = tuple(self.read(one) for one in nodes[0].expressions)
            return Aggregate(name, args, distinct=True)
        if len(nodes) != 1:
            raise _arguments(name, 1, 1)
        return Aggregate(name, (self.read(nodes[0]),))

    def _spelled(self, name: str, nodes: list[exp.Expr]) -> Expr:
        least = {"ISNULL": 1, "DATE_ADD": 2, "DATE_SUB": 2}.get(name, 3)
        if len(nodes) != least:
            raise _arguments(name, least, least)
        match name:
            case "IF":
                when, then, otherwise = (self.read(one) for one in nodes)
                return Case(None, ((when, then),), otherwise)
            case "ISNULL":
                return Operation("IS NULL", (self.read(nodes[0]),))
            case "DATE_ADD" | "DATE_SUB":
                return self._shift(nodes[0], nodes[1], minus=name == "DATE_SUB")
            case "TIMESTAMPADD":
                amount = self._whole(nodes[1]) if nodes[1].is_int else self.read(nodes[1])
                return Shift(self.read(nodes[2]), amount, self._unit(nodes[0]))
        return Span(self._unit(nodes[0]), self.read(nodes[1]), self.read(nodes[2]))

    _READERS: ClassVar[Mapping[type[exp.Expr], Callable[[Terms, exp.Expr], Expr]]] = {
        exp.Add: _sum, exp.Sub: _sum, exp.Not: _not, exp.Neg: _minus, exp.Paren: _paren,
        exp.Is: _is, exp.In: _in, exp.Between: _between, exp.Like: _like, exp.Literal: _literal,
        exp.Boolean: _boolean, exp.Null: _null, exp.Concat: _texts, exp.Parameter: _parameter,
        exp.Column: _column, exp.CurrentTimestamp: _now, exp.CurrentDate: _now,
        exp.Localtime: _now, exp.Localtimestamp: _now, exp.Case: _case, exp.Cast: _cast,
        exp.Anonymous: _call,
    }  # fmt: skip


def _number(value: int) -> Expr:
    number = Number(str(abs(value)))
    return Operation("NEG", (number,)) if value < 0 else number


def _negative(expr: Expr) -> Expr:
    match expr:
        case Operation("NEG", (inner,)):
            return inner
    return Operation("NEG", (expr,))


def _arguments(name: str, least: int, most: int) -> InvalidInput:
    count = str(least) if least == most else f"{least} to {most}"
    return refused(f"{name}()", f"takes {count} argument{'' if count == '1' else 's'}")
