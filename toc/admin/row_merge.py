"""Rows of many shards: put in one order as the servers do, or written out for a server that does the rest.

Values compare as on the server that they come from: NULL first, texts by their characters; MySQL and
MariaDB pass over spaces at a text's end (PAD SPACE), SQLite does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from toc.admin.query_plan import Plan

Row = Sequence[Any]
Key = Callable[[Any], tuple[int, Any]]

_RANKS: Sequence[tuple[type, int]] = (
    (bool, 1), (int, 1), (float, 1), (Decimal, 1), (str, 2), (bytes, 3), (datetime, 5), (date, 4),
    (timedelta, 6),
)  # fmt: skip
_SPACES = re.compile(" +")
_CHARS_MAX = 512
_END, _LAST = "\U00080000", 0x10FFFF


def key_of(*, pads: bool) -> Key:
    """A function whose values compare as the server's values do; equal ones are equal."""

    def key(value: Any) -> tuple[int, Any]:
        if value is None:
            return 0, 0
        if isinstance(value, str):
            return 2, _padded(value) if pads else value
        return next(rank for kind, rank in _RANKS if isinstance(value, kind)), value

    return key


def _padded(text: str) -> str:
    """A text that compares as `text` with endless spaces behind it.

    Each run of spaces becomes a space and a character for its length: long runs come before short ones
    where something greater than a space follows, and after them where something smaller does.
    """
    stripped = text.rstrip(" ")

    def run(match: re.Match[str]) -> str:
        length = min(match.end() - match.start(), 0x70000)
        return " " + chr(length if stripped[match.end()] < " " else _LAST - length)

    return f"{_SPACES.sub(run, stripped)} {_END}"


@dataclass(slots=True)
class Rows:
    """The first rows of all, in the plan's order; `wanted` of them are kept.

    Rows that the order does not tell apart stay as their shards are, and as each shard sent them.
    """

    plan: Plan
    wanted: int
    key: Key
    _kept: list[tuple[tuple[int, int], Row]] = field(default_factory=list)

    def add(self, place: int, rows: Iterable[Row]) -> None:
        self._kept += (((place, i), row) for i, row in enumerate(rows))
        if len(self._kept) > 2 * self.wanted + 10_000:
            self._cut()

    def finish(self) -> list[Row]:
        """At most `wanted` rows."""
        self._cut()
        return [row for _, row in self._kept]

    def _cut(self) -> None:
        kept, key = self._kept, self.key
        kept.sort(key=lambda one: one[0])
        if self.plan.distinct:
            width = len(self.plan.outputs)
            first: dict[tuple[Any, ...], tuple[tuple[int, int], Row]] = {}
            for one in kept:
                first.setdefault(tuple(map(key, one[1][:width])), one)
            kept = list(first.values())
        for place, desc in reversed(self.plan.order):
            kept.sort(key=lambda one: key(one[1][place]), reverse=desc)
        self._kept = kept[: self.wanted]


# ---- for a server


def json_of(row: Row, *, sqlite: bool) -> str:
    """A row as JSON. A server makes the column's type of a text, exactly; SQLite has no types."""
    return json.dumps([_plain(value, sqlite) for value in row], ensure_ascii=False)


def _plain(value: Any, sqlite: bool) -> Any:
    if value is None or sqlite or isinstance(value, str):
        return value
    return repr(value) if isinstance(value, float) else str(value)


@dataclass(slots=True)
class Types:
    """MySQL's and MariaDB's types of columns, by the values that were met in them. `ids`: places of ids."""

    width: int
    ids: frozenset[int]
    _kinds: list[type | None] = field(init=False)
    _digits: list[int] = field(init=False)
    _is_big: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self._kinds = [None] * self.width
        self._digits, self._is_big = [0] * self.width, [False] * self.width

    def note(self, row: Row) -> None:
        for i, value in enumerate(row):
            if value is None:
                continue
            if self._kinds[i] is not float:
                self._kinds[i] = type(value)
            if isinstance(value, str):
                self._digits[i] = max(self._digits[i], len(value))
            elif isinstance(value, Decimal):
                self._digits[i] = max(self._digits[i], -int(value.as_tuple().exponent))
            elif isinstance(value, int) and not -(2**63) <= value < 2**63:
                self._is_big[i] = True

    def names(self, digits: Sequence[int | None]) -> list[str]:
        """`digits`: of the seconds in each column, as the server declares them."""
        return [self._name(i, seconds) for i, seconds in enumerate(digits or [None] * self.width)]

    def _name(self, place: int, seconds: int | None) -> str:
        kind = self._kinds[place]
        if place in self.ids:
            return "BIGINT UNSIGNED"
        if kind is int and not self._is_big[place]:
            return "BIGINT"
        if kind is datetime:
            return f"DATETIME({6 if seconds is None else min(seconds, 6)})"
        if kind is str:  # a server sorts short ones in less memory
            short = self._digits[place] <= _CHARS_MAX
            text = f"VARCHAR({max(self._digits[place], 1)})" if short else "LONGTEXT"
            return f"{text} COLLATE utf8mb4_bin"
        names = {float: "DOUBLE", date: "DATE"}
        return names.get(kind or int, f"DECIMAL(65, {min(self._digits[place], 30)})")
