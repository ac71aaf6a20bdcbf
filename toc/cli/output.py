"""Prints the answer of a command: a table for people, or one JSON document, on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import typer

from toc.domain import text_escaping

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_PIPE_COLUMNS = 250  # without a terminal, each row of a table stays on one line
_GAP = 3  # columns of space between two columns of a table
_STYLES = {
    "ok": "green", "warn": "yellow", "fail": "bold red",
    "up": "green", "degraded": "yellow", "down": "bold red",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's answer goes, and in which form."""

    as_json: bool

    def answer(self, value: object, text: str) -> None:
        """A short answer: `value` as JSON, or `text`."""
        typer.echo(json_line(value) if self.as_json else printable(text))

    def table(
        self,
        value: object,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        empty: str,
        last: str = "",
    ) -> None:
        """`value` as JSON, or a table with a line `last` below it; `empty` where there are no rows.

        A column whose name begins with ">" is set to the right.
        """
        if self.as_json:
            typer.echo(json_line(value))
            return
        cells = [[printable(cell) for cell in row] for row in rows]
        if cells:
            _print_table(columns, cells)
        else:
            typer.echo(printable(empty))
        if last:
            typer.echo(printable(last))


def printable(value: object) -> str:
    """The value as text without terminal control characters: for texts that others wrote."""
    return text_escaping.escape_control_chars(str(value))


def json_line(value: object) -> str:
    """A JSON document on one line, without terminal control characters."""
    return text_escaping.escape_json_document(json.dumps(value, ensure_ascii=False))


def make_console(*, stderr: bool = False) -> Console:
    """A rich console; wide if there is no terminal."""
    from rich.console import Console  # noqa: PLC0415 - quick start

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _PIPE_COLUMNS)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table if its words fit side by side, else row by row: an id is never split."""
    screen = make_console()
    names = [column.removeprefix(">") for column in columns]
    widths = _fit_widths([names, *rows], screen.width)
    shown = _print_records(names, rows) if widths is None else _make_table(columns, widths, rows)
    with screen.capture() as captured:  # so that we notice a broken pipe, not rich
        screen.print(shown, soft_wrap=widths is None)
    typer.echo(captured.get(), nl=False)


def _fit_widths(rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """The width of each column. None: the longest words of all columns do not fit into `width`."""
    columns = list(zip(*rows, strict=True))
    whole = [
        max(len(line) for cell in cells for line in [*cell.split("\n"), ""]) for cells in columns
    ]
    words = [max(len(word) for cell in cells for word in [*cell.split(), ""]) for cells in columns]
    left = width - _GAP * (len(columns) - 1) - sum(words)
    if left < 0:
        return None
    # Narrow columns first: width that they do not need is left for the wider ones.
    widths = list(words)
    order = sorted(range(len(columns)), key=lambda at: whole[at] - words[at])
    for position, at in enumerate(order):
        more = min(whole[at] - words[at], left // (len(order) - position))
        widths[at] += more
        left -= more
    return widths


def _make_table(
    columns: Sequence[str], widths: Sequence[int], rows: Sequence[Sequence[str]]
) -> Table:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column, width in zip(columns, widths, strict=True):
        is_right = column.startswith(">")
        justify: Literal["left", "right"] = "right" if is_right else "left"
        table.add_column(column.removeprefix(">"), justify=justify, overflow="fold", width=width)
    for row in rows:
        table.add_row(*map(_make_cell, row))
    return table


def _print_records(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Text:
    """A line for each cell that is not empty, and an empty line between rows."""
    from rich.text import Text  # noqa: PLC0415

    indent = max(map(len, names)) + _GAP
    text = Text()
    for row in rows:
        if text:
            text.append("\n")
        for name, cell in zip(names, row, strict=True):
            if cell:
                text.append(f"{name:<{indent}}")
                text.append_text(_make_cell(cell.replace("\n", "\n" + " " * indent)))
                text.append("\n")
    text.rstrip()
    return text


def _make_cell(text: str) -> Text:
    from rich.text import Text  # noqa: PLC0415

    # Text, not str: rich would take square brackets for its markup.
    return Text(text, style=_STYLES.get(text, ""))
