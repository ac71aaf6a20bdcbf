"""Steps for made-up revisions; no revision of toc needs them yet: an index, and a column that is dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toc.store.schema_steps import AddColumn, StepStatement
from toc.store.table_shapes import Shapes, describe_index


@dataclass(frozen=True, slots=True)
class AddIndex:
    """An index, built in place beside reads and writes."""

    table: str
    index: str
    columns: Sequence[str]
    is_view: bool = False

    def up_statements(self, *, sqlite: bool) -> list[StepStatement]:
        columns = ", ".join(self.columns)
        if sqlite:
            on = f"{self._name(sqlite=sqlite)} ON {self.table} ({columns})"
            return [StepStatement(f"CREATE INDEX IF NOT EXISTS {on}")]
        change = f"ADD INDEX {self.index} ({columns}), ALGORITHM = INPLACE, LOCK = NONE"
        return [StepStatement(f"ALTER TABLE {self.table} {change}", self._exists())]

    def down_statements(self, *, sqlite: bool) -> list[StepStatement]:
        if sqlite:
            return [StepStatement(f"DROP INDEX IF EXISTS {self._name(sqlite=sqlite)}")]
        change = f"DROP INDEX {self.index}, ALGORITHM = INPLACE, LOCK = NONE"
        return [StepStatement(f"ALTER TABLE {self.table} {change}", f"NOT {self._exists()}")]

    def add_to_shapes(self, shapes: Shapes, *, sqlite: bool) -> None:
        name = self._name(sqlite=sqlite)
        shapes[self.table].indexes[name] = describe_index(self.columns, unique=False)

    def is_applied(self, found: Shapes) -> bool:
        names = found[self.table].indexes if self.table in found else {}
        return self.index in names or self._name(sqlite=True) in names

    def _exists(self) -> str:
        return (
            "EXISTS (SELECT 1 FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() "
            f"AND TABLE_NAME = '{self.table}' AND INDEX_NAME = '{self.index}')"
        )

    def _name(self, *, sqlite: bool) -> str:
        return f"{self.index}_{self.table}" if sqlite else self.index  # SQLite's are the database's


@dataclass(frozen=True, slots=True)
class DropColumn:
    """The inverse of `AddColumn`: its downgrade makes the column again."""

    table: str
    column: str
    definition: str
    is_view: bool = False

    def up_statements(self, *, sqlite: bool) -> list[StepStatement]:
        return self._inverse.down_statements(sqlite=sqlite)

    def down_statements(self, *, sqlite: bool) -> list[StepStatement]:
        return self._inverse.up_statements(sqlite=sqlite)

    def add_to_shapes(self, shapes: Shapes, *, sqlite: bool) -> None:
        shapes[self.table].columns.pop(self.column)

    def is_applied(self, found: Shapes) -> bool:
        return not self._inverse.is_applied(found)

    @property
    def _inverse(self) -> AddColumn:
        return AddColumn(self.table, self.column, self.definition)
