"""From a person's text to a `Statement`: sqlglot reads it, and what is not known here is refused by name.

Nothing of the text itself goes to a server: statements are written anew from what was understood
(`writing`), with values bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from toc.admin.expressions import Column, Expr, Number
from toc.admin.grammar import not_taken, only, parsed, shown, too_deep
from toc.admin.refusals import refused
from toc.admin.terms import Terms


@dataclass(frozen=True, slots=True)
class Item:
    """One column of the answer; `expr` None is a star. `name` is the alias, or what was written."""

    expr: Expr | None
    name: str
    has_alias: bool = False


@dataclass(frozen=True, slots=True)
class Statement:
    """A SELECT as it was written: names are not looked up yet, a `Column` may be an alias.

    `order`: expressions, and whether each goes down (DESC).
    """

    table: str
    items: tuple[Item, ...]
    distinct: bool
    where: Expr | None
    group: tuple[Expr, ...]
    having: Expr | None
    order: tuple[tuple[Expr, bool], ...]
    limit: int | None
    offset: int


def read(text: str, values: Mapping[str, str]) -> Statement:
    """Reads one SELECT of MySQL's dialect. `values` are those of its @names. Raises InvalidInput."""
    try:
        return _statement(parsed(text), values)
    except RecursionError:
        raise too_deep(text) from None


def _statement(tree: exp.Expr, values: Mapping[str, str]) -> Statement:
    only(tree, "expressions", "from_", "where", "group", "having", "order", "limit", "offset",
         "distinct")  # fmt: skip
    table, called = _table(tree)
    terms = Terms(called, values)
    statement = Statement(
        table,
        tuple(_item(terms, one) for one in tree.expressions),
        _is_distinct(tree),
        _clause(terms, tree, "where"),
        tuple(terms.read(one) for one in _list(tree, "group")),
        _clause(terms, tree, "having"),
        tuple(_ordered(terms, one) for one in _list(tree, "order")),
        _count(terms, tree, "limit"),
        _count(terms, tree, "offset") or 0,
    )
    unused = values.keys() - terms.used
    if unused:
        raise refused(
            f"@{min(unused)}", "was given a value and is not in the statement", terms.used
        )
    return statement


def _table(tree: exp.Expr) -> tuple[str, str]:
    """The table, and what it is called in the statement; in small letters."""
    clause = tree.args.get("from_")
    if clause is None:
        raise refused("SELECT", "needs a table, as in SELECT ... FROM toc_jobs")
    only(clause, "this")
    table = clause.this
    if not isinstance(table, exp.Table):
        raise not_taken(table)
    if not isinstance(table.this, exp.Identifier):
        raise not_taken(table.this)
    only(table, "this", "alias")
    alias = table.args.get("alias")
    if alias is not None:
        only(alias, "this")
    return table.name.lower(), table.alias_or_name.lower()


def _is_distinct(tree: exp.Expr) -> bool:
    distinct = tree.args.get("distinct")
    if distinct is not None:
        only(distinct)
    return distinct is not None


def _item(terms: Terms, node: exp.Expr) -> Item:
    if isinstance(node, exp.Alias):
        only(node, "this", "alias")
        return Item(terms.read(node.this), node.alias, has_alias=True)
    if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
        terms.check_table(node)
        node = node.this
    if isinstance(node, exp.Star):
        only(node)
        return Item(None, "*")
    expr = terms.read(node)
    return Item(expr, expr.name if isinstance(expr, Column) else shown(node))


def _clause(terms: Terms, tree: exp.Expr, name: str) -> Expr | None:
    clause = tree.args.get(name)
    if clause is None:
        return None
    only(clause, "this")
    return terms.read(clause.this)


def _list(tree: exp.Expr, name: str) -> list[exp.Expr]:
    clause = tree.args.get(name)
    if clause is None:
        return []
    only(clause, "expressions")
    return list(clause.expressions)


def _ordered(terms: Terms, node: exp.Expr) -> tuple[Expr, bool]:
    only(node, "this", "desc", "nulls_first")
    desc = bool(node.args.get("desc"))
    if bool(node.args.get("nulls_first")) == desc:  # sqlglot fills in what MySQL does
        raise refused("NULLS", "is not of MySQL: NULL is the smallest")
    return terms.read(node.this), desc


def _count(terms: Terms, tree: exp.Expr, name: str) -> int | None:
    clause = tree.args.get(name)
    if clause is None:
        return None
    only(clause, "expression")
    value = terms.read(clause.expression)
    if not isinstance(value, Number) or not value.text.isdigit():
        raise refused(shown(clause.expression), f"{name.upper()} takes a whole number")
    return int(value.text)
