"""The rows that shards sent for a table query, as JSON for the server that runs the final query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from toc.admin.row_merge import Row

_CHARS_MAX = 512


@dataclass(slots=True)
class JsonTable:
    """Rows of `width` columns. `ids`: the places of columns with ids. `chars`: the size of the JSON."""

    width: int
    ids: frozenset[int]
    sqlite: bool
    chars: int = 0
    _rows: list[tuple[int, list[str]]] = field(default_factory=list)
    _columns: list[_ColumnFacts] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._columns = [_ColumnFacts() for _ in range(self.width)]

    def add(self, place: int, rows: Sequence[Row]) -> None:
        """Adds the rows of a shard. `place`: its place among the shards."""
        for row in rows:
            for facts, value in zip(self._columns, row, strict=True):
                facts.note(value)
        texts = [self._json(row) for row in rows]
        self.chars += sum(map(len, texts))
        self._rows.append((place, texts))

    def _json(self, row: Row) -> str:
        """A row. MySQL and MariaDB make the column's type of a text, exactly; SQLite has no types."""
        return json.dumps(
            [
                value
                if value is None or self.sqlite or isinstance(value, str)
                else repr(value)
                if isinstance(value, float)
                else str(value)
                for value in row
            ],
            ensure_ascii=False,
        )

    def document(self) -> str:
        """All rows, in the order of the shards."""
        return f"[{','.join(text for _, texts in sorted(self._rows) for text in texts)}]"

    def types(self, digits: Sequence[int | None]) -> list[str]:
        """MySQL's and MariaDB's types of the columns. `digits`: of the seconds, as the server declares."""
        seconds = digits or [None] * self.width
        return [
            "BIGINT UNSIGNED" if i in self.ids else facts.type_name(seconds[i])
            for i, facts in enumerate(self._columns)
        ]


@dataclass(slots=True)
class _ColumnFacts:
    """The Python type of a column's values, the most characters or digits after the point, the size."""

    kind: type | None = None
    digits: int = 0
    is_big: bool = False

    def note(self, value: Any) -> None:
        if value is None:
            return
        if self.kind is not float:
            self.kind = type(value)
        if isinstance(value, str):
            self.digits = max(self.digits, len(value))
        elif isinstance(value, Decimal):
            self.digits = max(self.digits, -int(value.as_tuple().exponent))
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            self.is_big = True

    def type_name(self, seconds: int | None) -> str:
        if self.kind is int and not self.is_big:
            return "BIGINT"
        if self.kind is datetime:
            return f"DATETIME({6 if seconds is None else min(seconds, 6)})"
        if self.kind is str:  # a server sorts short texts in less memory
            size = f"VARCHAR({max(self.digits, 1)})" if self.digits <= _CHARS_MAX else "LONGTEXT"
            return f"{size} COLLATE utf8mb4_bin"
        names = {float: "DOUBLE", date: "DATE"}
        return names.get(self.kind or int, f"DECIMAL(65, {min(self.digits, 30)})")
