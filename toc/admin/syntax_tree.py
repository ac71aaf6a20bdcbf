"""Makes and examines nodes of the tree into which toc translates a statement.

The `meta` of each expression has the type of its value; the `meta` of a column also has the user's name of
the column, and whether its values are ids.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from toc.admin.allowed_functions import AGGREGATES, Kind


def set_kind(node: exp.Expr, kind: Kind) -> exp.Expr:
    """Sets the type of a node's value; returns the node."""
    node.meta["kind"] = kind
    return node


def value_kind(node: exp.Expr) -> Kind:
    kind: Kind = node.meta.get("kind", "any")
    return kind


def walk_without_subqueries(node: exp.Expr) -> Iterator[exp.Expr]:
    """A node and all nodes below it, without those in subqueries."""
    return node.walk(bfs=False, prune=lambda one: one is not node and isinstance(one, exp.Query))


def clause_terms(query: exp.Expr, clause: str) -> list[exp.Expr]:
    """The terms of GROUP BY or ORDER BY."""
    found = query.args.get(clause)
    return [] if found is None else list(found.expressions)


def is_aggregate_call(node: exp.Expr) -> bool:
    if isinstance(node.parent, exp.Window):
        return False
    return isinstance(node, exp.GroupConcat) or (
        isinstance(node, exp.Anonymous) and node.name in AGGREGATES
    )


def has_aggregate(node: exp.Expr) -> bool:
    return any(map(is_aggregate_call, walk_without_subqueries(node)))


def has_window(node: exp.Expr) -> bool:
    return any(isinstance(one, exp.Window) for one in walk_without_subqueries(node))


def parenthesize_operand(node: exp.Expr) -> exp.Expr:
    """The node, in parentheses if the node has operands."""
    has_some = isinstance(node, (exp.Binary, exp.Unary, exp.Between, exp.In))
    return exp.Paren(this=node) if has_some and not isinstance(node, exp.Paren) else node


def make_call(name: str, *args: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=name, expressions=list(args))


def number_literal(value: int | str) -> exp.Expr:
    """A literal number."""
    return set_kind(exp.Literal.number(value), "number")


def text_literal(value: str) -> exp.Expr:
    """A literal text."""
    return set_kind(exp.Literal.string(value), "text")


def make_order_term(value: exp.Expr, *, desc: bool) -> exp.Ordered:
    """A term of ORDER BY. NULL is the smallest value, as it is for MySQL."""
    return exp.Ordered(this=value, desc=desc or None, nulls_first=not desc)


def make_cast(part: exp.Expr, to: str, *sizes: int) -> exp.Cast:
    made = exp.DataType(
        this=exp.DType[to], expressions=[exp.DataTypeParam(this=number_literal(n)) for n in sizes]
    )
    return exp.Cast(this=part, to=made)


def is_text_literal(part: exp.Expr) -> bool:
    """Whether the node is a literal text."""
    return isinstance(part, exp.Literal) and bool(part.is_string)


def literal_whole_number(part: exp.Expr) -> int | None:
    """The value of a literal number without sign and point; None for any other node."""
    is_whole = isinstance(part, exp.Literal) and not part.is_string and part.name.isdigit()
    return int(part.name) if is_whole else None


def column_name(part: exp.Expr) -> str:
    """The user's name of a column; '' for other expressions."""
    return str(part.meta.get("name", part.name)) if isinstance(part, exp.Column) else ""


def is_id_expression(node: exp.Expr) -> bool:
    """Whether the value is a 64-bit id: that of an id column, or the least or greatest of them."""
    if isinstance(node, exp.Anonymous) and node.name in ("MIN", "MAX"):
        node = node.expressions[0]
    return isinstance(node, exp.Column) and bool(node.meta.get("is_id"))
