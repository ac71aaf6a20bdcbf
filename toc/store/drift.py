"""What is in a database, against what its revisions declare: in a few queries, however many tables.

A fault is what toc's statements, or its speed, rest on: a table, column, index or view that is missing
or differs; and what somebody added that can make the server refuse toc's writes (a NOT NULL column
without a default, a UNIQUE key, a trigger, a CHECK, a foreign key). What else somebody added is a note.

A fault is *silent* when toc would go on and break a promise: two live jobs under one key, an id twice, an
event lost. Processes do not start on it. All others are slow, or fail with an error, table by table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from toc.store.schema_executor import VERSION_TABLE
from toc.store.schema_steps import (
    PRIMARY,
    SchemaStep,
    Shape,
    Shapes,
    describe_column,
    describe_index,
    normalised_select,
    parse_table,
    tables_of_select,
)

VIEW = "VIEW"
UNIQUE = "unique "
HIDDEN = " invisible"
_RAW = {"no_parameters": True}
UNSEEN = "?"  # what a view stands on, when the account may not know


@dataclass(frozen=True, slots=True)
class DriftFinding:
    """One difference of one table or view. `silent`: toc would go on, and break a promise.

    `kind` and `name` say what differs: a column, an index, ...; "" and "": the table as a whole.
    """

    table: str
    text: str
    silent: bool = False
    kind: str = ""
    name: str = ""


def declared_shapes(steps: Iterable[SchemaStep], *, sqlite: bool) -> Shapes:
    """What steps, taken in order from an empty database, leave behind."""
    shapes: Shapes = {}
    for step in steps:
        step.declare(shapes, sqlite=sqlite)
    return shapes


def read_shapes(connection: Connection, *, sqlite: bool) -> Shapes:
    """All tables and views of the database whose names begin with `toc_`."""
    found = _read_shapes_sqlite(connection) if sqlite else _read_shapes_mysql(connection)
    found.pop(VERSION_TABLE, None)
    return found


def compare_shapes(found: Shapes, wanted: Shapes) -> tuple[list[DriftFinding], list[DriftFinding]]:
    """Faults and notes, by table."""
    faults: list[DriftFinding] = []
    notes: list[DriftFinding] = []
    for table in sorted(wanted):
        if table not in found:
            kind = "view" if wanted[table].view else "missing"
            faults.append(
                DriftFinding(table, f"the {_kind_word(wanted[table])} is missing", kind=kind)
            )
        else:
            faults += _differences(table, found[table], wanted[table])
            for finding, breaks_writes in _additions(table, found[table], wanted[table]):
                (faults if breaks_writes else notes).append(finding)
    for table in sorted(found.keys() - wanted.keys()):
        notes.append(
            DriftFinding(table, f"the {_kind_word(found[table])} is not one of toc's here")
        )
    return faults, notes


def _kind_word(shape: Shape) -> str:
    return "view" if shape.view else "table"


def _differences(table: str, found: Shape, wanted: Shape) -> Iterator[DriftFinding]:
    if bool(found.view) != bool(wanted.view):
        yield DriftFinding(
            table, f"it is a {_kind_word(found)}, declared as a {_kind_word(wanted)}", kind="table"
        )
        return
    if wanted.view:
        yield from (
            DriftFinding(table, text, kind="view") for text in _view_differences(found, wanted)
        )
        return
    if found.engine != wanted.engine:
        text = f"its engine is {found.engine}, declared {wanted.engine}"
        yield DriftFinding(table, text, silent=True, kind="engine")
    yield from _part_differences(table, "column", found.columns, wanted.columns)
    yield from _part_differences(table, "index", found.indexes, wanted.indexes)


def _view_differences(found: Shape, wanted: Shape) -> Iterator[str]:
    if not found.columns:
        yield "it cannot be read: something that it stands on is missing"
        return
    for name in wanted.columns:
        if name not in found.columns:
            yield f"column {name} is missing"
    if found.view == UNSEEN:
        return
    if found.view != wanted.view:
        lacking = sorted(set(wanted.view.split()) - set(found.view.split()))
        more = sorted(set(found.view.split()) - set(wanted.view.split()))
        yield "; ".join(
            [f"it leaves out {name}" for name in lacking]
            + [f"it stands on {name}" for name in more]
        )
    elif found.text != wanted.text and set(found.columns) >= set(wanted.columns):
        yield "its SELECT is another one"
    if found.security != "INVOKER":
        yield f"it runs with its maker's rights (SQL SECURITY {found.security}), declared INVOKER"


def _part_differences(
    table: str, what: str, found: Mapping[str, str], wanted: Mapping[str, str]
) -> Iterator[DriftFinding]:
    for name, text in wanted.items():
        there = found.get(name)
        if there == text:
            continue
        said = f"is {there}, declared {text}" if there else "is missing"
        yield DriftFinding(
            table, f"{what} {name} {said}", _is_silent(what, there, text), what, name
        )


def _is_silent(what: str, found: str | None, wanted: str) -> bool:
    """Whether toc's statements would go on without an error, and mean something else."""
    if what == "index":
        return wanted.startswith(UNIQUE) and not _is_equally_unique(found or "", wanted)
    if found is None:  # statements fail
        return False
    # Two jobs under one key, or none: what is generated, and how texts are compared.
    generated = [text.partition(" as ")[2] for text in (found, wanted)]
    counts = ["auto_increment" in text for text in (found, wanted)]
    return (
        generated[0] != generated[1]
        or counts[0] != counts[1]
        or _collation(found) != _collation(wanted)
    )


def _is_equally_unique(found: str, wanted: str) -> bool:
    """Whether an index is unique over the same columns; the optimizer need not see it."""
    return found.removesuffix(HIDDEN) == wanted


def _collation(column: str) -> str:
    return next((word for word in column.split() if word.endswith(("_bin", "_ci", "_cs"))), "")


def _additions(table: str, found: Shape, wanted: Shape) -> Iterator[tuple[DriftFinding, bool]]:
    """What is not toc's, and whether it can make the server refuse toc's writes."""
    if found.view == UNSEEN:
        text = "its SELECT cannot be seen: the account lacks SHOW VIEW"
        yield DriftFinding(table, text, kind="view"), False
    if wanted.view:
        return
    for name in (name for name in found.columns if name not in wanted.columns):
        needed = name in found.required_columns
        more = ", and has no default: each INSERT fails" if needed else ""
        text = f"column {name} is not one of toc's{more}"
        yield DriftFinding(table, text, kind="extra column", name=name), needed
    for name in (name for name in found.indexes if name not in wanted.indexes):
        refuses = _refuses_rows(found.indexes[name], wanted)
        more = ", and is unique: it refuses rows" if refuses else ""
        text = f"index {name} is not one of toc's{more}"
        yield DriftFinding(table, text, kind="extra index", name=name), refuses
    for rule, name in sorted(found.rules - wanted.rules):
        text = f"{rule} {name} is not one of toc's: it can refuse or change rows"
        yield DriftFinding(table, text, kind=rule, name=name), True


def _refuses_rows(index: str, wanted: Shape) -> bool:
    """Unique, and not over columns that hold the primary key: these are unique by themselves."""
    if not index.startswith(UNIQUE):
        return False
    return not _columns_of(wanted.indexes.get(PRIMARY, "?")) <= _columns_of(index)


def _columns_of(index: str) -> set[str]:
    return set(index.partition("(")[2].rpartition(")")[0].split(", "))


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
# Each server runs its own comment. Not SELECT *: a CARDINALITY costs MySQL ten times the rest.
_INDEXES = (
    "SELECT TABLE_NAME, INDEX_NAME, COLUMN_NAME, NON_UNIQUE /*!80000 , IS_VISIBLE */ "
    "/*M!100600 , IGNORED */ FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() "
    "ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX"
)
# Rules of a table that toc makes none of: what they are called, and what they are. MariaDB gives a JSON
# column a CHECK by itself.
_TRIGGERS = (
    "SELECT EVENT_OBJECT_TABLE AS TABLE_NAME, TRIGGER_NAME AS NAME, 'trigger' AS RULE "
    "FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE()"
)
_CHECKS = (
    "SELECT TABLE_NAME, CONSTRAINT_NAME AS NAME, 'CHECK' AS RULE "
    "FROM information_schema.TABLE_CONSTRAINTS AS t WHERE TABLE_SCHEMA = DATABASE() "
    "AND CONSTRAINT_TYPE = 'CHECK' /*!80016 AND ENFORCED = 'YES' */ /*M! AND NOT EXISTS ("
    "SELECT 1 FROM information_schema.CHECK_CONSTRAINTS AS c WHERE "
    "c.CONSTRAINT_SCHEMA = t.TABLE_SCHEMA AND c.TABLE_NAME = t.TABLE_NAME "
    "AND c.CONSTRAINT_NAME = t.CONSTRAINT_NAME AND c.CHECK_CLAUSE LIKE 'json_valid(%') */"
)
_FOREIGN_KEYS = (
    "SELECT TABLE_NAME, CONSTRAINT_NAME AS NAME, 'foreign key' AS RULE "
    "FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE CONSTRAINT_SCHEMA = DATABASE()"
)
_REFERENCES = (
    "SELECT REFERENCED_TABLE_NAME AS TABLE_NAME, CONCAT(TABLE_NAME, '.', CONSTRAINT_NAME) AS NAME, "
    "'foreign key of another table' AS RULE "
    "FROM information_schema.REFERENTIAL_CONSTRAINTS WHERE UNIQUE_CONSTRAINT_SCHEMA = DATABASE()"
)
_RULES = (_TRIGGERS, _CHECKS, _FOREIGN_KEYS, _REFERENCES)
_VIEWS = (
    "SELECT TABLE_NAME, VIEW_DEFINITION, SECURITY_TYPE FROM information_schema.VIEWS "
    "WHERE TABLE_SCHEMA = DATABASE()"
)


def _select_toc_rows(connection: Connection, sql: str) -> Iterator[dict[str, Any]]:
    for row in connection.exec_driver_sql(sql, execution_options=_RAW).mappings():
        named = {str(name).upper(): value for name, value in row.items()}
        if str(named["TABLE_NAME"]).startswith("toc_"):
            yield named


def _read_shapes_mysql(connection: Connection) -> Shapes:
    found: Shapes = {}
    for row in _select_toc_rows(connection, _TABLES):
        is_view = row["TABLE_TYPE"] == VIEW
        found[row["TABLE_NAME"]] = Shape(
            engine="" if is_view else row["ENGINE"] or "none", view=UNSEEN if is_view else ""
        )
    for row in _select_toc_rows(connection, _COLUMNS):
        shape = found.get(row["TABLE_NAME"])
        if shape is not None:  # else it came in between
            shape.columns[row["COLUMN_NAME"]] = "" if shape.view else _describe_row(row)
            if _insert_must_name(row):
                shape.required_columns.add(row["COLUMN_NAME"])
    _read_indexes(connection, found)
    for row in (row for sql in _RULES for row in _select_toc_rows(connection, sql)):
        if row["TABLE_NAME"] in found:
            found[row["TABLE_NAME"]].rules.add((row["RULE"], row["NAME"]))
    for row in _select_toc_rows(connection, _VIEWS):
        shape = found.get(row["TABLE_NAME"])
        if shape is not None:
            definition = row["VIEW_DEFINITION"] or ""
            shape.view = tables_of_select(definition) or UNSEEN
            shape.text = normalised_select(definition)
            shape.security = row["SECURITY_TYPE"]
    return found


def _read_indexes(connection: Connection, found: Shapes) -> None:
    parts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in _select_toc_rows(connection, _INDEXES):
        parts.setdefault((row["TABLE_NAME"], row["INDEX_NAME"]), []).append(row)
    for (table, index), rows in parts.items():
        if table in found:
            columns = [row["COLUMN_NAME"] or "an expression" for row in rows]
            hidden = rows[0].get("IS_VISIBLE") == "NO" or rows[0].get("IGNORED") == "YES"
            unique = not int(rows[0]["NON_UNIQUE"])
            found[table].indexes[index] = describe_index(columns, unique=unique, hidden=hidden)


def _insert_must_name(row: Mapping[str, Any]) -> bool:
    """Whether an INSERT must name the column."""
    given = row["COLUMN_DEFAULT"] is not None or row["GENERATION_EXPRESSION"]
    return row["IS_NULLABLE"] == "NO" and not given and "auto_increment" not in row["EXTRA"].lower()


def _describe_row(row: Mapping[str, Any]) -> str:
    default, extra = row["COLUMN_DEFAULT"], row["EXTRA"].lower()
    return describe_column(
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


def _read_shapes_sqlite(connection: Connection) -> Shapes:
    rows = connection.exec_driver_sql(_OBJECTS).all()
    indexes: dict[str, list[str]] = {}
    for row in rows:
        if row.type == "index":
            indexes.setdefault(row.tbl_name, []).append(row.sql)
    found: Shapes = {}
    for row in rows:
        if row.type == "table":
            found[row.name] = parse_table(row.sql, indexes.get(row.name, ()), sqlite=True)
        elif row.type == "view":
            select = row.sql.partition(" AS ")[2]
            found[row.name] = Shape(
                dict.fromkeys(_columns_of_view(connection, row.name), ""),
                view=tables_of_select(select) or UNSEEN,
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
