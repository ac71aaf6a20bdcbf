"""The steps of a revision: each changes one table or view, and does nothing if that change was made.

    def steps(target):
        yield MakeTable("toc_event", EVENT_SQLITE if target.sqlite else EVENT_MYSQL)
        for table in target.job_tables:
            yield AddColumn(table, "claim_time", "DATETIME(3)")

The same steps are run (`OnlineExecutor`), written as a script (`ScriptExecutor`), counted, and compared
with the tables of a database (`schema_drift`): no other module says what a table looks like. MySQL commits
each DDL statement by itself, so a run can be interrupted between any two of them. Therefore each statement
carries the condition under which there is nothing left to do. An ALTER of a table with jobs names its
ALGORITHM: the server then refuses a change that would copy rows or block writes.

Each statement must have one text that MySQL and MariaDB both accept. A revision that needs another kind of
step (an index, a column that is dropped) adds a class for this kind here; tests/migration/steps.py has
examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from toc.store.schema import job_table_name
from toc.store.table_shapes import Shapes, make_view_shape, parse_column, parse_table

INSTANT = ", ALGORITHM = INSTANT"
REBUILDS = (", ALGORITHM = INPLACE, LOCK = NONE", ", ALGORITHM = INPLACE, LOCK = SHARED")
"""Tried with `--rebuild` after the server has refused INSTANT: beside writes, then while writes wait."""

UNION_TERMS_MAX = 256
"""SELECTs in one UNION of a view: SQLite refuses more than 500. More SELECTs become a union of unions."""


@dataclass(frozen=True, slots=True)
class SchemaTarget:
    """The database that a revision changes: the index, the shards, and whether the server is SQLite."""

    index: int
    shards: range
    sqlite: bool

    @property
    def job_tables(self) -> list[str]:
        return [job_table_name(shard) for shard in self.shards]


@dataclass(frozen=True, slots=True)
class StepStatement:
    """A statement. `unless`: a condition in SQL; if the condition is true, the statement is skipped.

    None: the statement contains the condition itself (IF NOT EXISTS, IF EXISTS, OR REPLACE).
    """

    sql: str
    unless: str | None = None


class SchemaStep(Protocol):
    """The change of one table or view by a revision."""

    @property
    def table(self) -> str: ...
    @property
    def is_view(self) -> bool: ...
    def up_statements(self, *, sqlite: bool) -> list[StepStatement]: ...
    def down_statements(self, *, sqlite: bool) -> list[StepStatement]: ...
    def add_to_shapes(self, shapes: Shapes, *, sqlite: bool) -> None: ...
    def is_applied(self, found: Shapes) -> bool: ...


Steps = Callable[[SchemaTarget], Iterable[SchemaStep]]


@dataclass(frozen=True, slots=True)
class MakeTable:
    """Creates a table with all its indexes.

    `sql` is its CREATE TABLE IF NOT EXISTS; `indexes` are SQLite's CREATE INDEX IF NOT EXISTS. A table
    that `holds_jobs` is dropped only when it is empty (I1).
    """

    table: str
    sql: str
    indexes: Sequence[str] = ()
    holds_jobs: bool = False
    is_view: bool = False

    def up_statements(self, *, sqlite: bool) -> list[StepStatement]:
        return [StepStatement(statement.strip()) for statement in (self.sql, *self.indexes)]

    def down_statements(self, *, sqlite: bool) -> list[StepStatement]:
        return [StepStatement(f"DROP TABLE IF EXISTS {self.table}")]

    def add_to_shapes(self, shapes: Shapes, *, sqlite: bool) -> None:
        shapes[self.table] = parse_table(self.sql, self.indexes, sqlite=sqlite)

    def is_applied(self, found: Shapes) -> bool:
        return self.table in found


@dataclass(frozen=True, slots=True)
class MakeView:
    """Creates a view, which runs with the rights of the account that reads it."""

    table: str
    columns: Sequence[str]
    select: str
    is_view: bool = True

    def up_statements(self, *, sqlite: bool) -> list[StepStatement]:
        if sqlite:
            made = StepStatement(f"CREATE VIEW {self.table} AS {self.select}")
            return [*self.down_statements(sqlite=True), made]
        head = f"CREATE OR REPLACE SQL SECURITY INVOKER VIEW {self.table}"
        return [StepStatement(f"{head} AS {self.select}")]

    def down_statements(self, *, sqlite: bool) -> list[StepStatement]:
        return [StepStatement(f"DROP VIEW IF EXISTS {self.table}")]

    def add_to_shapes(self, shapes: Shapes, *, sqlite: bool) -> None:
        shapes[self.table] = make_view_shape(self.columns, self.select)

    def is_applied(self, found: Shapes) -> bool:
        return self.table in found


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Adds a column at the end of a table.

    `definition`: what follows the column's name: type, collation and default (no comma at its end).

    INSTANT changes only the description of the table, which is locked for a moment; MySQL allows no LOCK
    beside it. MariaDB refuses INSTANT beside an index on a virtual column: 0001 stores `live_key` there.
    """

    table: str
    column: str
    definition: str
    is_view: bool = False

    def up_statements(self, *, sqlite: bool) -> list[StepStatement]:
        change = f"ADD COLUMN {self.column} {self.definition}"
        return [
            self._alter_table_statement(
                change, has_column_condition(self.table, self.column, sqlite=sqlite), sqlite
            )
        ]

    def down_statements(self, *, sqlite: bool) -> list[StepStatement]:
        gone = f"NOT {has_column_condition(self.table, self.column, sqlite=sqlite)}"
        return [self._alter_table_statement(f"DROP COLUMN {self.column}", gone, sqlite)]

    def add_to_shapes(self, shapes: Shapes, *, sqlite: bool) -> None:
        shape = shapes[self.table]
        shape.columns[self.column] = parse_column(self.definition)
        shape.definitions["column", self.column] = f"{self.column} {self.definition}"

    def is_applied(self, found: Shapes) -> bool:
        return self.table in found and self.column in found[self.table].columns

    def _alter_table_statement(self, change: str, unless: str, sqlite: bool) -> StepStatement:
        return StepStatement(
            f"ALTER TABLE {self.table} {change}{'' if sqlite else INSTANT}", unless
        )


def has_column_condition(table: str, column: str, *, sqlite: bool) -> str:
    """A condition in SQL: whether a table has a column. The names come from revisions, never from outside."""
    if sqlite:
        return f"EXISTS (SELECT 1 FROM pragma_table_xinfo('{table}') WHERE name = '{column}')"
    return (
        "EXISTS (SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() "
        f"AND TABLE_NAME = '{table}' AND COLUMN_NAME = '{column}')"
    )


def union_all(selects: Sequence[str], columns: Sequence[str]) -> str:
    """One SELECT of `columns` over all `selects`, with as many levels of UNION ALL as needed."""
    parts = list(selects)
    while len(parts) > UNION_TERMS_MAX:
        groups = [parts[at : at + UNION_TERMS_MAX] for at in range(0, len(parts), UNION_TERMS_MAX)]
        parts = [
            f"SELECT {', '.join(f'u{number}.{column}' for column in columns)} "
            f"FROM (\n{_join_with_union(group)}\n) AS u{number}"
            for number, group in enumerate(groups)
        ]
    return _join_with_union(parts)


def _join_with_union(parts: Iterable[str]) -> str:
    return "\nUNION ALL ".join(parts)
