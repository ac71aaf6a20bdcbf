"""Writes trees of `query_reader` as SQL. All names in them are ours, and all texts become bound values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from sqlglot import exp

from toc.admin.sqlite_dialect import to_sqlite
from toc.admin.statement_parser import TocMySQL
from toc.admin.syntax_tree import is_aggregate


def write_sql(tree: exp.Expr, *, sqlite: bool) -> tuple[str, dict[str, object]]:
    """SQL for one kind of server, and the values to bind."""
    tree = to_sqlite(tree.copy()) if sqlite else tree.copy()
    names: dict[str, str] = {}
    for literal in list(tree.find_all(exp.Literal)):
        if literal.is_string:
            name = names.setdefault(literal.name, f"t{len(names)}")
            literal.replace(exp.Placeholder(this=name))
    sql = tree.sql(dialect=TocMySQL, comments=False, normalize_functions=False)
    return sql, {name: value for value, name in names.items()}


def sql_for_display(sql: str, values: Mapping[str, object], *, sqlite: bool) -> str:
    """`sql` with its bound texts written into it. For people to read: it is never sent to a server."""

    def quoted(match: re.Match[str]) -> str:
        text = str(values[match[1]]).replace("'", "''")
        return f"'{text}'" if sqlite else "'" + text.replace("\\", "\\\\") + "'"

    return re.sub(r":(t\d+)\b", quoted, sql)


def write_final_query(
    final: exp.Query, types: Mapping[str, Sequence[str]], *, limit: int, sqlite: bool
) -> tuple[str, dict[str, object]]:
    """The final query of a plan; the rows of its tables are to be bound as JSON, under the tables' names.

    `types`: for each table those of its columns.
    """
    final = final.copy()
    if not final.args.get("limit"):
        final.set("limit", exp.Limit(expression=exp.Literal.number(limit)))
    if sqlite:  # its SUM fails beyond 64 bits
        for one in list(final.find_all(exp.Anonymous)):
            if one.name == "SUM" and is_aggregate(one):
                one.set("this", "my_sum")
    tables = [
        exp.CTE(this=exp.var(_json_table(name, of, sqlite=sqlite)), alias=exp.to_identifier(name))
        for name, of in types.items()
    ]
    own = final.args.get("with_")
    final.set("with_", exp.With(expressions=[*tables, *(own.expressions if own else [])]))
    return write_sql(final, sqlite=sqlite)


def _json_table(name: str, types: Sequence[str], *, sqlite: bool) -> str:
    if sqlite:
        columns = ", ".join(f"json_extract(value, '$[{i}]') AS c{i}" for i, _ in enumerate(types))
        return f"SELECT {columns} FROM json_each(:{name}) LIMIT -1"  # noqa: S608 - made of places
    columns = ", ".join(f"c{i} {type_} PATH '$[{i}]'" for i, type_ in enumerate(types))
    # A LIMIT makes it a table of its own: read once, and not for each row of what it is joined with.
    return f"SELECT * FROM JSON_TABLE(:{name}, '$[*]' COLUMNS ({columns})) AS j LIMIT {2**63}"  # noqa: S608
