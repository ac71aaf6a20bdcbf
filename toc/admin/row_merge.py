"""The rows that shards sent: merged into one order here, or as JSON for the server of the final query.

Here values compare as on the server that sent them: NULL first, texts by their characters; MySQL and
MariaDB ignore spaces at the end of a text (PAD SPACE), SQLite does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from toc.admin.query_plan import QueryPlan

Row = Sequence[Any]
SortKey = Callable[[Any], tuple[int, Any]]

_SPACES = re.compile(" +")
_END, _LAST = "\U00080000", 0x10FFFF
_SLACK = 10_000  # the merge sorts and cuts at twice the wanted rows plus this number
_CHARS_MAX = 512


# ---- merged here


def make_sort_key_function(*, pads: bool) -> SortKey:
    """A function of a value whose results compare as the server compares the values. `pads`: spaces at the
    end are ignored."""

    def sort_key(value: Any) -> tuple[int, Any]:
        if value is None:
            return 0, 0
        if isinstance(value, str):
            return 2, _pad_for_comparison(value) if pads else value
        return 1, value  # SQLite can have numbers and texts in one column

    return sort_key


def _pad_for_comparison(text: str) -> str:
    """A text that compares like `text` followed by endless spaces.

    Each run of spaces becomes a space and a character for its length: long runs come before short ones
    where something greater than a space follows, and after them where something smaller does.
    """
    stripped = text.rstrip(" ")

    def encode_spaces(match: re.Match[str]) -> str:
        length = min(match.end() - match.start(), 0x70000)
        return " " + chr(length if stripped[match.end()] < " " else _LAST - length)

    return f"{_SPACES.sub(encode_spaces, stripped)} {_END}"


@dataclass(slots=True)
class RowMerge:
    """The first `wanted` rows of all shards, in the plan's order.

    Rows that are equal in that order stay in the order of their shards, and as each shard sent them.
    """

    plan: QueryPlan
    wanted: int
    key: SortKey
    _kept: list[tuple[tuple[int, int], Row]] = field(default_factory=list)

    def add_rows(self, place: int, rows: Iterable[Row]) -> None:
        self._kept += (((place, i), row) for i, row in enumerate(rows))
        if len(self._kept) > 2 * self.wanted + _SLACK:
            self.merged_rows()

    def merged_rows(self) -> list[Row]:
        """At most `wanted` rows; all other rows are dropped."""
        kept, key = self._kept, self.key
        kept.sort(key=lambda one: one[0])
        if self.plan.distinct:
            width = len(self.plan.columns)
            first: dict[tuple[Any, ...], tuple[tuple[int, int], Row]] = {}
            for one in kept:
                first.setdefault(tuple(map(key, one[1][:width])), one)
            kept = list(first.values())
        for place, desc in reversed(self.plan.order):
            kept.sort(key=lambda one: key(one[1][place]), reverse=desc)
        self._kept = kept[: self.wanted]
        return [row for _, row in self._kept]


# ---- as JSON


@dataclass(slots=True)
class JsonTable:
    """Rows of `width` columns, as JSON. `ids`: the positions of columns with ids."""

    width: int
    ids: frozenset[int]
    sqlite: bool
    _rows: list[tuple[int, list[str]]] = field(default_factory=list)
    _columns: list[_ColumnType] = field(default_factory=list)
    _digits: Sequence[int | None] = ()

    def __post_init__(self) -> None:
        self._columns = [_ColumnType() for _ in range(self.width)]

    def add_rows(self, place: int, rows: Sequence[Row], digits: Sequence[int | None] = ()) -> int:
        """Adds the rows of a shard. Returns the size of their JSON in characters.

        `place`: the position of this shard among the shards. `digits`: for each column, the digits after
        the second that the server declares.
        """
        self._digits = digits or self._digits
        for row in rows:
            for facts, value in zip(self._columns, row, strict=True):
                facts.include_value(value)
        # MySQL and MariaDB make the column's type of a text, exactly; SQLite has no types.
        values = rows if self.sqlite else [[*map(_text_or_null, row)] for row in rows]
        texts = [json.dumps(row, ensure_ascii=False) for row in values]
        self._rows.append((place, texts))
        return sum(map(len, texts))

    def as_json_array(self) -> str:
        """All rows, in the order of the shards."""
        return f"[{','.join(text for _, texts in sorted(self._rows) for text in texts)}]"

    def column_types(self) -> list[str]:
        """MySQL's and MariaDB's types of the columns."""
        digits = self._digits or [None] * self.width
        return [
            "BIGINT UNSIGNED" if i in self.ids else facts.sql_type(digits[i])
            for i, facts in enumerate(self._columns)
        ]


def _text_or_null(value: Any) -> str | None:
    return None if value is None else str(value)


@dataclass(slots=True)
class _ColumnType:
    """The SQL type that fits all values of a column. `kind`: their Python type; `digits`: the most
    characters, or digits after the point.
    """

    kind: type | None = None
    digits: int = 0
    is_big: bool = False

    def include_value(self, value: Any) -> None:
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

    def sql_type(self, seconds: int | None) -> str:
        if self.kind is int and not self.is_big:
            return "BIGINT"
        if self.kind is datetime:
            return f"DATETIME({6 if seconds is None else min(seconds, 6)})"
        if self.kind is str:  # a server sorts short texts in less memory
            size = f"VARCHAR({max(self.digits, 1)})" if self.digits <= _CHARS_MAX else "LONGTEXT"
            return f"{size} COLLATE utf8mb4_bin"
        names = {float: "DOUBLE", date: "DATE"}
        return names.get(self.kind or int, f"DECIMAL(65, {min(self.digits, 30)})")
