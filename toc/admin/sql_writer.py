"""The statements that databases get, written from trees of `reading`: names are ours, and every text is a
bound value. For people (`--explain`) the texts are written out. For SQLite, MySQL's operators and functions
become those of `lite`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlglot import exp

from toc.admin.sqlite_functions import INTEGER_MAX
from toc.admin.statement_parser import TocMySQL, refused
from toc.admin.syntax_tree import call, is_aggregate, number

_WORD = 9  # digits that MySQL computes at once
_AVERAGE_DIGITS = 4  # more than the sum's: div_precision_increment


def write(tree: exp.Expr, *, sqlite: bool) -> tuple[str, dict[str, object]]:
    """SQL for one kind of server, and the values to bind."""
    tree = translated(tree.copy()) if sqlite else tree.copy()
    values: dict[str, object] = {}
    for literal in list(tree.find_all(exp.Literal)):
        if literal.is_string:
            name = next((n for n, v in values.items() if v == literal.name), f"t{len(values)}")
            values[name] = literal.name
            literal.replace(exp.Placeholder(this=name))
    return tree.sql(dialect=TocMySQL, comments=False, normalize_functions=False), values


def sql_for_display(sql: str, values: Mapping[str, object], *, sqlite: bool) -> str:
    """`sql` with its bound texts written into it. For people to read: it is never sent to a server."""

    def quoted(match: re.Match[str]) -> str:
        text = str(values[match[1]]).replace("'", "''")
        return f"'{text}'" if sqlite else "'" + text.replace("\\", "\\\\") + "'"

    return re.sub(r":(t\d+)\b", quoted, sql)


def rest_of(
    rest: exp.Query, types: Mapping[str, Sequence[str]], *, limit: int, sqlite: bool
) -> tuple[str, dict[str, object]]:
    """The rest of a statement; its leaves are to be bound as JSON. `types`: by leaf, those of its columns."""
    rest = rest.copy()
    if not rest.args.get("limit"):
        rest.set("limit", exp.Limit(expression=exp.Literal.number(limit)))
    _divide(rest, {} if sqlite else types)
    leaves = [
        exp.CTE(this=exp.var(_table(name, of, sqlite=sqlite)), alias=exp.to_identifier(name))
        for name, of in types.items()
    ]
    if sqlite:  # its own passes 64 bits
        for one in list(rest.find_all(exp.Anonymous)):
            if one.name == "SUM" and is_aggregate(one):
                one.set("this", "my_sum")
    own = rest.args.get("with_")
    rest.set("with_", exp.With(expressions=[*leaves, *(own.expressions if own else [])]))
    return write(rest, sqlite=sqlite)


def _divide(rest: exp.Query, types: Mapping[str, Sequence[str]]) -> None:
    """Writes AVERAGE(sum, count), which is shown, and MEAN(sum, count), which is computed with: MySQL does so
    with all digits that it has, and it has them by words of nine."""
    leaves = {table.alias: types.get(table.name, ()) for table in rest.find_all(exp.Table)}
    for one in list(rest.find_all(exp.Anonymous)):
        if one.name not in ("AVERAGE", "MEAN"):
            continue
        total, count = one.expressions
        column = total.expressions[0]
        known = leaves.get(column.table) or ["DOUBLE"] * 99
        decimal = re.fullmatch(r"BIGINT.*|DECIMAL\(65, (\d+)\)", known[int(column.name[1:])])
        if one.name == "AVERAGE" or decimal is None:
            one.replace(exp.Paren(this=exp.Div(this=total, expression=count)))
            continue
        digits = int(decimal[1] or 0)
        behind = -(-digits // _WORD) * _WORD
        behind += -(-max(0, _AVERAGE_DIGITS - (behind - digits)) // _WORD) * _WORD
        wide = exp.Mul(this=total, expression=number(f"1.{'0' * _WORD}"))
        one.replace(call("TRUNCATE", exp.Div(this=wide, expression=count), number(min(behind, 30))))


def _table(name: str, types: Sequence[str], *, sqlite: bool) -> str:
    if sqlite:
        columns = ", ".join(f"json_extract(value, '$[{i}]') AS c{i}" for i, _ in enumerate(types))
        return f"SELECT {columns} FROM json_each(:{name}) LIMIT -1"  # noqa: S608 - made of places
    columns = ", ".join(f"c{i} {type_} PATH '$[{i}]'" for i, type_ in enumerate(types))
    # A LIMIT makes it a table of its own: read once, and not for each row of what it is joined with.
    return f"SELECT * FROM JSON_TABLE(:{name}, '$[*]' COLUMNS ({columns})) AS j LIMIT {2**63}"  # noqa: S608


# ---- for SQLite


def translated(tree: exp.Expr) -> exp.Expr:
    """MySQL's operators and functions as SQLite's, or as these. Changes the tree."""
    for node in reversed(list(tree.walk())):
        made = _translated(node)
        if made is not node:
            node.replace(made)
    return tree


_NATIVE = {"COALESCE": "COALESCE", "NULLIF": "NULLIF", "GREATEST": "MAX", "LEAST": "MIN"}
"""Functions that SQLite has, with the same meaning."""
_OWN = frozenset({
    "COUNT", "SUM", "MIN", "MAX", "AVG", "ROW_NUMBER", "RANK", "DENSE_RANK", "PERCENT_RANK", "CUME_DIST",
    "NTILE", "LAG", "LEAD", "FIRST_VALUE", "LAST_VALUE", "NTH_VALUE", "my_sum",
})  # fmt: skip
_REFUSED = ("JSON_EXTRACT", "JSON_UNQUOTE", "JSON_VALID", "MONTHNAME", "DAYNAME", "WEEK")


def _text(value: str) -> exp.Expr:
    return exp.Literal.string(value)


def _translated(node: exp.Expr) -> exp.Expr:
    made = node
    match node:
        case exp.NullSafeEQ():
            made = exp.Is(this=node.this.copy(), expression=node.expression.copy())
        case exp.Like():
            made = exp.Escape(this=node.copy(), expression=_text("\\"))
        case exp.Div():
            made = exp.Div(this=call("my_float", node.this), expression=node.expression)
        case exp.IntDiv():
            made = call("my_intdiv", node.this, node.expression)
        case exp.Mod():
            made = call("my_mod", node.this, node.expression)
        case exp.RegexpLike():
            raise refused("REGEXP", "is not taken on SQLite, which has none")
        case exp.Literal() if (
            not node.is_string and node.name.isdigit() and int(node.name) > INTEGER_MAX
        ):
            raise refused(node.name, "SQLite has whole numbers up to 2^63-1")
        case exp.Cast() | exp.GroupConcat() | exp.Anonymous():
            made = _CALLED[type(node)](node)
    return made


def _cast(node: exp.Expr) -> exp.Expr:
    sizes = [size.this for size in node.args["to"].expressions]
    return call("my_cast", node.this, _text(node.args["to"].this.name), *sizes)


def _function(node: exp.Expr) -> exp.Expr:
    name, args = node.name, node.expressions
    if name in _OWN or name.startswith("my_"):
        return node
    if name in _REFUSED:
        raise refused(name, "is not taken on SQLite")
    match name, args:
        case "COALESCE", [exp.Expr() as only]:
            return only
        case "DATE_ADD", [base, exp.Interval() as interval]:
            return call("my_shift", base, interval.this, _text(interval.args["unit"].name))
        case "TIMESTAMPDIFF", [unit, start, end]:
            return call("my_span", _text(unit.name), start, end)
    return call(_NATIVE.get(name, f"my_{name.lower()}"), *args)


def _group_concat(node: exp.Expr) -> exp.Expr:
    inner, terms = node.this, []
    if isinstance(inner, exp.Order):
        inner, terms = inner.this, inner.expressions
    distinct = isinstance(inner, exp.Distinct)
    if distinct:
        inner = inner.expressions[0]
    keys = [
        part
        for one in terms
        for part in (one.this, exp.Literal.number(int(bool(one.args.get("desc")))))
    ]
    flag = exp.Literal.number(int(distinct))
    return call("my_group_concat", flag, node.args["separator"], inner, *keys)


_CALLED: Mapping[type[Any], Callable[[exp.Expr], exp.Expr]] = {
    exp.Cast: _cast, exp.GroupConcat: _group_concat, exp.Anonymous: _function,
}  # fmt: skip
