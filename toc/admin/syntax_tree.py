"""Parts of sqlglot's trees: what they are, and new ones."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from toc.admin.allowed_functions import AGGREGATES
from toc.admin.statement_parser import only, refused


def inside(node: exp.Expr) -> Iterator[exp.Expr]:
    """A node and all below it, without what is in subqueries."""
    todo = [node]
    while todo:
        one = todo.pop()
        yield one
        if one is node or not isinstance(one, exp.Query):
            todo += reversed(list(one.iter_expressions()))


def is_aggregate(node: exp.Expr) -> bool:
    if isinstance(node.parent, exp.Window):
        return False
    return isinstance(node, exp.GroupConcat) or (
        isinstance(node, exp.Anonymous) and node.name in AGGREGATES
    )


def has_aggregate(node: exp.Expr) -> bool:
    return any(map(is_aggregate, inside(node)))


def operand(node: exp.Expr) -> exp.Expr:
    """In parentheses if it has operands itself."""
    has_some = isinstance(node, (exp.Binary, exp.Unary, exp.Between, exp.In))
    return exp.Paren(this=node) if has_some and not isinstance(node, exp.Paren) else node


def call(name: str, *args: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=list(args))


def number(value: int | str) -> exp.Expr:
    """A literal."""
    text = str(value)
    found = exp.Literal.number(text.lstrip("-"))
    return exp.Neg(this=found) if text.startswith("-") else found


def cast(part: exp.Expr, to: str, *sizes: int) -> exp.Cast:
    made = exp.DataType(
        this=exp.DType[to], expressions=[exp.DataTypeParam(this=number(n)) for n in sizes]
    )
    return exp.Cast(this=part, to=made)


def is_text(part: exp.Expr) -> bool:
    return isinstance(part, exp.Literal) and bool(part.is_string)


def name_of(part: exp.Expr) -> str:
    """What a person calls a column; '' for other expressions."""
    return str(part.meta.get("name", part.name)) if isinstance(part, exp.Column) else ""


def is_id(expr: exp.Expr) -> bool:
    if isinstance(expr, exp.Anonymous) and expr.name in ("MIN", "MAX"):
        expr = expr.expressions[0]
    return isinstance(expr, exp.Column) and bool(expr.meta["is_id"])


def clause_list(node: exp.Expr, name: str) -> list[exp.Expr]:
    clause = node.args.get(name)
    if clause is None:
        return []
    only(clause, "expressions")
    return list(clause.expressions)


def ordered(node: exp.Expr, made: exp.Expr) -> exp.Ordered:
    only(node, "this", "desc", "nulls_first")
    desc = bool(node.args.get("desc"))
    if bool(node.args.get("nulls_first")) == desc:  # sqlglot fills in what MySQL does
        raise refused("NULLS", "is not of MySQL: NULL is the smallest")
    return exp.Ordered(this=made, desc=desc or None, nulls_first=not desc)
