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
    """Prints the answer of a command, as JSON or for people."""

    as_json: bool

    def print_value(self, value: object, text: str) -> None:
        """Prints a short answer: `value` as JSON, or `text`."""
        typer.echo(one_line_json(value) if self.as_json else printable_text(text))

    def print_table(
        self,
        value: object,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        empty: str,
        last: str = "",
    ) -> None:
        """Prints `value` as JSON, or a table and below the table `last`; `empty` where there are no rows.

        A column whose name begins with ">" is set to the right.
        """
        if self.as_json:
            typer.echo(one_line_json(value))
            return
        cells = [[printable_text(cell) for cell in row] for row in rows]
        if cells:
            _print_fitted_table(columns, cells)
        else:
            typer.echo(printable_text(empty))
        if last:
            typer.echo(printable_text(last))


def printable_text(value: object) -> str:
    """The value as text without terminal control characters: for texts that toc did not write."""
    return text_escaping.escape_control_chars(str(value))


def one_line_json(value: object) -> str:
    """A JSON document on one line, without terminal control characters."""
    return text_escaping.escape_json_document(json.dumps(value, ensure_ascii=False))


def make_console(*, stderr: bool = False) -> Console:
    """A rich console; 250 columns wide if its stream is no terminal."""
    from rich.console import Console  # noqa: PLC0415 - quick start

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _PIPE_COLUMNS)


def _print_fitted_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table if its words fit side by side, else row by row: an id is never split."""
    screen = make_console()
    names = [column.removeprefix(">") for column in columns]
    widths = _fit_column_widths([names, *rows], screen.width)
    shown = (
        _make_record_text(names, rows)
        if widths is None
        else _make_rich_table(columns, widths, rows)
    )
    with screen.capture() as captured:  # so that `typer.echo`, not rich, meets a broken pipe
        screen.print(shown, soft_wrap=widths is None)
    typer.echo(captured.get(), nl=False)


def _fit_column_widths(rows: Sequence[Sequence[str]], width: int) -> list[int] | None:
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


def _make_rich_table(
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
        table.add_row(*map(_make_cell_text, row))
    return table


def _make_record_text(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Text:
    """The rows as text: a line for each cell that is not empty, and an empty line between rows."""
    from rich.text import Text  # noqa: PLC0415

    indent = max(map(len, names)) + _GAP
    text = Text()
    for row in rows:
        if text:
            text.append("\n")
        for name, cell in zip(names, row, strict=True):
            if cell:
                text.append(f"{name:<{indent}}")
                text.append_text(_make_cell_text(cell.replace("\n", "\n" + " " * indent)))
                text.append("\n")
    text.rstrip()
    return text


def _make_cell_text(text: str) -> Text:
    from rich.text import Text  # noqa: PLC0415

    # Text, not str: rich would take square brackets for its markup.
    return Text(text, style=_STYLES.get(text, ""))
