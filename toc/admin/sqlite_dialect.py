"""Translates a tree of `query_reader` to SQLite: MySQL's operators and functions become calls of
`sqlite_functions`, or functions that SQLite has itself.

sqlglot's own translation is not used: it drops milliseconds of times, divides whole numbers as SQLite does,
and leaves out codes of DATE_FORMAT.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sqlglot import exp

from toc.admin.allowed_functions import AGGREGATES, WINDOW_FUNCTIONS
from toc.admin.sqlite_functions import INTEGER_MAX
from toc.admin.statement_parser import refusal_error
from toc.admin.syntax_tree import (
    is_text_literal,
    literal_whole_number,
    make_call,
    number_literal,
    text_literal,
)

SAME_NAMES = AGGREGATES.keys() | WINDOW_FUNCTIONS.keys() | {
    "COALESCE", "NULLIF", "TRIM", "LTRIM", "RTRIM", "REPLACE", "ABS", "SIGN", "INSTR",
}  # fmt: skip
OTHER_NAMES = {"GREATEST": "MAX", "LEAST": "MIN", "CHAR_LENGTH": "LENGTH"}
"""Functions that SQLite has with the meaning that they have in MySQL, under the same or another name."""
UNSUPPORTED = frozenset(
    {"JSON_EXTRACT", "JSON_UNQUOTE", "JSON_VALID", "MONTHNAME", "DAYNAME", "WEEK"}
)


def translate_to_sqlite(tree: exp.Expr) -> exp.Expr:
    """Changes the tree, and returns it. Raises InvalidInput for a function that SQLite
    lacks."""
    for node in reversed(list(tree.walk())):
        made = _translate_node(node)
        if made is not node:
            node.replace(made)
    return tree


def _translate_node(node: exp.Expr) -> exp.Expr:
    made = node
    match node:
        case exp.NullSafeEQ():
            made = exp.Is(this=node.this.copy(), expression=node.expression.copy())
        case exp.Escape() if node.expression.name == "":
            made = node.this
        case exp.Like() if not isinstance(node.parent, exp.Escape):
            made = exp.Escape(this=node.copy(), expression=text_literal("\\"))
        case exp.Div():
            made = exp.Div(this=make_call("my_float", node.this), expression=node.expression)
        case exp.IntDiv():
            made = make_call("my_intdiv", node.this, node.expression)
        case exp.Mod():
            made = make_call("my_mod", node.this, node.expression)
        case exp.RegexpLike():
            raise refusal_error("REGEXP", "SQLite does not have REGEXP")
        case exp.Literal() if (literal_whole_number(node) or 0) > INTEGER_MAX:
            raise refusal_error(node.name, "SQLite has whole numbers up to 2^63-1")
        case exp.Cast() | exp.GroupConcat() | exp.Anonymous():
            made = _CALLS[type(node)](node)
    return made


def _translate_cast(node: exp.Expr) -> exp.Expr:
    sizes = [size.this for size in node.args["to"].expressions]
    return make_call("my_cast", node.this, text_literal(node.args["to"].this.name), *sizes)


def _translate_function(node: exp.Expr) -> exp.Expr:
    name, args = node.name, node.expressions
    if name in UNSUPPORTED:
        raise refusal_error(name, "this function is not supported on SQLite")
    match name, args:
        case (("COALESCE" | "GREATEST" | "LEAST"), [exp.Expr() as only]):
            return only
        case "DATE_ADD", [base, exp.Interval() as interval]:
            return make_call(
                "my_shift", base, interval.this, text_literal(interval.args["unit"].name)
            )
        case "TIMESTAMPDIFF", [unit, start, end]:
            return make_call("my_span", text_literal(unit.name), start, end)
        case "DATE_FORMAT", [_, pattern]:
            if not is_text_literal(pattern) or re.search(
                r"%[UuVX]", pattern.name.replace("%%", "")
            ):
                raise refusal_error(
                    name, "on SQLite this function takes a text, and for weeks %v and %x"
                )
    if name in SAME_NAMES or name == "my_sum":
        return node
    return make_call(OTHER_NAMES.get(name, f"my_{name.lower()}"), *args)


def _translate_group_concat(node: exp.Expr) -> exp.Expr:
    inner, terms = node.this, []
    if isinstance(inner, exp.Order):
        inner, terms = inner.this, inner.expressions
    distinct = isinstance(inner, exp.Distinct)
    if distinct:
        inner = inner.expressions[0]
    keys = [
        part
        for one in terms
        for part in (one.this, number_literal(int(bool(one.args.get("desc")))))
    ]
    return make_call(
        "my_group_concat", number_literal(int(distinct)), node.args["separator"], inner, *keys
    )


_CALLS: Mapping[type[Any], Callable[[exp.Expr], exp.Expr]] = {
    exp.Cast: _translate_cast, exp.GroupConcat: _translate_group_concat, exp.Anonymous: _translate_function,
}  # fmt: skip
