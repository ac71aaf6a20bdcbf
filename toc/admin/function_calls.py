"""Reads function calls, aggregates and window functions, with their intervals and frames."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from sqlglot import exp

from toc.admin.allowed_functions import (
    AGGREGATES,
    ALIASES,
    ALL_FUNCTIONS,
    DAY_UNITS,
    FUNCTIONS,
    UNITS,
    WINDOW_FUNCTIONS,
)
from toc.admin.statement_parser import not_accepted, refused, shown
from toc.admin.syntax_tree import call, is_text, kind_of, number, operand, order_term, text, typed
from toc.admin.type_check import (
    checked_call,
    common_kind,
    numbers,
    same_kind,
    time_literal,
    time_of,
)


class FunctionCalls:
    """The part of an expression parser for calls."""

    def expr(self, node: exp.Expr, *, json: bool = False) -> exp.Expr:
        """Reads any expression. `json`: it may be JSON."""
        raise NotImplementedError

    def all(self, nodes: list[exp.Expr], *, json: bool = False) -> list[exp.Expr]:
        return [self.expr(node, json=json) for node in nodes]

    def call(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node.this, str):
            raise refused(shown(node), "this is no function of MySQL")
        name = ALIASES.get(node.this.upper(), node.this.upper())
        nodes = node.expressions
        if name in AGGREGATES:
            return self._aggregate(name, nodes)
        if name in WINDOW_FUNCTIONS:
            raise refused(name, "a window function needs OVER (...)")
        if name not in FUNCTIONS:
            raise refused(name, "this function is not accepted", [*ALL_FUNCTIONS, *ALIASES])
        _check_count(name, nodes)
        special = self._SPECIAL.get(name)
        if special is not None:
            return special(self, nodes)
        takes_json = FUNCTIONS[name].takes == "json" or name == "COALESCE"
        return checked_call(name, self.all(nodes, json=takes_json))

    # ---- functions whose arguments are not all expressions

    def _if(self, nodes: list[exp.Expr]) -> exp.Expr:
        return case(None, [self.expr(nodes[0])], self.all(nodes[1:], json=True))

    def _isnull(self, nodes: list[exp.Expr]) -> exp.Expr:
        value = operand(self.expr(nodes[0], json=True))
        return typed(exp.Is(this=value, expression=exp.Null()), "number")

    def computed(
        self, kind: Callable[..., exp.Expr], operator: str, nodes: list[exp.Expr]
    ) -> exp.Expr:
        left, right = map(operand, numbers(self.all(nodes), operator))
        return typed(kind(this=left, expression=right), "number")

    def shifted(self, base: exp.Expr, interval: exp.Expr, *, minus: bool = False) -> exp.Expr:
        """A time plus or minus an interval."""
        if not isinstance(interval, exp.Interval):
            raise refused(shown(interval), "write INTERVAL n UNIT")
        return self._moved(base, interval.this, interval.args.get("unit"), minus=minus)

    def _moved(
        self, base: exp.Expr, amount: exp.Expr, unit: exp.Expr | None, *, minus: bool = False
    ) -> exp.Expr:
        name, (count,) = _unit(unit), numbers([self._whole(amount)], "INTERVAL")
        if minus:
            count = count.this if isinstance(count, exp.Neg) else exp.Neg(this=operand(count))
        start = self.expr(base)
        start = time_of(time_literal(start) if is_text(start) else start)
        interval = exp.Interval(this=operand(count), unit=exp.var(name))
        is_date = kind_of(start) == "date" and name in DAY_UNITS
        return typed(call("DATE_ADD", start, interval), "date" if is_date else "time")

    def _whole(self, node: exp.Expr) -> exp.Expr:
        """The number of units. sqlglot makes a literal number a text here."""
        if not isinstance(node, exp.Literal):
            return self.expr(node)
        if not re.fullmatch(r"-?\d{1,12}", node.name, re.ASCII):
            raise refused(node.name, "an INTERVAL takes a whole number")
        return number(int(node.name))

    def _timestampdiff(self, nodes: list[exp.Expr]) -> exp.Expr:
        start, end = map(time_of, self.all(nodes[1:]))
        return typed(call("TIMESTAMPDIFF", exp.var(_unit(nodes[0])), start, end), "number")

    _SPECIAL: ClassVar[Mapping[str, Callable[[FunctionCalls, list[exp.Expr]], exp.Expr]]] = {
        "IF": _if, "ISNULL": _isnull, "TIMESTAMPDIFF": _timestampdiff,
        "MOD": lambda self, nodes: self.computed(exp.Mod, "%", nodes),
        "DATE_ADD": lambda self, nodes: self.shifted(*nodes),
        "DATE_SUB": lambda self, nodes: self.shifted(*nodes, minus=True),
        "TIMESTAMPADD": lambda self, nodes: self._moved(nodes[2], nodes[1], nodes[0]),
    }  # fmt: skip

    def extract(self, node: exp.Expr) -> exp.Expr:
        return checked_call(_unit(node.this), [self.expr(node.expression)])

    # ---- aggregates

    def _aggregate(self, name: str, nodes: list[exp.Expr]) -> exp.Expr:
        if name == "COUNT" and len(nodes) == 1 and isinstance(nodes[0], exp.Star):
            return typed(call("COUNT", exp.Star()), "number")
        distinct = len(nodes) == 1 and isinstance(nodes[0], exp.Distinct)
        nodes = nodes[0].expressions if distinct else nodes
        _check_count(name, nodes)
        made = checked_call(name, self.all(nodes))
        if distinct:
            made.set("expressions", [exp.Distinct(expressions=made.expressions)])
        return made

    def group_concat(self, node: exp.Expr) -> exp.Expr:
        inner, order = node.this, list[exp.Expr]()
        if isinstance(inner, exp.Order):
            inner, order = inner.this, inner.expressions
        distinct = isinstance(inner, exp.Distinct)
        if distinct:
            _check_count("GROUP_CONCAT", inner.expressions)
            inner = inner.expressions[0]
        made = self.expr(inner)
        made = exp.Distinct(expressions=[made]) if distinct else made
        if order:
            made = exp.Order(this=made, expressions=self.sorted(order))
        separator = node.args.get("separator") or text(",")
        if not is_text(separator):
            raise refused("GROUP_CONCAT", "SEPARATOR takes a text")
        return typed(exp.GroupConcat(this=made, separator=separator.copy()), "text")

    def sorted(self, terms: list[exp.Expr]) -> list[exp.Expr]:
        return [ordered(term, self.expr(term.this)) for term in terms]

    # ---- window functions

    def window(self, node: exp.Expr) -> exp.Expr:
        function = node.this
        if not isinstance(function, exp.Anonymous) or not isinstance(function.this, str):
            raise not_accepted(node)
        name, nodes = function.this.upper(), function.expressions
        if name in WINDOW_FUNCTIONS:
            _check_count(name, nodes)
            made = checked_call(name, self.all(nodes))
        elif name in AGGREGATES:
            made = self._aggregate(name, nodes)
        else:
            known = [*WINDOW_FUNCTIONS, *AGGREGATES]
            raise refused(name, "this window function is not accepted", known)
        parts = self.all(node.args.get("partition_by") or [])
        order, frame = node.args.get("order"), node.args.get("spec")
        if order is not None:
            order = exp.Order(expressions=self.sorted(order.expressions))
        window = exp.Window(
            this=made, partition_by=parts, order=order, spec=frame and _frame(frame), over="OVER"
        )
        return typed(window, kind_of(made))


def ordered(term: exp.Expr, value: exp.Expr) -> exp.Ordered:
    """A term of ORDER BY for this value."""
    desc = bool(term.args.get("desc"))
    if bool(term.args.get("nulls_first")) == desc:  # sqlglot fills in the order that MySQL has
        raise refused("NULLS", "MySQL has no such word: NULL is the smallest value")
    return order_term(value, desc=desc)


def case(subject: exp.Expr | None, whens: list[exp.Expr], results: list[exp.Expr]) -> exp.Expr:
    """A CASE. It has an ELSE if there is one more result than there are conditions."""
    if subject is None:
        numbers(whens, "WHEN")
    else:
        subject, *whens = same_kind([subject, *whens], "CASE")
    values, kind = common_kind(results, "CASE")
    ifs = [exp.If(this=when, true=then) for when, then in zip(whens, values, strict=False)]
    default = values[-1] if len(values) > len(whens) else None
    return typed(exp.Case(this=subject, ifs=ifs, default=default), kind)


def _unit(node: exp.Expr | None) -> str:
    name = "" if node is None else node.name.upper().removeprefix("SQL_TSI_")
    if name not in UNITS:
        raise refused(name, f"the unit must be one of {', '.join(UNITS)}")
    return name


def _frame(node: exp.Expr) -> exp.Expr:
    """The frame of a window: it has keywords and counts only."""
    for bound in (node.args.get("start"), node.args.get("end")):
        is_count = isinstance(bound, exp.Literal) and bound.name.isdigit()
        if not is_count and bound not in (None, "UNBOUNDED", "CURRENT ROW"):
            raise refused(shown(node), "a frame has counts, UNBOUNDED or CURRENT ROW")
    if node.text("kind") not in ("ROWS", "RANGE"):
        raise refused(shown(node), "a frame begins with ROWS or RANGE")
    return node.copy()


def _check_count(name: str, args: list[Any]) -> None:
    least, most = ALL_FUNCTIONS[name].least, ALL_FUNCTIONS[name].most
    if not least <= len(args) <= most:
        count = str(least) if least == most else f"{least} to {most}"
        raise refused(f"{name}()", f"takes {count} argument{'' if count == '1' else 's'}")
