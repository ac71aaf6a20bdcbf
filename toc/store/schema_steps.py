"""What a revision is made of: steps, each on one table or view, that look before they act.

    def steps(target):
        yield MakeTable("toc_event", EVENT_SQLITE if target.sqlite else EVENT_MYSQL)
        for table in target.job_tables:
            yield AddColumn(table, "claim_time", "DATETIME(3)")

The same steps are run (`migrating.Online`), written as a script (`migrating.Script`), counted, and
asked what they declare (`drift`): there is no second place that says what a table looks like. MySQL
commits every DDL by itself, so a run can be broken off between any two of them; each act carries the
condition under which there is nothing left to do. What touches a table with jobs names its ALGORITHM,
and its LOCK where the server allows that word: a change that would copy rows or block writes is
refused by the server instead of being made.

MariaDB speaks MySQL here: one text must do for both.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from toc.store.schema import job_table_name

INSTANT = ", ALGORITHM = INSTANT"
REBUILDS = (", ALGORITHM = INPLACE, LOCK = NONE", ", ALGORITHM = INPLACE, LOCK = SHARED")
"""What may be asked for where a server refuses INSTANT: beside writes, or else while writes wait."""

UNION_TERMS_MAX = 256
"""SELECTs in one UNION of a view: SQLite refuses more than 500. Above it, unions of unions."""


@dataclass(frozen=True, slots=True)
class SchemaTarget:
    """The database that a revision is for: its index, its shards, and which SQL it speaks."""

    index: int
    shards: range
    sqlite: bool

    @property
    def job_tables(self) -> list[str]:
        return [job_table_name(shard) for shard in self.shards]


@dataclass(frozen=True, slots=True)
class StepStatement:
    """A statement. `unless`: a condition in SQL; while it holds there is nothing to do.

    None: the statement looks by itself (IF NOT EXISTS, IF EXISTS, OR REPLACE).
    """

    sql: str
    unless: str | None = None


@dataclass(slots=True)
class Shape:
    """A table, or a view, in words that can be compared: of what is declared and of what is found."""

    columns: dict[str, str] = field(default_factory=dict)
    indexes: dict[str, str] = field(default_factory=dict)
    required_columns: set[str] = field(default_factory=set)  # columns that an INSERT must name
    # Triggers, CHECKs and foreign keys: what each is, and its name.
    rules: set[tuple[str, str]] = field(default_factory=set)
    engine: str = ""
    view: str = ""  # of a view: what it stands on
    text: str = ""  # of a view: its SELECT, normalised
    security: str = "INVOKER"  # of a view: whose rights it runs with


Shapes = dict[str, Shape]


class SchemaStep(Protocol):
    """One table's or view's part of a revision."""

    @property
    def table(self) -> str: ...
    @property
    def is_view(self) -> bool: ...
    def up(self, *, sqlite: bool) -> list[StepStatement]: ...
    def down(self, *, sqlite: bool) -> list[StepStatement]: ...
    def declare(self, shapes: Shapes, *, sqlite: bool) -> None: ...
    def is_done(self, found: Shapes) -> bool: ...


Steps = Callable[[SchemaTarget], Iterable[SchemaStep]]


@dataclass(frozen=True, slots=True)
class MakeTable:
    """A table with all its indexes, or not at all.

    `sql` is its CREATE TABLE IF NOT EXISTS; `indexes` are SQLite's CREATE INDEX IF NOT EXISTS. A table
    that `holds_jobs` is dropped only when it is empty (I1).
    """

    table: str
    sql: str
    indexes: Sequence[str] = ()
    holds_jobs: bool = False
    is_view: bool = False

    def up(self, *, sqlite: bool) -> list[StepStatement]:
        return [StepStatement(statement.strip()) for statement in (self.sql, *self.indexes)]

    def down(self, *, sqlite: bool) -> list[StepStatement]:
        return [StepStatement(f"DROP TABLE IF EXISTS {self.table}")]

    def declare(self, shapes: Shapes, *, sqlite: bool) -> None:
        shapes[self.table] = parse_table(self.sql, self.indexes, sqlite=sqlite)

    def is_done(self, found: Shapes) -> bool:
        return self.table in found


@dataclass(frozen=True, slots=True)
class AddColumn:
    """A column at the end of a table. `definition`: its type and whatever else, without a comma.

    INSTANT changes the table's description only. With it MySQL does not let LOCK be said: nothing is
    locked but the description, for a moment. (MariaDB can do it because 0001 stores `live_key` there: it
    refuses INSTANT on tables with an index on a virtual column.)
    """

    table: str
    column: str
    definition: str
    is_view: bool = False

    def up(self, *, sqlite: bool) -> list[StepStatement]:
        change = f"ADD COLUMN {self.column} {self.definition}"
        return [
            _alter_table(
                self.table, change, has_column(self.table, self.column, sqlite=sqlite), sqlite
            )
        ]

    def down(self, *, sqlite: bool) -> list[StepStatement]:
        gone = f"NOT {has_column(self.table, self.column, sqlite=sqlite)}"
        return [_alter_table(self.table, f"DROP COLUMN {self.column}", gone, sqlite)]

    def declare(self, shapes: Shapes, *, sqlite: bool) -> None:
        shapes[self.table].columns[self.column] = parse_column(self.definition)

    def is_done(self, found: Shapes) -> bool:
        return self.table in found and self.column in found[self.table].columns


@dataclass(frozen=True, slots=True)
class AddIndex:
    """An index, built in place beside reads and writes."""

    table: str
    index: str
    columns: Sequence[str]
    unique: bool = False
    is_view: bool = False

    def up(self, *, sqlite: bool) -> list[StepStatement]:
        unique, columns = "UNIQUE " if self.unique else "", ", ".join(self.columns)
        if sqlite:
            on = f"{self._name(sqlite=sqlite)} ON {self.table} ({columns})"
            return [StepStatement(f"CREATE {unique}INDEX IF NOT EXISTS {on}")]
        change = f"ADD {unique}INDEX {self.index} ({columns}), ALGORITHM = INPLACE, LOCK = NONE"
        return [
            StepStatement(f"ALTER TABLE {self.table} {change}", has_index(self.table, self.index))
        ]

    def down(self, *, sqlite: bool) -> list[StepStatement]:
        if sqlite:
            return [StepStatement(f"DROP INDEX IF EXISTS {self._name(sqlite=sqlite)}")]
        change = f"DROP INDEX {self.index}, ALGORITHM = INPLACE, LOCK = NONE"
        gone = f"NOT {has_index(self.table, self.index)}"
        return [StepStatement(f"ALTER TABLE {self.table} {change}", gone)]

    def declare(self, shapes: Shapes, *, sqlite: bool) -> None:
        name = self._name(sqlite=sqlite)
        shapes[self.table].indexes[name] = describe_index(self.columns, unique=self.unique)

    def is_done(self, found: Shapes) -> bool:
        names = found[self.table].indexes if self.table in found else {}
        return self.index in names or self._name(sqlite=True) in names

    def _name(self, *, sqlite: bool) -> str:
        return f"{self.index}_{self.table}" if sqlite else self.index  # SQLite's are the database's


@dataclass(frozen=True, slots=True)
class MakeView:
    """A view, for reading. It runs with the rights of the account that reads it, and grants none."""

    table: str
    columns: Sequence[str]
    select: str
    is_view: bool = True

    def up(self, *, sqlite: bool) -> list[StepStatement]:
        if sqlite:
            made = StepStatement(f"CREATE VIEW {self.table} AS {self.select}")
            return [StepStatement(f"DROP VIEW IF EXISTS {self.table}"), made]
        return [
            StepStatement(
                f"CREATE OR REPLACE SQL SECURITY INVOKER VIEW {self.table} AS {self.select}"
            )
        ]

    def down(self, *, sqlite: bool) -> list[StepStatement]:
        return [StepStatement(f"DROP VIEW IF EXISTS {self.table}")]

    def declare(self, shapes: Shapes, *, sqlite: bool) -> None:
        columns = dict.fromkeys(self.columns, "")
        tables = tables_of_select(self.select)
        shapes[self.table] = Shape(columns, view=tables, text=normalised_select(self.select))

    def is_done(self, found: Shapes) -> bool:
        return self.table in found


@dataclass(frozen=True, slots=True)
class InverseStep:
    """The inverse of a step: what a revision of phase post removes, and its downgrade makes again.

    Not for a table that holds jobs.
    """

    step: SchemaStep

    @property
    def table(self) -> str:
        return self.step.table

    @property
    def is_view(self) -> bool:
        return self.step.is_view

    def up(self, *, sqlite: bool) -> list[StepStatement]:
        return self.step.down(sqlite=sqlite)

    def down(self, *, sqlite: bool) -> list[StepStatement]:
        return self.step.up(sqlite=sqlite)

    def declare(self, shapes: Shapes, *, sqlite: bool) -> None:
        with_it, without = Shapes(), shapes.get(self.table)
        if isinstance(self.step, MakeTable | MakeView) or without is None:
            shapes.pop(self.table, None)
            return
        with_it[self.table] = Shape()
        self.step.declare(with_it, sqlite=sqlite)
        for name in with_it[self.table].columns:
            without.columns.pop(name, None)
        for name in with_it[self.table].indexes:
            without.indexes.pop(name, None)

    def is_done(self, found: Shapes) -> bool:
        return not self.step.is_done(found)


def union_all(selects: Sequence[str], columns: Sequence[str]) -> str:
    """One SELECT of some columns over all of some that have them, in as many levels as it takes."""
    parts = list(selects)
    while len(parts) > UNION_TERMS_MAX:
        groups = [parts[at : at + UNION_TERMS_MAX] for at in range(0, len(parts), UNION_TERMS_MAX)]
        parts = [
            f"SELECT {', '.join(f'u{number}.{column}' for column in columns)} "
            f"FROM (\n{_union(group)}\n) AS u{number}"
            for number, group in enumerate(groups)
        ]
    return _union(parts)


def _union(parts: Iterable[str]) -> str:
    return "\nUNION ALL ".join(parts)


def _alter_table(table: str, change: str, unless: str, sqlite: bool) -> StepStatement:
    return StepStatement(f"ALTER TABLE {table} {change}{'' if sqlite else INSTANT}", unless)


# ---- conditions: names come from the revisions, never from outside


def has_column(table: str, column: str, *, sqlite: bool) -> str:
    """A condition in SQL: whether a table has a column."""
    if sqlite:
        return f"EXISTS (SELECT 1 FROM pragma_table_xinfo('{table}') WHERE name = '{column}')"
    where = f"{_where_table(table)} AND COLUMN_NAME = '{column}'"
    return f"EXISTS (SELECT 1 FROM information_schema.COLUMNS WHERE {where})"


def has_index(table: str, index: str) -> str:
    """A condition in MySQL's SQL: whether a table has an index."""
    where = f"{_where_table(table)} AND INDEX_NAME = '{index}'"
    return f"EXISTS (SELECT 1 FROM information_schema.STATISTICS WHERE {where})"


def _where_table(table: str) -> str:
    return f"TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}'"


# ---- what a CREATE TABLE declares


def parse_table(sql: str, indexes: Iterable[str] = (), *, sqlite: bool) -> Shape:
    """What a CREATE TABLE of a revision says, and SQLite's CREATE INDEX statements beside it."""
    shape = Shape(engine="" if sqlite else _first_group(r"ENGINE\s*=\s*(\w+)", sql))
    for item in _split_items(sql[sql.index("(") + 1 : sql.rindex(")")]):
        index = re.match(r"(PRIMARY KEY|UNIQUE KEY|KEY)\s*(\w*)\s*\((.*)\)", item)
        if index:
            unique = index[1] != "KEY"
            shape.indexes[index[2] or PRIMARY] = describe_index(index[3].split(","), unique=unique)
            continue
        name, _, definition = item.partition(" ")
        shape.columns[name] = parse_column(definition)
        if "PRIMARY KEY" in definition:
            shape.indexes[PRIMARY] = describe_index([name], unique=True)
        elif re.search(r"\bUNIQUE\b", definition):
            shape.indexes[name_unnamed_index([name])] = describe_index([name], unique=True)
    for statement in indexes:
        made = re.search(
            r"CREATE (UNIQUE )?INDEX (?:IF NOT EXISTS )?(\w+) ON \w+ \((.*)\)", statement
        )
        if made is None:
            raise ValueError(f"not the text of an index: {statement}")
        shape.indexes[made[2]] = describe_index(made[3].split(","), unique=bool(made[1]))
    return shape


PRIMARY = "PRIMARY"


def definitions_of_table(sql: str) -> dict[tuple[str, str], str]:
    """The parts of a server's CREATE TABLE, as they stand there: ("column" or "index", name) -> text."""
    parts: dict[tuple[str, str], str] = {}
    for item in _split_items(sql[sql.index("(") + 1 : sql.rindex(")")]):
        index = re.match(r"(?:PRIMARY KEY|UNIQUE KEY|KEY)\s*(\w*)\s*\(", item)
        if index:
            parts["index", index[1] or PRIMARY] = item
        else:
            parts["column", item.partition(" ")[0]] = item
    return parts


@functools.cache  # all shards have the same ones
def parse_column(definition: str) -> str:
    """A column's definition in the words that `column_shape` makes of the server's."""
    kind = _first_group(r"^\s*(\w+(?:\s*\(\d+\))?(?:\s+UNSIGNED)?)", definition)
    default = re.search(r"DEFAULT\s+(\((?:[^()]|\([^()]*\))*\)|\S+)", definition)
    generated = re.search(r"GENERATED ALWAYS AS\s*\((.*)\)", definition, re.DOTALL)
    return describe_column(
        kind,
        collation=_first_group(r"COLLATE\s+(\w+)", definition),
        nullable="NOT NULL" not in definition,
        default=default[1] if default else "",
        counts="AUTO_INCREMENT" in definition,
        generated=generated[1] if generated else "",
    )


def describe_column(
    kind: str, *, collation: str, nullable: bool, default: str, counts: bool, generated: str
) -> str:
    """A column in words: what must be equal, and nothing that servers print in ways of their own."""
    # A display width says nothing, and MySQL has given it up.
    kind = re.sub(r"\b(\w*int)\s*\(\d+\)", r"\1", " ".join(kind.lower().split()))
    words = [kind, collation, "" if nullable else "not null"]
    words += [
        f"default {_without_quotes(default)}" if default else "",
        "auto_increment" if counts else "",
    ]
    words += [f"as {_without_quotes(generated)}" if generated else ""]
    return " ".join(word for word in words if word)


def describe_index(columns: Iterable[str], *, unique: bool, hidden: bool = False) -> str:
    """An index in words: "unique (biz_id, type_no, live_key)"."""
    listed = ", ".join(column.strip() for column in columns)
    return f"{'unique ' if unique else ''}({listed}){' invisible' if hidden else ''}"


def name_unnamed_index(columns: Iterable[str]) -> str:
    """The name that is given here to what SQLite numbers: the index behind a UNIQUE."""
    return f"unique_{'_'.join(columns)}"


def tables_of_select(select: str) -> str:
    """The tables that a view stands on, in words that say which are missing when it is another one."""
    return " ".join(sorted(set(re.findall(r"\btoc_\w+\b", _unqualified(select)))))


def normalised_select(select: str) -> str:
    """A SELECT without what a server adds when it keeps a view: quotes, brackets, its own aliases."""
    text = re.sub(r"[`\s]+", " ", _unqualified(select).lower().replace("`.`", "."))
    text = re.sub(r"\b(from|join) \(*(toc_\w+) (?:as )?(\w+)", r"\1 \2 \3", text)
    text = re.sub(r"\) (?:as )?(?=u\d+\b)", ") ", text)  # of a union in a union
    text = re.sub(r"\bas \w+", "", text)
    return re.sub(r"_utf8mb[34](?=')|[()\s]", "", text)


def _unqualified(select: str) -> str:
    """Without the database's name, which servers put before a table's."""
    return re.sub(r"`[^`]+`\.(?=`toc_)", "", select)


def _without_quotes(expression: str) -> str:
    """An expression without what servers add when they keep it: quotes, brackets and character sets."""
    text = re.sub(r"\b_\w+(?=\\?')|\bconvert\(|\busing utf8mb4\b", "", expression.lower())
    return re.sub(r"[`()'\"\\\s]", "", text)


def _first_group(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def _split_items(body: str) -> list[str]:
    """What stands between the commas of a CREATE TABLE, each on one line."""
    items, depth, start = [], 0, 0
    for at, letter in enumerate(body):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            items.append(body[start:at])
            start = at + 1
    return [" ".join(item.split()) for item in (*items, body[start:])]
