"""What is in a database, against what its revisions declare: in a few queries, however many tables.

A fault is what toc's statements, or its speed, rest on: a table, column, index or view that is missing
or differs. What somebody added (a column, an index, a table whose name begins with `toc_`) is a note.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from toc.store.migrating import VERSION_TABLE
from toc.store.steps import (
    Shape,
    Shapes,
    Step,
    column_shape,
    index_shape,
    normalised_select,
    shape_of_table,
    shape_of_view,
)

VIEW = "VIEW"
UNSEEN = "?"  # what a view stands on, when the account may not know


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about one table or view."""

    table: str
    text: str


def declared(steps: Iterable[Step], *, sqlite: bool) -> Shapes:
    """What steps, taken in order from an empty database, leave behind."""
    shapes: Shapes = {}
    for step in steps:
        step.declare(shapes, sqlite=sqlite)
    return shapes


def look(connection: Connection, *, sqlite: bool) -> Shapes:
    """All tables and views of the database whose names begin with `toc_`."""
    found = _look_sqlite(connection) if sqlite else _look_mysql(connection)
    found.pop(VERSION_TABLE, None)
    return found


def compare(found: Shapes, wanted: Shapes) -> tuple[list[Finding], list[Finding]]:
    """Faults and notes, by table."""
    faults, notes = [], []
    for table in sorted(wanted):
        if table not in found:
            faults.append(Finding(table, f"the {_kind(wanted[table])} is missing"))
        else:
            faults += [Finding(table, text) for text in _differences(found[table], wanted[table])]
            notes += [Finding(table, text) for text in _extras(found[table], wanted[table])]
    for table in sorted(found.keys() - wanted.keys()):
        notes.append(Finding(table, f"the {_kind(found[table])} is not one of toc's here"))
    return faults, notes


def _kind(shape: Shape) -> str:
    return "view" if shape.view else "table"


def _differences(found: Shape, wanted: Shape) -> Iterator[str]:
    if bool(found.view) != bool(wanted.view):
        yield f"it is a {_kind(found)}, declared as a {_kind(wanted)}"
        return
    if wanted.view and not found.columns:
        yield "it cannot be read: something that it stands on is missing"
        return
    if found.engine != wanted.engine:
        yield f"its engine is {found.engine}, declared {wanted.engine}"
    yield from _parts("column", found.columns, wanted.columns)
    yield from _parts("index", found.indexes, wanted.indexes)
    if found.view == UNSEEN:
        return
    if wanted.view and found.view != wanted.view:
        lacking = sorted(set(wanted.view.split()) - set(found.view.split()))
        more = sorted(set(found.view.split()) - set(wanted.view.split()))
        yield "; ".join(
            [f"it leaves out {name}" for name in lacking]
            + [f"it stands on {name}" for name in more]
        )
    elif wanted.view and found.text != wanted.text and set(found.columns) >= set(wanted.columns):
        yield "its SELECT is another one"
    if wanted.view and found.security != "INVOKER":
        yield f"it runs with its maker's rights (SQL SECURITY {found.security}), declared INVOKER"


def _parts(what: str, found: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[str]:
    for name, text in wanted.items():
        if name not in found:
            yield f"{what} {name} is missing"
        elif found[name] != text:
            yield f"{what} {name} is {found[name]}, declared {text}"


def _extras(found: Shape, wanted: Shape) -> Iterator[str]:
    if found.view == UNSEEN:
        yield "its SELECT cannot be seen: the account lacks SHOW VIEW"
    for what, there, known in (
        ("column", found.columns, wanted.columns),
        ("index", found.indexes, wanted.indexes),
    ):
        for name in there:
            if name not in known:
                yield f"{what} {name} is not one of toc's"


# ---- MySQL and MariaDB

# Without LIKE: both would look into every schema of the server for a pattern.
_TABLES = (
    "SELECT TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = DATABASE()"
)
_COLUMNS = (
    "SELECT TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, COLLATION_NAME, IS_NULLABLE, COLUMN_DEFAULT, EXTRA, "
    "GENERATION_EXPRESSION FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() "
    "ORDER BY TABLE_NAME, ORDINAL_POSITION"
)
_INDEXES = (
    "SELECT * FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() "
    "ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX"
)
_VIEWS = (
    "SELECT TABLE_NAME, VIEW_DEFINITION, SECURITY_TYPE FROM information_schema.VIEWS "
    "WHERE TABLE_SCHEMA = DATABASE()"
)


def _rows(connection: Connection, sql: str) -> Iterator[dict[str, Any]]:
    for row in connection.exec_driver_sql(sql).mappings():
        named = {str(name).upper(): value for name, value in row.items()}
        if str(named["TABLE_NAME"]).startswith("toc_"):
            yield named


def _look_mysql(connection: Connection) -> Shapes:
    found: Shapes = {}
    for row in _rows(connection, _TABLES):
        is_view = row["TABLE_TYPE"] == VIEW
        found[row["TABLE_NAME"]] = Shape(
            engine="" if is_view else row["ENGINE"] or "none", view=UNSEEN if is_view else ""
        )
    for row in _rows(connection, _COLUMNS):
        shape = found.get(row["TABLE_NAME"])
        if shape is not None:  # else it came in between
            shape.columns[row["COLUMN_NAME"]] = "" if shape.view else _column_of(row)
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in _rows(connection, _INDEXES):
        parts.setdefault((row["TABLE_NAME"], row["INDEX_NAME"]), []).append(row)
    for (table, index), rows in parts.items():
        if table in found:
            columns = [row["COLUMN_NAME"] or "an expression" for row in rows]
            hidden = rows[0].get("IS_VISIBLE") == "NO" or rows[0].get("IGNORED") == "YES"
            unique = not int(rows[0]["NON_UNIQUE"])
            found[table].indexes[index] = index_shape(columns, unique=unique, hidden=hidden)
    for row in _rows(connection, _VIEWS):
        shape = found.get(row["TABLE_NAME"])
        if shape is not None:
            definition = row["VIEW_DEFINITION"] or ""
            shape.view = shape_of_view(definition) or UNSEEN
            shape.text = normalised_select(definition)
            shape.security = row["SECURITY_TYPE"]
    return found


def _column_of(row: Mapping[str, Any]) -> str:
    default, extra = row["COLUMN_DEFAULT"], row["EXTRA"].lower()
    return column_shape(
        row["COLUMN_TYPE"],
        collation=row["COLLATION_NAME"] or "",
        nullable=row["IS_NULLABLE"] == "YES",
        default="" if default in (None, "NULL") else str(default),  # MariaDB says NULL for none
        counts="auto_increment" in extra,
        generated=row["GENERATION_EXPRESSION"] or "",
    )


# ---- SQLite: it keeps the texts as they were given

_OBJECTS = (
    "SELECT type, name, tbl_name, sql FROM sqlite_master "
    "WHERE tbl_name GLOB 'toc_*' AND sql IS NOT NULL"
)


def _look_sqlite(connection: Connection) -> Shapes:
    rows = connection.exec_driver_sql(_OBJECTS).all()
    indexes: dict[str, list[str]] = {}
    for row in rows:
        if row.type == "index":
            indexes.setdefault(row.tbl_name, []).append(row.sql)
    found: Shapes = {}
    for row in rows:
        if row.type == "table":
            found[row.name] = shape_of_table(row.sql, indexes.get(row.name, ()), sqlite=True)
        elif row.type == "view":
            select = row.sql.partition(" AS ")[2]
            found[row.name] = Shape(
                dict.fromkeys(_columns_of_view(connection, row.name), ""),
                view=shape_of_view(select) or UNSEEN,
                text=normalised_select(select),
            )
    return found


def _columns_of_view(connection: Connection, view: str) -> list[str]:
    quoted = view.replace('"', '""')
    try:
        return [
            column.name for column in connection.exec_driver_sql(f'PRAGMA table_info("{quoted}")')
        ]
    except OperationalError:  # a table of it is missing
        return []
