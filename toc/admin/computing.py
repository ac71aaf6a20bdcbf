"""Expressions of aggregates: computed by one of the servers from merged groups, so that they mean what they
mean there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from toc.admin.expressions import Expr, Operation, Ref
from toc.admin.merge import Row
from toc.admin.query import Groups
from toc.admin.writing import Writer

GROUP_BYTES = 500_000
"""Of merged groups that a server gets at once, to compute with."""

Compute = Callable[[str, dict[str, object]], list[tuple[Any, ...]]]
"""Has a database run a statement with values."""


class Answers:
    """The answer's columns, out of merged groups."""

    def __init__(self, groups: Groups, compute: Compute, *, sqlite: bool) -> None:
        self._groups, self._compute, self._sqlite = groups, compute, sqlite
        self._having: Expr | None = None
        wanted: list[Expr] = list(groups.answers)
        if groups.having is not None:
            self._having = Operation("IS TRUE", (groups.having,))
            wanted.append(self._having)
        self._exprs: list[Expr] = [e for e in dict.fromkeys(wanted) if not isinstance(e, Ref)]

    def rows(self, found: Sequence[Row], digits: Sequence[int | None]) -> list[Row]:
        """A row for each group that HAVING lets pass. `digits`: of the seconds in each of its values."""
        if not self._exprs or not found:
            return [self._row(group, {}) for group in found]
        writer = Writer(sqlite=self._sqlite)
        sql = writer.of_groups(self._exprs, _types_of(found, digits))
        made: list[Row] = []
        for groups, text in _chunks(found, self._sqlite):
            computed = self._compute(sql, writer.values | {"groups": text})
            for place, *values in sorted(computed, key=lambda row: int(row[0])):
                by_expr = dict(zip(self._exprs, values, strict=True))
                if self._having is None or by_expr[self._having]:
                    made.append(self._row(groups[int(place) - 1], by_expr))
        return made

    def _row(self, group: Row, computed: dict[Expr, Any]) -> Row:
        return [
            group[expr.index] if isinstance(expr, Ref) else computed[expr]
            for expr in self._groups.answers
        ]


def _chunks(found: Sequence[Row], sqlite: bool) -> Iterator[tuple[list[Row], str]]:
    """Some groups at a time, and the same as JSON."""
    groups: list[Row] = []
    texts: list[str] = []
    size = 0
    for group in found:
        text = json.dumps([_plain(value, sqlite) for value in group], ensure_ascii=False)
        if groups and size + len(text) > GROUP_BYTES:
            yield groups, f"[{','.join(texts)}]"
            groups, texts, size = [], [], 0
        groups.append(group)
        texts.append(text)
        size += len(text)
    yield groups, f"[{','.join(texts)}]"


def _plain(value: Any, sqlite: bool) -> Any:
    """A value for JSON. A server makes the column's type of a text, exactly; SQLite has no types."""
    if value is None or sqlite or isinstance(value, str):
        return value
    return repr(value) if isinstance(value, float) else str(value)


def _types_of(found: Sequence[Row], digits: Sequence[int | None]) -> list[str]:
    """Of each value, for MySQL and MariaDB."""
    return [_type_of([group[i] for group in found], seconds) for i, seconds in enumerate(digits)]


def _type_of(values: list[Any], seconds: int | None) -> str:
    given = [value for value in values if value is not None]
    kind = type(given[0]) if given else Decimal
    if kind is int and all(-(2**63) <= value < 2**63 for value in given):
        return "BIGINT"
    if kind is float:
        return "DOUBLE"
    if kind is datetime:
        return f"DATETIME({6 if seconds is None else min(seconds, 6)})"
    if kind is date:
        return "DATE"
    if kind is str:
        return "LONGTEXT COLLATE utf8mb4_bin"
    places = [-int(value.as_tuple().exponent) for value in given if isinstance(value, Decimal)]
    return f"DECIMAL(65, {min(max(places, default=0), 30)})"
