"""What a command answers: a table for people, or one JSON document, on standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

_PIPE_COLUMNS = 250  # where no terminal says how wide it is, a line of a table stays one line


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command's answer goes, and in which form."""

    as_json: bool

    def answer(self, value: object, text: str) -> None:
        """A short answer: `value` as JSON, or `text`."""
        typer.echo(json.dumps(value, ensure_ascii=False) if self.as_json else text)

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
            typer.echo(json.dumps(value, ensure_ascii=False))
            return
        cells = [[printable(cell) for cell in row] for row in rows]
        if cells:
            _print_table(columns, cells)
        else:
            typer.echo(empty)
        if last:
            typer.echo(last)


def printable(value: object) -> str:
    """A value as text that cannot command the terminal: texts of others come here."""
    return "".join(
        ch if ch.isprintable() or ch == "\n" else f"\\x{ord(ch):02x}" for ch in str(value)
    )


def console(*, stderr: bool = False) -> Console:
    """rich's console; wide where there is no terminal."""
    from rich.console import Console  # noqa: PLC0415 - quick start

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else _PIPE_COLUMNS)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(
            column.removeprefix(">"),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        # Text, not str: rich would take square brackets for its markup.
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    screen = console()
    with screen.capture() as captured:  # so that a broken pipe is ours to see, not rich's
        screen.print(table)
    typer.echo(captured.get(), nl=False)


_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
