"""The cells of an answer of `toc sql`: as values of Python, and as CSV that no spreadsheet runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any

from toc.admin.expression_parser import ResultColumn
from toc.admin.query_run import QueryResult
from toc.domain.times import iso_utc
from toc.store.column_types import ms_of_sql_time

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that begin a formula in a spreadsheet; the last four are the full-width forms."""


def convert_rows(result: QueryResult) -> list[list[Any]]:
    """The rows, with values of their columns' types."""
    return [
        [
            _convert_column_value(column, value)
            for column, value in zip(result.columns, row, strict=True)
        ]
        for row in result.rows
    ]


def csv_lines(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """The lines of a CSV file, that of the names first, each without its end."""
    head = io.StringIO()
    csv.writer(head, lineterminator="").writerow([_defuse_formula(name) for name in names])
    yield head.getvalue()
    for row in rows:
        yield ",".join(map(_cell_for_csv, row))


def _convert_column_value(column: ResultColumn, value: Any) -> Any:
    """Converts a value to its column's type. SQLite has times as texts, large ids as negative numbers, and
    sums beyond 64 bits as texts.
    """
    if isinstance(value, str) and column.kind in ("time", "date"):
        return datetime.fromisoformat(value) if column.kind == "time" else date.fromisoformat(value)
    if column.is_id and isinstance(value, int) and value < 0:
        return value + 2**64
    return int(value) if column.kind == "number" and isinstance(value, str) else value


def _cell_for_csv(value: Any) -> str:
    """NULL is an empty cell, a text is in quotes, so the empty text is "" (as PostgreSQL writes CSV).

    Python's csv module can write that from 3.12 on only. A text that a spreadsheet would run as a formula
    gets an apostrophe before it.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return '"' + _defuse_formula(value).replace('"', '""') + '"'
    return str(iso_utc(ms_of_sql_time(value)) if isinstance(value, datetime) else value)


def _defuse_formula(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text
