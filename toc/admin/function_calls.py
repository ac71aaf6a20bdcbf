"""Calls in a statement's expressions: functions, aggregates and window functions, with intervals."""

from __future__ import annotations

import re
from collections.abc import Callable

from sqlglot import exp

from toc.admin.allowed_functions import (
    AGGREGATES,
    ALIASES,
    DAY_UNITS,
    FUNCTIONS,
    SPELLED,
    UNITS,
    WINDOWS,
    Kind,
)
from toc.admin.statement_parser import not_taken, only, refused, shown
from toc.admin.syntax_tree import call, clause_list, is_text, number, operand, ordered
from toc.admin.type_check import Typed, alike, called, check_numbers, mixed, moment, time_literal
from toc.errors import InvalidInput


class Calls:
    def expr(self, node: exp.Expr) -> Typed:
        """Reads any expression."""
        raise NotImplementedError

    def _all(self, nodes: list[exp.Expr]) -> list[Typed]:
        return [self.expr(node) for node in nodes]

    def _computed(self, kind: Callable[..., exp.Expr], operator: str, args: list[Typed]) -> Typed:
        check_numbers(operator, args)
        left, right = (operand(part) for part, _ in args)
        return kind(this=left, expression=right), "number"

    def _shift(self, base: exp.Expr, interval: exp.Expr, *, minus: bool) -> Typed:
        if not isinstance(interval, exp.Interval):
            raise refused(shown(interval), "write INTERVAL n UNIT")
        only(interval, "this", "unit")
        return self._moved(base, self._whole(interval.this), interval.args.get("unit"), minus=minus)

    def _moved(
        self, base: exp.Expr, amount: Typed, unit: exp.Expr | None, *, minus: bool = False
    ) -> Typed:
        count, name = amount[0], self._unit(unit)
        check_numbers("INTERVAL", [amount])
        if minus:
            count = count.this if isinstance(count, exp.Neg) else exp.Neg(this=operand(count))
        part, kind = self.expr(base)
        if is_text(part):
            part, kind = time_literal(part.name), "time"
        gives: Kind = "date" if kind == "date" and name in DAY_UNITS else "time"
        interval = exp.Interval(this=operand(count), unit=exp.var(name))
        return call("DATE_ADD", moment((part, kind)), interval), gives

    def _whole(self, node: exp.Expr) -> Typed:
        """The number of units; sqlglot makes a text of a literal."""
        if isinstance(node, exp.Literal):
            if not re.fullmatch(r"-?\d{1,12}", node.name, re.ASCII):
                raise refused(node.name, "an INTERVAL takes a whole number")
            return number(node.name), "number"
        return self.expr(node)

    def _unit(self, node: exp.Expr | None) -> str:
        name = "" if node is None else node.name.upper().removeprefix("SQL_TSI_")
        if name not in UNITS:
            raise refused(name, f"a unit is one of {', '.join(UNITS)}")
        return name

    def call(self, node: exp.Expr) -> Typed:
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
            if name in WINDOWS:
                raise refused(name, "a window function needs OVER (...)")
            known = [*FUNCTIONS, *ALIASES, *SPELLED, *AGGREGATES, *WINDOWS]
            raise refused(name, "this function is not taken", known)
        if not function.least <= len(nodes) <= function.most:
            raise _arguments(name, function.least, function.most)
        if name == "MOD":
            return self._computed(exp.Mod, "%", self._all(nodes))
        return called(name, self._all(nodes))

    def _aggregate(self, name: str, nodes: list[exp.Expr]) -> Typed:
        if name == "COUNT" and len(nodes) == 1 and isinstance(nodes[0], exp.Star):
            only(nodes[0])
            return call("COUNT", exp.Star()), "number"
        distinct = len(nodes) == 1 and isinstance(nodes[0], exp.Distinct)
        if distinct:
            only(nodes[0], "expressions")
            nodes = nodes[0].expressions
        if len(nodes) != 1 and not (name == "COUNT" and distinct):
            raise _arguments(name, 1, 1)
        args = self._all(nodes)
        if name in ("SUM", "AVG"):
            check_numbers(name, args)
        if any(kind == "json" for _, kind in args):
            raise refused(name, "takes no JSON: ->> makes a text of it")
        kind = args[0][1] if name in ("MIN", "MAX") else "number"
        parts = [part for part, _ in args]
        return call(name, *([exp.Distinct(expressions=parts)] if distinct else parts)), kind

    def _sorted(self, node: exp.Expr) -> exp.Expr:
        expr, kind = self.expr(node.this)
        if kind == "json":
            raise refused(shown(node.this), "JSON has no order: ->> makes a text of it")
        return expr

    def group_concat(self, node: exp.Expr) -> Typed:
        only(node, "this", "separator")
        inner, order = node.this, list[exp.Expr]()
        if isinstance(inner, exp.Order):
            only(inner, "this", "expressions")
            inner, order = inner.this, inner.expressions
        distinct = isinstance(inner, exp.Distinct)
        if distinct:
            only(inner, "expressions")
            (inner, *more) = inner.expressions
            if more:
                raise _arguments("GROUP_CONCAT", 1, 1)
        made, kind = self.expr(inner)
        if kind == "json":
            raise refused("GROUP_CONCAT", "takes no JSON: ->> makes a text of it")
        made = exp.Distinct(expressions=[made]) if distinct else made
        if order:
            terms = [ordered(one, self._sorted(one)) for one in order]
            made = exp.Order(this=made, expressions=terms)
        separator = node.args.get("separator") or exp.Literal.string(",")
        if not is_text(separator):
            raise refused("GROUP_CONCAT", "takes its SEPARATOR as a text")
        return exp.GroupConcat(this=made, separator=separator.copy()), "text"

    def window(self, node: exp.Expr) -> Typed:
        only(node, "this", "partition_by", "order", "spec", "over")
        function = node.this
        if not isinstance(function, exp.Anonymous) or not isinstance(function.this, str):
            raise not_taken(node)
        name, nodes = function.this.upper(), function.expressions
        if name in WINDOWS:
            if len(nodes) > WINDOWS[name]:
                raise _arguments(name, min(WINDOWS[name], 1), WINDOWS[name])
            args = self._all(nodes)
            made: exp.Expr = call(name, *(part for part, _ in args))
            kind: Kind = "number"
            if name not in (
                "ROW_NUMBER",
                "RANK",
                "DENSE_RANK",
                "PERCENT_RANK",
                "CUME_DIST",
                "NTILE",
            ):
                values = [args[0], *args[2:]] if name in ("LAG", "LEAD") else args[:1]
                parts, kind = mixed(values, name)
                made = call(name, parts[0], *(part for part, _ in args[1:2]), *parts[1:])
        elif name in AGGREGATES:
            made, kind = self._aggregate(name, nodes)
            if any(isinstance(one, exp.Distinct) for one in made.expressions):
                raise refused(name, "DISTINCT does not go with OVER")
        else:
            raise refused(name, "this window function is not taken", [*WINDOWS, *AGGREGATES])
        window = exp.Window(
            this=made,
            partition_by=[part for part, _ in self._all(node.args.get("partition_by") or [])],
            over="OVER",
        )
        order = [ordered(one, self._sorted(one)) for one in clause_list(node, "order")]
        if order:
            window.set("order", exp.Order(expressions=order))
        if node.args.get("spec") is not None:
            window.set("spec", _frame(node.args["spec"]))
        return window, kind

    def extract(self, node: exp.Expr) -> Typed:
        only(node, "this", "expression")
        name = self._unit(node.this)
        return called(name, [self.expr(node.expression)])

    def _spelled(self, name: str, nodes: list[exp.Expr]) -> Typed:
        least = {"ISNULL": 1, "DATE_ADD": 2, "DATE_SUB": 2}.get(name, 3)
        if len(nodes) != least:
            raise _arguments(name, least, least)
        match name:
            case "IF":
                when, then, otherwise = self._all(nodes)
                return choice(None, [when], [then], [otherwise])
            case "ISNULL":
                return exp.Is(this=operand(self.expr(nodes[0])[0]), expression=exp.Null()), "number"
            case "DATE_ADD" | "DATE_SUB":
                return self._shift(nodes[0], nodes[1], minus=name == "DATE_SUB")
            case "TIMESTAMPADD":
                amount = self._whole(nodes[1]) if nodes[1].is_int else self.expr(nodes[1])
                return self._moved(nodes[2], amount, nodes[0])
        start, end = (moment(one) for one in self._all(nodes[1:]))
        return call("TIMESTAMPDIFF", exp.var(self._unit(nodes[0])), start, end), "number"


def aggregate_name(node: exp.Expr) -> str:
    return "GROUP_CONCAT" if isinstance(node, exp.GroupConcat) else node.name


def choice(
    subject: Typed | None, whens: list[Typed], results: list[Typed], otherwise: list[Typed]
) -> Typed:
    if subject is None:
        check_numbers("WHEN", whens)
        this, tests = None, [when for when, _ in whens]
    else:
        (this, *tests), _ = alike([subject, *whens], "CASE")
    values, kind = mixed([*results, *otherwise], "CASE")
    ifs = [exp.If(this=when, true=then) for when, then in zip(tests, values, strict=False)]
    return exp.Case(this=this, ifs=ifs, default=values[-1] if otherwise else None), kind


def _frame(node: exp.Expr) -> exp.WindowSpec:
    only(node, "kind", "start", "start_side", "end", "end_side")
    made = exp.WindowSpec(kind=node.text("kind"))
    for name in ("start", "end"):
        bound, side = node.args.get(name), node.args.get(f"{name}_side")
        if isinstance(bound, exp.Literal) and bound.name.isdigit() and node.text("kind") == "ROWS":
            bound = number(bound.name)
        elif bound is not None and bound not in ("UNBOUNDED", "CURRENT ROW"):
            raise refused(
                shown(node), "a frame is counted in ROWS, or goes to UNBOUNDED or CURRENT ROW"
            )
        made.set(name, bound)
        made.set(f"{name}_side", side)
    if made.args.get("kind") not in ("ROWS", "RANGE"):
        raise refused(shown(node), "a frame is one of ROWS or RANGE")
    return made


def _arguments(name: str, least: int, most: int) -> InvalidInput:
    count = str(least) if least == most else f"{least} to {most}"
    return refused(f"{name}()", f"takes {count} argument{'' if count == '1' else 's'}")
