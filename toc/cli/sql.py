"""`toc sql`: one SELECT over all shards, answered as if there were one table."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from toc.admin.ask import Result, Unanswered, ask
from toc.admin.lite import functions
from toc.admin.pieces import Piece, pieces_of, statements
from toc.admin.query import Output as Column
from toc.admin.query import Plan, plan
from toc.cli.failures import NO, OK, SETTINGS, UNAVAILABLE, USAGE, CommandError, say
from toc.cli.frame import answers
from toc.cli.output import Output, console
from toc.cli.words import iso, shown
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings, load_settings
from toc.store.asking import Asking, Failure, Limits
from toc.store.columns import ms_of_sql_time

STATEMENT_BYTES_MAX = 1_000_000
_PROGRESS_AFTER_S = 1.0
_EXACT_MAX = 2**53  # of whole numbers in a double, which is what most readers of JSON have
_CODES = {
    "down": UNAVAILABLE,
    "refused": SETTINGS,
    "schema": SETTINGS,
    "time": NO,
    "statement": USAGE,
}


@answers
def sql(
    output: Output,
    *,
    statement: Annotated[
        str | None,
        typer.Argument(
            metavar="[SQL]", help="The SELECT; @FILE reads it from a file, - from standard input."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Read the SELECT from a file.")
    ] = None,
    values: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="The value of @NAME: a number, or a text (a number in 'quotes' is one); may be repeated.",
        ),
    ] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Answer as CSV, with a line of names.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Run nothing; print what the shards would be asked.")
    ] = False,
    database: Annotated[
        int | None, typer.Option("--database", min=0, metavar="N", help="Ask only this database.")
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", min=0.1, max=3600, help="Seconds for one shard's statement."),
    ] = 10.0,
    whole_s: Annotated[
        float,
        typer.Option("--whole-timeout", min=0.1, max=86_400, help="Seconds for all together."),
    ] = 300.0,
    rows_max: Annotated[
        int, typer.Option("--limit-rows", min=1, max=100_000, help="At most so many rows.")
    ] = 1000,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=64, help="Connections per database.")
    ] = 4,
    partial: Annotated[
        bool, typer.Option("--partial", help="Answer without the tables that fail, and name them.")
    ] = False,
) -> int:
    """Run one SELECT over all shards, as if they were one table; read-only.

    Tables: toc_jobs, toc_dead_jobs, toc_events, toc_biz_type. In MySQL's dialect, on every engine.
    Exits 1 when something is missing from the answer (--partial) or took too long.
    """
    if as_csv and output.as_json:
        raise CommandError("--csv does not go with --json", USAGE)
    settings = load_settings()
    made = plan(_statement(statement, file), _values(values or []))
    if database is not None and database >= len(settings.databases):
        raise CommandError(f"--database: there are 0 to {len(settings.databases) - 1}", USAGE)
    sqlite = settings.databases[0].startswith("sqlite")
    pieces = pieces_of(made, settings.routing, database, sqlite=sqlite)
    if explain:
        _explain(output, made, pieces, rows_max, sqlite=sqlite)
        return OK
    limits = Limits(timeout_s, whole_s, parallel, settings.connect_timeout_s)
    result = _asked(made, pieces, settings, limits, rows_max=rows_max, partial=partial)
    _print(output, result, as_csv=as_csv)
    if result.more:
        say(f"only the first {rows_max} rows are shown: --limit-rows, or LIMIT in the statement")
    for failure in result.missing:
        say(f"missing: {failure.line}")
    return NO if result.missing else OK


# ---- what comes in


def _statement(given: str | None, file: Path | None) -> str:
    if given is not None and given.startswith("@") and file is None:
        file, given = Path(given[1:]), None
    if (given is None) == (file is None):
        raise CommandError("give a SELECT, or --file FILE, or - for standard input", USAGE)
    if given is not None and given != "-":
        return given
    try:
        with sys.stdin.buffer if file is None else file.open("rb") as source:
            return source.read(STATEMENT_BYTES_MAX).decode()
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}", USAGE) from None
    except UnicodeDecodeError:
        raise CommandError(f"{file or 'standard input'}: is not UTF-8 text", USAGE) from None


def _values(given: Sequence[str]) -> dict[str, str]:
    values = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.isidentifier():
            raise CommandError(f"--set {one}: write --set NAME=VALUE", USAGE)
        values[name] = value
    return values


# ---- asking


def _asked(
    made: Plan,
    pieces: Sequence[Piece],
    settings: Settings,
    limits: Limits,
    *,
    rows_max: int,
    partial: bool,
) -> Result:
    asking = Asking(
        settings.databases, settings.routing, SystemClock(), limits, functions, settings.moving
    )
    try:
        with closing(asking), _progress(len(pieces)) as show:
            return ask(made, pieces, asking, rows_max=rows_max, partial=partial, progress=show)
    except Unanswered as error:
        first = error.failures[0]
        hint = "; --whole-timeout allows more" if "all together" in first.text else ""
        if first.what == "time" and not hint:
            hint = "; --timeout allows more"
        raise CommandError(f"{first.line}{hint}", _CODES[first.what]) from None


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, on a terminal, when it takes long."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.progress import Progress, TaskID  # noqa: PLC0415 - only when it takes long

    progress = Progress(console=console(stderr=True), transient=True)
    began_s, tasks = time.monotonic(), list[TaskID]()

    def show(done: int) -> None:
        if not tasks:
            if time.monotonic() - began_s < _PROGRESS_AFTER_S:
                return
            progress.start()
            tasks.append(progress.add_task("asking tables", total=total))
        progress.update(tasks[0], completed=done)

    try:
        yield show
    finally:
        if tasks:
            progress.stop()


def _explain(
    output: Output, made: Plan, pieces: Sequence[Piece], rows_max: int, *, sqlite: bool
) -> None:
    written = list(statements(made, pieces, rows_max, sqlite=sqlite, bind=False))
    if output.as_json:
        found = [
            {"database": piece.database, "table": piece.table, "sql": text}
            for piece, text, _ in written
        ]
        output.answer({"statements": found}, "")
        return
    for piece, text, _ in written:
        typer.echo(f"-- database {piece.database}, table {piece.table}\n{text};")


# ---- what goes out


def _print(output: Output, result: Result, *, as_csv: bool) -> None:
    columns = result.outputs
    names = [column.name for column in columns]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(
            [_for_csv(c, v) for c, v in zip(columns, row, strict=True)] for row in result.rows
        )
        return
    if output.as_json:
        typer.echo(json.dumps(_document(result), ensure_ascii=False))
        return
    heads = [f">{column.name}" if column.kind == "number" else column.name for column in columns]
    rows = [[_for_people(c, v) for c, v in zip(columns, row, strict=True)] for row in result.rows]
    output.table(None, heads, rows, empty="no rows")


def _document(result: Result) -> dict[str, Any]:
    columns = result.outputs
    return {
        "columns": [column.name for column in columns],
        "rows": [
            {c.name: _for_json(c, v) for c, v in zip(columns, row, strict=True)}
            for row in result.rows
        ],
        "more": result.more,
        "tables_asked": result.asked,
        "missing": [_missing(failure) for failure in result.missing],
    }


def _missing(failure: Failure) -> dict[str, Any]:
    question = failure.question
    return {"database": question.database, "table": question.table, "error": failure.text}


def _value(column: Column, value: Any) -> Any:
    """A value as the column means it: SQLite keeps times as texts, and large ids as negative numbers."""
    if isinstance(value, str) and column.kind in ("time", "date"):
        return datetime.fromisoformat(value) if column.kind == "time" else date.fromisoformat(value)
    if column.is_id and isinstance(value, int) and value < 0:
        return value + 2**64
    return value


def _ms(moment: datetime) -> int:
    return ms_of_sql_time(moment)


def _for_people(column: Column, given: Any) -> str:
    value = _value(column, given)
    if value is None:
        return "NULL"
    return shown(_ms(value)) if isinstance(value, datetime) else str(value)


def _for_csv(column: Column, given: Any) -> Any:
    value = _value(column, given)
    return iso(_ms(value)) if isinstance(value, datetime) else value


def _for_json(column: Column, given: Any) -> Any:
    """Ids are texts, and so is a number that a double would change."""
    value = _value(column, given)
    match value:
        case None | str() | float():
            return value
        case datetime():
            return iso(_ms(value))
        case int():
            return str(value) if column.is_id or abs(value) > _EXACT_MAX else value
        case Decimal():
            if value == value.to_integral_value():
                return int(value) if abs(value) <= _EXACT_MAX else f"{value:f}"
            return float(value) if Decimal(repr(float(value))) == value else f"{value:f}"
    return str(value)
