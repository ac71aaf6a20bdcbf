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
from toc.admin.statement_parser import refused
from toc.admin.syntax_tree import call, is_text, number, text, whole_number

SAME_NAMES = AGGREGATES.keys() | WINDOW_FUNCTIONS.keys() | {
    "COALESCE", "NULLIF", "TRIM", "LTRIM", "RTRIM", "REPLACE", "ABS", "SIGN", "INSTR",
}  # fmt: skip
OTHER_NAMES = {"GREATEST": "MAX", "LEAST": "MIN", "CHAR_LENGTH": "LENGTH"}
"""Functions that SQLite has with the meaning that they have in MySQL, under the same or another name."""
UNSUPPORTED = frozenset(
    {"JSON_EXTRACT", "JSON_UNQUOTE", "JSON_VALID", "MONTHNAME", "DAYNAME", "WEEK"}
)


def to_sqlite(tree: exp.Expr) -> exp.Expr:
    """Changes the tree, and returns it. Raises InvalidInput for a function that is unsupported here."""
    for node in reversed(list(tree.walk())):
        made = _translated(node)
        if made is not node:
            node.replace(made)
    return tree


def _translated(node: exp.Expr) -> exp.Expr:
    made = node
    match node:
        case exp.NullSafeEQ():
            made = exp.Is(this=node.this.copy(), expression=node.expression.copy())
        case exp.Escape() if node.expression.name == "":
            made = node.this
        case exp.Like() if not isinstance(node.parent, exp.Escape):
            made = exp.Escape(this=node.copy(), expression=text("\\"))
        case exp.Div():
            made = exp.Div(this=call("my_float", node.this), expression=node.expression)
        case exp.IntDiv():
            made = call("my_intdiv", node.this, node.expression)
        case exp.Mod():
            made = call("my_mod", node.this, node.expression)
        case exp.RegexpLike():
            raise refused("REGEXP", "SQLite does not have it")
        case exp.Literal() if (whole_number(node) or 0) > INTEGER_MAX:
            raise refused(node.name, "SQLite has whole numbers up to 2^63-1")
        case exp.Cast() | exp.GroupConcat() | exp.Anonymous():
            made = _CALLS[type(node)](node)
    return made


def _cast(node: exp.Expr) -> exp.Expr:
    sizes = [size.this for size in node.args["to"].expressions]
    return call("my_cast", node.this, text(node.args["to"].this.name), *sizes)


def _function(node: exp.Expr) -> exp.Expr:
    name, args = node.name, node.expressions
    if name in UNSUPPORTED:
        raise refused(name, "this function is not supported on SQLite")
    match name, args:
        case (("COALESCE" | "GREATEST" | "LEAST"), [exp.Expr() as only]):
            return only
        case "DATE_ADD", [base, exp.Interval() as interval]:
            return call("my_shift", base, interval.this, text(interval.args["unit"].name))
        case "TIMESTAMPDIFF", [unit, start, end]:
            return call("my_span", text(unit.name), start, end)
        case "DATE_FORMAT", [_, pattern]:
            if not is_text(pattern) or re.search(r"%[UuVX]", pattern.name.replace("%%", "")):
                raise refused(name, "on SQLite it takes a text, and for weeks %v and %x")
    if name in SAME_NAMES or name == "my_sum":
        return node
    return call(OTHER_NAMES.get(name, f"my_{name.lower()}"), *args)


def _group_concat(node: exp.Expr) -> exp.Expr:
    inner, terms = node.this, []
    if isinstance(inner, exp.Order):
        inner, terms = inner.this, inner.expressions
    distinct = isinstance(inner, exp.Distinct)
    if distinct:
        inner = inner.expressions[0]
    keys = [part for one in terms for part in (one.this, number(int(bool(one.args.get("desc")))))]
    return call("my_group_concat", number(int(distinct)), node.args["separator"], inner, *keys)


_CALLS: Mapping[type[Any], Callable[[exp.Expr], exp.Expr]] = {
    exp.Cast: _cast, exp.GroupConcat: _group_concat, exp.Anonymous: _function,
}  # fmt: skip
