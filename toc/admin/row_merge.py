"""Merges the rows of many shards into one order, as a server would.

Values compare as on the server that sent them: NULL first, texts by their characters; MySQL and
MariaDB ignore spaces at the end of a text (PAD SPACE), SQLite does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from toc.admin.query_plan import QueryPlan

Row = Sequence[Any]
SortKey = Callable[[Any], tuple[int, Any]]

_RANKS: Sequence[tuple[type, int]] = (
    (bool, 1), (int, 1), (float, 1), (Decimal, 1), (str, 2), (bytes, 3), (datetime, 5), (date, 4),
    (timedelta, 6),
)  # fmt: skip
_SPACES = re.compile(" +")
_END, _LAST = "\U00080000", 0x10FFFF
_SLACK = 10_000  # rows beyond twice the wanted ones before the merge sorts and cuts


def sort_key(*, pads: bool) -> SortKey:
    """A function whose values compare as the server's values do. `pads`: spaces at the end are ignored."""

    def key(value: Any) -> tuple[int, Any]:
        if value is None:
            return 0, 0
        if isinstance(value, str):
            return 2, _padded(value) if pads else value
        return next(rank for kind, rank in _RANKS if isinstance(value, kind)), value

    return key


def _padded(text: str) -> str:
    """A text that compares like `text` followed by endless spaces.

    Each run of spaces becomes a space and a character for its length: long runs come before short ones
    where something greater than a space follows, and after them where something smaller does.
    """
    stripped = text.rstrip(" ")

    def run(match: re.Match[str]) -> str:
        length = min(match.end() - match.start(), 0x70000)
        return " " + chr(length if stripped[match.end()] < " " else _LAST - length)

    return f"{_SPACES.sub(run, stripped)} {_END}"


@dataclass(slots=True)
class RowMerge:
    """The first `wanted` rows of all shards, in the plan's order.

    Rows that are equal in that order stay in the order of their shards, and as each shard sent them.
    """

    plan: QueryPlan
    wanted: int
    key: SortKey
    _kept: list[tuple[tuple[int, int], Row]] = field(default_factory=list)

    def add(self, place: int, rows: Iterable[Row]) -> None:
        self._kept += (((place, i), row) for i, row in enumerate(rows))
        if len(self._kept) > 2 * self.wanted + _SLACK:
            self.rows()

    def rows(self) -> list[Row]:
        """At most `wanted` rows; the others are forgotten."""
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
