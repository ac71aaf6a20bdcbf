"""The shapes of tables and views, in words that can be compared: as declared, and as a database has them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from toc.store.schema import VERSION_TABLE

PRIMARY = "PRIMARY"
INVISIBLE = " invisible"  # ends the description of an index that the optimizer does not use
UNKNOWN = "?"
"""The tables of a view whose SELECT the account may not see."""

TEXTS_CACHED = 256

_RAW = {"no_parameters": True}


@dataclass(slots=True)
class TableShape:
    """A table or a view. Columns and indexes have a description each: "int not null", "unique (name)".

    `definitions`: of a declared table, the SQL of each ("column" or "index", name). `required_columns`: those
    that an INSERT must name. `rules`: triggers, CHECKs and foreign keys, as (kind, name). Of a view: `tables`
    are those that it reads, `select` is its normalised SELECT, `security` says with whose rights it runs.
    """

    columns: dict[str, str] = field(default_factory=dict)
    indexes: dict[str, str] = field(default_factory=dict)
    definitions: dict[tuple[str, str], str] = field(default_factory=dict)
    required_columns: set[str] = field(default_factory=set)
    rules: set[tuple[str, str]] = field(default_factory=set)
    engine: str = ""
    tables: str = ""
    select: str = ""
    security: str = "INVOKER"

    @property
    def is_view(self) -> bool:
        return bool(self.tables)


Shapes = dict[str, TableShape]


def read_shapes(connection: Connection, *, sqlite: bool) -> Shapes:
    """All tables and views whose names begin with `toc_`: a few queries, however many there are."""
    found = _read_shapes_sqlite(connection) if sqlite else _read_shapes_mysql(connection)
    found.pop(VERSION_TABLE, None)
    return found


# ---- the shape of a table as a revision declares the table


def parse_table(sql: str, indexes: Iterable[str] = (), *, sqlite: bool) -> TableShape:
    """The shape that a CREATE TABLE makes, and SQLite's CREATE INDEX statements after it."""
    items = _parse_table_items(sql[sql.index("(") + 1 : sql.rindex(")")])
    shape = TableShape(
        dict(items.columns),
        dict(items.indexes),
        dict(items.definitions),
        engine="" if sqlite else _first_match_group(r"ENGINE\s*=\s*(\w+)", sql),
    )
    for statement in indexes:
        made = re.search(
            r"CREATE (UNIQUE )?INDEX (?:IF NOT EXISTS )?(\w+) ON \w+ \((.*)\)", statement
        )
        if made is None:
            raise ValueError(f"not the text of an index: {statement}")
        shape.indexes[made[2]] = describe_index(made[3].split(","), unique=bool(made[1]))
    return shape


@functools.lru_cache(maxsize=TEXTS_CACHED)  # the tables of all shards have the same texts
def _parse_table_items(body: str) -> TableShape:
    """The columns and indexes that stand between the brackets of a CREATE TABLE. Do not change the shape."""
    shape = TableShape()
    for item in _split_table_items(body):
        index = re.match(r"(PRIMARY KEY|UNIQUE KEY|KEY)\s*(\w*)\s*\((.*)\)", item)
        if index:
            name = index[2] or PRIMARY
            shape.indexes[name] = describe_index(index[3].split(","), unique=index[1] != "KEY")
            shape.definitions["index", name] = item
            continue
        name, _, definition = item.partition(" ")
        shape.columns[name] = parse_column(definition)
        shape.definitions["column", name] = item
        if "PRIMARY KEY" in definition:
            shape.indexes[PRIMARY] = describe_index([name], unique=True)
        elif re.search(r"\bUNIQUE\b", definition):  # SQLite only numbers the index
            shape.indexes[f"unique_{name}"] = describe_index([name], unique=True)
    return shape


def make_view_shape(columns: Iterable[str], select: str, security: str = "INVOKER") -> TableShape:
    """The shape of a view; `select` is empty when the account may not see it."""
    tables = " ".join(sorted(set(re.findall(r"\btoc_\w+\b", _remove_database_name(select)))))
    return TableShape(
        dict.fromkeys(columns, ""),
        tables=tables or UNKNOWN,
        select=_normalize_select(select),
        security=security,
    )


@functools.cache
def parse_column(definition: str) -> str:
    """The description of a column from its definition in a CREATE TABLE, without its name."""
    default = re.search(r"DEFAULT\s+(\((?:[^()]|\([^()]*\))*\)|\S+)", definition)
    generated = re.search(r"GENERATED ALWAYS AS\s*\((.*)\)", definition, re.DOTALL)
    return _describe_column(
        _first_match_group(r"^\s*(\w+(?:\s*\(\d+\))?(?:\s+UNSIGNED)?)", definition),
        collation=_first_match_group(r"COLLATE\s+(\w+)", definition),
        nullable="NOT NULL" not in definition,
        default=default[1] if default else "",
        counts="AUTO_INCREMENT" in definition,
        generated=generated[1] if generated else "",
    )


def _describe_column(
    kind: str, *, collation: str, nullable: bool, default: str, counts: bool, generated: str
) -> str:
    """A column in words: all that must be equal, and nothing that each server prints in its own way."""
    # The display width of an integer has no effect, and MySQL does not print it any more.
    kind = re.sub(r"\b(\w*int)\s*\(\d+\)", r"\1", " ".join(kind.lower().split()))
    words = [
        kind,
        collation,
        "" if nullable else "not null",
        f"default {_remove_quotes(default)}" if default else "",
        "auto_increment" if counts else "",
        f"as {_remove_quotes(generated)}" if generated else "",
    ]
    return " ".join(word for word in words if word)


def describe_index(columns: Iterable[str], *, unique: bool, invisible: bool = False) -> str:
    """An index in words: "unique (biz_id, type_no, live_key)"."""
    listed = ", ".join(column.strip() for column in columns)
    return f"{'unique ' if unique else ''}({listed}){INVISIBLE if invisible else ''}"


def _normalize_select(select: str) -> str:
    """A SELECT without the quotes, brackets and aliases that a server adds when it stores a view."""
    text = re.sub(r"[`\s]+", " ", _remove_database_name(select).lower().replace("`.`", "."))
    text = re.sub(r"\b(from|join) \(*(toc_\w+) (?:as )?(\w+)", r"\1 \2 \3", text)
    text = re.sub(r"\) (?:as )?(?=u\d+\b)", ") ", text)  # of a union in a union
    text = re.sub(r"\bas \w+", "", text)
    return re.sub(r"_utf8mb[34](?=')|[()\s]", "", text)


def _remove_database_name(select: str) -> str:
    """A SELECT without the database's name, which servers put before a table's."""
    return re.sub(r"`[^`]+`\.(?=`toc_)", "", select)


def _remove_quotes(expression: str) -> str:
    """An expression without the quotes, brackets and character sets that servers add when they store it."""
    text = re.sub(r"\b_\w+(?=\\?')|\bconvert\(|\busing utf8mb4\b", "", expression.lower())
    return re.sub(r"[`()'\"\\\s]", "", text)


def _first_match_group(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def _split_table_items(body: str) -> list[str]:
    """The columns and indexes of a CREATE TABLE, which commas separate, each on one line."""
    items, depth, start = [], 0, 0
    for at, character in enumerate(body):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            items.append(body[start:at])
            start = at + 1
    return [" ".join(item.split()) for item in (*items, body[start:])]


# ---- the shapes of the tables that MySQL or MariaDB has

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
_TRIGGERS = (
    "SELECT EVENT_OBJECT_TABLE AS TABLE_NAME, TRIGGER_NAME AS NAME, 'trigger' AS RULE "
    "FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE()"
)
# MariaDB gives a JSON column a CHECK by itself.
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
_VIEWS = (
    "SELECT TABLE_NAME, VIEW_DEFINITION, SECURITY_TYPE FROM information_schema.VIEWS "
    "WHERE TABLE_SCHEMA = DATABASE()"
)


def _read_shapes_mysql(connection: Connection) -> Shapes:
    found: Shapes = {}

    def select_known_rows(sql: str) -> Iterator[dict[str, Any]]:
        for row in connection.exec_driver_sql(sql, execution_options=_RAW).mappings():
            named = {str(name).upper(): value for name, value in row.items()}
            if named["TABLE_NAME"] in found:  # the table existed at the first query
                yield named

    for name, kind, engine in connection.exec_driver_sql(_TABLES, execution_options=_RAW):
        if name.startswith("toc_"):
            found[name] = (
                make_view_shape((), "") if kind == "VIEW" else TableShape(engine=engine or "none")
            )
    for row in select_known_rows(_COLUMNS):
        shape = found[row["TABLE_NAME"]]
        shape.columns[row["COLUMN_NAME"]] = "" if shape.is_view else _describe_column_row(row)
        if _needs_value_on_insert(row):
            shape.required_columns.add(row["COLUMN_NAME"])
    _add_index_shapes(found, select_known_rows(_INDEXES))
    for row in chain.from_iterable(
        map(select_known_rows, (_TRIGGERS, _CHECKS, _FOREIGN_KEYS, _REFERENCES))
    ):
        found[row["TABLE_NAME"]].rules.add((row["RULE"], row["NAME"]))
    for row in select_known_rows(_VIEWS):
        name, select_text = row["TABLE_NAME"], row["VIEW_DEFINITION"] or ""
        found[name] = make_view_shape(found[name].columns, select_text, row["SECURITY_TYPE"])
    return found


def _add_index_shapes(found: Shapes, columns: Iterable[Mapping[str, Any]]) -> None:
    """Describes indexes, from a row for each of their columns."""
    indexes: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in columns:
        indexes.setdefault((row["TABLE_NAME"], row["INDEX_NAME"]), []).append(row)
    for (table, index), rows in indexes.items():
        names = [row["COLUMN_NAME"] or "an expression" for row in rows]
        invisible = rows[0].get("IS_VISIBLE") == "NO" or rows[0].get("IGNORED") == "YES"
        unique = not int(rows[0]["NON_UNIQUE"])
        found[table].indexes[index] = describe_index(names, unique=unique, invisible=invisible)


def _needs_value_on_insert(row: Mapping[str, Any]) -> bool:
    given = row["COLUMN_DEFAULT"] is not None or row["GENERATION_EXPRESSION"]
    return row["IS_NULLABLE"] == "NO" and not given and "auto_increment" not in row["EXTRA"].lower()


def _describe_column_row(row: Mapping[str, Any]) -> str:
    default = row["COLUMN_DEFAULT"]
    return _describe_column(
        row["COLUMN_TYPE"],
        collation=row["COLLATION_NAME"] or "",
        nullable=row["IS_NULLABLE"] == "YES",
        default="" if default in (None, "NULL") else str(default),  # MariaDB says NULL for none
        counts="auto_increment" in row["EXTRA"].lower(),
        generated=row["GENERATION_EXPRESSION"] or "",
    )


# ---- the shapes of the tables that SQLite has: SQLite stores the texts as they were given

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
            found[row.name] = make_view_shape(_read_view_columns(connection, row.name), select)
    return found


def _read_view_columns(connection: Connection, view: str) -> list[str]:
    quoted = view.replace('"', '""')
    try:
        return [
            column.name for column in connection.exec_driver_sql(f'PRAGMA table_info("{quoted}")')
        ]
    except OperationalError:  # a table that the view reads is missing
        return []
