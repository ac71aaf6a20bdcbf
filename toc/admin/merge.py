"""One answer of many: rows put in one order, groups added up. Exactly, as if there were one table.

Whole numbers and decimals are added exactly; of floats the exact sum is rounded once. Values compare as
on the server that they come from: NULL first, texts by their characters; MySQL and MariaDB pass over spaces
at a text's end (PAD SPACE), SQLite does not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import ROUND_DOWN, ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

from toc.admin.expressions import Aggregate
from toc.admin.query import Final, Groups, Plan

Row = Sequence[Any]
Key = Callable[[Any], tuple[int, Any]]

GROUPS_MAX = 100_000
"""Groups (with those of COUNT(DISTINCT)) that one shard may send."""
PARTIALS_MAX = 2_000_000
"""Groups that all shards together may send: they are kept in memory."""

_DECIMALS = Context(prec=100)
_DIGITS_MAX = 30  # behind the point, in MySQL
_AVG_DIGITS = 4  # more than the sum's: div_precision_increment
_WORD = 9  # digits that MySQL computes at once


class TooManyGroups(Exception):
    """The text says where and what to do."""


# ---- comparing

_RANKS: Sequence[tuple[type, int]] = (
    (bool, 1), (int, 1), (float, 1), (Decimal, 1), (str, 2), (bytes, 3), (datetime, 5), (date, 4),
    (timedelta, 6),
)  # fmt: skip
_SPACES = re.compile(" +")
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


# ---- rows


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


# ---- groups


@dataclass(slots=True)
class _Group:
    first: tuple[int, int]
    """Where it was met first, in the order of shards."""
    keys: Row
    partials: list[Any]
    seen: list[set[tuple[Any, ...]]]


class GroupMerge:
    """Groups of all shards, added up."""

    def __init__(self, plan: Plan, groups: Groups, key: Key) -> None:
        self._groups, self._key = groups, key
        self._folds = [_fold_of(expr, key) for expr in plan.pushed[groups.spread :]]
        self._distinct = [final.places for final in groups.finals if final.how == "distinct"]
        self._found: dict[tuple[Any, ...], _Group] = {}
        self._received = 0

    def add(self, place: int, rows: Sequence[Row]) -> None:
        """The groups of a shard. Raises TooManyGroups."""
        self._received += len(rows)
        if len(rows) > GROUPS_MAX:
            raise TooManyGroups(f"has more than {GROUPS_MAX} groups")
        if self._received > PARTIALS_MAX:
            raise TooManyGroups(f"brings the groups of all shards to more than {PARTIALS_MAX}")
        for i, row in enumerate(rows):
            self._add((place, i), row)

    def _add(self, met: tuple[int, int], row: Row) -> None:
        width, spread = self._groups.keys, self._groups.spread
        group = self._found.get(same := tuple(map(self._key, row[:width])))
        if group is None:
            group = _Group(met, row[:width], list(row[spread:]), [set() for _ in self._distinct])
            self._found[same] = group
        else:
            if met < group.first:
                group.first, group.keys = met, row[:width]
            group.partials = [
                other if mine is None else mine if other is None else fold(mine, other)
                for fold, mine, other in zip(self._folds, group.partials, row[spread:], strict=True)
            ]
        for seen, places in zip(group.seen, self._distinct, strict=True):
            values = [row[place] for place in places]
            if None not in values:
                seen.add(tuple(map(self._key, values)))

    def finish(self) -> list[list[Any]]:
        """Each group's values: its keys, then the finals. In the order of shards."""
        groups = sorted(self._found.values(), key=lambda group: group.first)
        if not groups and self._groups.is_one:
            partials = [self._nothing(fold) for fold in self._folds]
            groups = [_Group((0, 0), (), partials, [set() for _ in self._distinct])]
        return [[*group.keys, *self._finals(group)] for group in groups]

    def _nothing(self, fold: Callable[[Any, Any], Any]) -> Any:
        """What an aggregate of no rows is."""
        return 0 if fold is _count else None

    def _finals(self, group: _Group) -> Iterable[Any]:
        counts = iter(map(len, group.seen))
        for final in self._groups.finals:
            if final.how == "distinct":
                yield next(counts)
            else:
                yield self._final(final, group)

    def _final(self, final: Final, group: _Group) -> Any:
        values = [group.partials[place - self._groups.spread] for place in final.places]
        if final.how in ("average", "mean"):
            return _average(*values, is_exact=final.how == "mean")
        return float(values[0]) if isinstance(values[0], Fraction) else values[0]


def _fold_of(expr: object, key: Key) -> Callable[[Any, Any], Any]:
    name = expr.name if isinstance(expr, Aggregate) else ""
    if name == "COUNT":
        return _count
    if name == "MIN":
        return lambda one, other: min(one, other, key=key)
    if name == "MAX":
        return lambda one, other: max(one, other, key=key)
    return _added


def _count(one: int, other: int) -> int:
    return one + other


def _added(one: Any, other: Any) -> Any:
    if isinstance(one, Decimal) and isinstance(other, Decimal):
        return _DECIMALS.add(one, other)
    return _exact(one) + _exact(other)


def _exact(value: Any) -> Any:
    return Fraction(value) if isinstance(value, float) and math.isfinite(value) else value


def _average(total: Any, count: int, *, is_exact: bool) -> Any:
    """AVG as MySQL shows it; `is_exact`: with the digits that it goes on to compute with."""
    if not count or total is None:
        return None
    if not isinstance(total, Decimal):
        return float(Fraction(total) / count) if math.isfinite(total) else total
    digits = max(0, -int(total.as_tuple().exponent))
    shown = min(digits + _AVG_DIGITS, _DIGITS_MAX)
    if is_exact:
        words = -(-digits // _WORD)
        more = max(0, _AVG_DIGITS - (words * _WORD - digits))
        shown = min(-(-(words * _WORD + more) // _WORD) * _WORD, _DIGITS_MAX)
    quotient = _DECIMALS.divide(total, Decimal(count))
    step = Decimal(1).scaleb(-shown)
    return quotient.quantize(step, ROUND_DOWN if is_exact else ROUND_HALF_UP, _DECIMALS)
