"""Translates function calls, aggregates and window functions, with their intervals and frames."""

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
from toc.admin.statement_parser import node_as_text, not_accepted_error, refusal_error
from toc.admin.syntax_tree import (
    is_text_literal,
    make_call,
    make_order_term,
    number_literal,
    parenthesize_operand,
    set_kind,
    text_literal,
    value_kind,
)
from toc.admin.type_check import (
    check_numbers,
    check_time_argument,
    convert_choices,
    convert_compared_values,
    make_checked_call,
    parse_time_literal,
)


class FunctionCallParser:
    """The part of an expression parser that translates function calls."""

    def translate_expression(self, node: exp.Expr, *, json: bool = False) -> exp.Expr:
        """Translates any expression. `json`: its value may be JSON."""
        raise NotImplementedError

    def translate_all(self, nodes: list[exp.Expr], *, json: bool = False) -> list[exp.Expr]:
        return [self.translate_expression(node, json=json) for node in nodes]

    def translate_call(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node.this, str):
            raise refusal_error(node_as_text(node), "this is no function of MySQL")
        name = ALIASES.get(node.this.upper(), node.this.upper())
        nodes = node.expressions
        if name in AGGREGATES:
            return self._translate_aggregate(name, nodes)
        if name in WINDOW_FUNCTIONS:
            raise refusal_error(name, "a window function needs OVER (...)")
        if name not in FUNCTIONS:
            raise refusal_error(name, "this function is not accepted", [*ALL_FUNCTIONS, *ALIASES])
        _check_argument_count(name, nodes)
        special = self._SPECIAL.get(name)
        if special is not None:
            return special(self, nodes)
        takes_json = FUNCTIONS[name].takes == "json" or name == "COALESCE"
        return make_checked_call(name, self.translate_all(nodes, json=takes_json))

    # ---- functions whose arguments are not all expressions

    def _translate_if(self, nodes: list[exp.Expr]) -> exp.Expr:
        return make_case(
            None, [self.translate_expression(nodes[0])], self.translate_all(nodes[1:], json=True)
        )

    def _translate_isnull(self, nodes: list[exp.Expr]) -> exp.Expr:
        value = parenthesize_operand(self.translate_expression(nodes[0], json=True))
        return set_kind(exp.Is(this=value, expression=exp.Null()), "number")

    def make_arithmetic(
        self, kind: Callable[..., exp.Expr], operator: str, nodes: list[exp.Expr]
    ) -> exp.Expr:
        left, right = map(parenthesize_operand, check_numbers(self.translate_all(nodes), operator))
        return set_kind(kind(this=left, expression=right), "number")

    def add_interval(self, base: exp.Expr, interval: exp.Expr, *, minus: bool = False) -> exp.Expr:
        """A time plus or minus an interval."""
        if not isinstance(interval, exp.Interval):
            raise refusal_error(node_as_text(interval), "write INTERVAL n UNIT")
        return self._add_time_units(base, interval.this, interval.args.get("unit"), minus=minus)

    def _add_time_units(
        self, base: exp.Expr, amount: exp.Expr, unit: exp.Expr | None, *, minus: bool = False
    ) -> exp.Expr:
        name, (count,) = (
            _check_time_unit(unit),
            check_numbers([self._translate_interval_count(amount)], "INTERVAL"),
        )
        if minus:
            count = (
                count.this
                if isinstance(count, exp.Neg)
                else exp.Neg(this=parenthesize_operand(count))
            )
        start = self.translate_expression(base)
        start = check_time_argument(parse_time_literal(start) if is_text_literal(start) else start)
        interval = exp.Interval(this=parenthesize_operand(count), unit=exp.var(name))
        is_date = value_kind(start) == "date" and name in DAY_UNITS
        return set_kind(make_call("DATE_ADD", start, interval), "date" if is_date else "time")

    def _translate_interval_count(self, node: exp.Expr) -> exp.Expr:
        """The number of units of an INTERVAL. sqlglot makes this number a text if it is a literal."""
        if not isinstance(node, exp.Literal):
            return self.translate_expression(node)
        if not re.fullmatch(r"-?\d{1,12}", node.name, re.ASCII):
            raise refusal_error(node.name, "an INTERVAL takes a whole number")
        return number_literal(int(node.name))

    def _translate_timestampdiff(self, nodes: list[exp.Expr]) -> exp.Expr:
        start, end = map(check_time_argument, self.translate_all(nodes[1:]))
        return set_kind(
            make_call("TIMESTAMPDIFF", exp.var(_check_time_unit(nodes[0])), start, end), "number"
        )

    _SPECIAL: ClassVar[Mapping[str, Callable[[FunctionCallParser, list[exp.Expr]], exp.Expr]]] = {
        "IF": _translate_if, "ISNULL": _translate_isnull, "TIMESTAMPDIFF": _translate_timestampdiff,
        "MOD": lambda self, nodes: self.make_arithmetic(exp.Mod, "%", nodes),
        "DATE_ADD": lambda self, nodes: self.add_interval(*nodes),
        "DATE_SUB": lambda self, nodes: self.add_interval(*nodes, minus=True),
        "TIMESTAMPADD": lambda self, nodes: self._add_time_units(nodes[2], nodes[1], nodes[0]),
    }  # fmt: skip

    def translate_extract(self, node: exp.Expr) -> exp.Expr:
        return make_checked_call(
            _check_time_unit(node.this), [self.translate_expression(node.expression)]
        )

    # ---- aggregates

    def _translate_aggregate(self, name: str, nodes: list[exp.Expr]) -> exp.Expr:
        """Checks the arguments of an aggregate, and rebuilds the call from them.

        The call is split for the shards later (`query_plan`).
        """
        if name == "COUNT" and len(nodes) == 1 and isinstance(nodes[0], exp.Star):
            return set_kind(make_call("COUNT", exp.Star()), "number")
        distinct = len(nodes) == 1 and isinstance(nodes[0], exp.Distinct)
        nodes = nodes[0].expressions if distinct else nodes
        _check_argument_count(name, nodes)
        made = make_checked_call(name, self.translate_all(nodes))
        if distinct:
            made.set("expressions", [exp.Distinct(expressions=made.expressions)])
        return made

    def translate_group_concat(self, node: exp.Expr) -> exp.Expr:
        inner, order = node.this, list[exp.Expr]()
        if isinstance(inner, exp.Order):
            inner, order = inner.this, inner.expressions
        distinct = isinstance(inner, exp.Distinct)
        if distinct:
            _check_argument_count("GROUP_CONCAT", inner.expressions)
            inner = inner.expressions[0]
        made = self.translate_expression(inner)
        made = exp.Distinct(expressions=[made]) if distinct else made
        if order:
            made = exp.Order(this=made, expressions=self.translate_order_terms(order))
        separator = node.args.get("separator") or text_literal(",")
        if not is_text_literal(separator):
            raise refusal_error("GROUP_CONCAT", "SEPARATOR takes a text")
        return set_kind(exp.GroupConcat(this=made, separator=separator.copy()), "text")

    def translate_order_terms(self, terms: list[exp.Expr]) -> list[exp.Expr]:
        return [make_order_term_like(term, self.translate_expression(term.this)) for term in terms]

    # ---- window functions

    def translate_window(self, node: exp.Expr) -> exp.Expr:
        function = node.this
        if not isinstance(function, exp.Anonymous) or not isinstance(function.this, str):
            raise not_accepted_error(node)
        name, nodes = function.this.upper(), function.expressions
        if name in WINDOW_FUNCTIONS:
            _check_argument_count(name, nodes)
            made = make_checked_call(name, self.translate_all(nodes))
        elif name in AGGREGATES:
            made = self._translate_aggregate(name, nodes)
        else:
            known = [*WINDOW_FUNCTIONS, *AGGREGATES]
            raise refusal_error(name, "this window function is not accepted", known)
        parts = self.translate_all(node.args.get("partition_by") or [])
        order, frame = node.args.get("order"), node.args.get("spec")
        if order is not None:
            order = exp.Order(expressions=self.translate_order_terms(order.expressions))
        window = exp.Window(
            this=made,
            partition_by=parts,
            order=order,
            spec=frame and _check_window_frame(frame),
            over="OVER",
        )
        return set_kind(window, value_kind(made))


def make_order_term_like(term: exp.Expr, value: exp.Expr) -> exp.Ordered:
    """A term of ORDER BY for `value`, in the direction of `term`."""
    desc = bool(term.args.get("desc"))
    if bool(term.args.get("nulls_first")) == desc:  # sqlglot fills in the order that MySQL has
        raise refusal_error("NULLS", "MySQL has no such word: NULL is the smallest value")
    return make_order_term(value, desc=desc)


def make_case(subject: exp.Expr | None, whens: list[exp.Expr], results: list[exp.Expr]) -> exp.Expr:
    """A CASE. With one more result than conditions, the last result is the ELSE."""
    if subject is None:
        check_numbers(whens, "WHEN")
    else:
        subject, *whens = convert_compared_values([subject, *whens], "CASE")
    values, kind = convert_choices(results, "CASE")
    ifs = [exp.If(this=when, true=then) for when, then in zip(whens, values, strict=False)]
    default = values[-1] if len(values) > len(whens) else None
    return set_kind(exp.Case(this=subject, ifs=ifs, default=default), kind)


def _check_time_unit(node: exp.Expr | None) -> str:
    name = "" if node is None else node.name.upper().removeprefix("SQL_TSI_")
    if name not in UNITS:
        raise refusal_error(name, f"the unit must be one of {', '.join(UNITS)}")
    return name


def _check_window_frame(node: exp.Expr) -> exp.Expr:
    """A copy of a window's frame, which may have keywords and counts only."""
    for bound in (node.args.get("start"), node.args.get("end")):
        is_count = isinstance(bound, exp.Literal) and bound.name.isdigit()
        if not is_count and bound not in (None, "UNBOUNDED", "CURRENT ROW"):
            raise refusal_error(node_as_text(node), "a frame has counts, UNBOUNDED or CURRENT ROW")
    if node.text("kind") not in ("ROWS", "RANGE"):
        raise refusal_error(node_as_text(node), "a frame begins with ROWS or RANGE")
    return node.copy()


def _check_argument_count(name: str, args: list[Any]) -> None:
    least, most = ALL_FUNCTIONS[name].least, ALL_FUNCTIONS[name].most
    if not least <= len(args) <= most:
        count = str(least) if least == most else f"{least} to {most}"
        raise refusal_error(f"{name}()", f"takes {count} argument{'' if count == '1' else 's'}")
