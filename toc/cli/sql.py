"""`toc sql`: one SELECT over all shards, answered as if there were one table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from toc.admin.expression_parser import ResultColumn
from toc.admin.query_cells import convert_rows, csv_lines
from toc.admin.query_plan import QueryPlan, plan_query
from toc.admin.query_run import (
    MERGE_BYTES,
    QueryFailed,
    QueryResult,
    QueryRun,
    make_fan_out,
    shard_row_limit,
)
from toc.admin.sql_writer import make_shard_queries, make_sql, sql_for_display
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, SETTINGS, UNAVAILABLE, USAGE, CommandError, print_error_line
from toc.cli.output import Output, one_line_json, printable_text
from toc.cli.progress_bar import progress_bar
from toc.cli.time_texts import iso_utc, time_for_people
from toc.runtime.settings import Settings, load_settings
from toc.store.column_types import ms_of_sql_time
from toc.store.query_fan_out import QueryLimits

STATEMENT_BYTES_MAX = 1_000_000
_PROGRESS_AFTER_S = 1.0
_EXACT_MAX = 2**53  # the largest exact whole number in a double, which most JSON readers use
_CODES = {
    "down": UNAVAILABLE, "refused": SETTINGS, "schema": SETTINGS, "time": NO, "statement": USAGE,
}  # fmt: skip


@answering_command
def run_sql(
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
        bool, typer.Option("--explain", help="Run nothing; print the statements for the shards.")
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
        typer.Option(
            "--whole-timeout", min=0.1, max=86_400, help="Seconds for all statements together."
        ),
    ] = 300.0,
    rows_max: Annotated[
        int, typer.Option("--limit-rows", min=1, max=100_000, help="The most rows to show.")
    ] = 1000,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=64, help="Connections per database.")
    ] = 4,
    limit_mb: Annotated[
        int, typer.Option("--limit-mb", min=1, max=10_000, help="The most MB of rows to read.")
    ] = 64,
    merge_mb: Annotated[
        int,
        typer.Option(
            "--merge-mb",
            min=1,
            max=1000,
            help="The most MB of rows, as JSON, that one server gets to group or join.",
        ),
    ] = MERGE_BYTES // 1_000_000,
    partial: Annotated[
        bool, typer.Option("--partial", help="Answer without the tables that fail, and name them.")
    ] = False,
) -> int:
    """Run one SELECT over all shards, as if they were one table; read-only.

    Tables: toc_jobs, toc_dead_jobs, toc_events, toc_purges, toc_biz_type. In MySQL's dialect, on every
    engine. Exits 1 when something is missing from the answer (--partial) or took too long.
    """
    if as_csv and output.as_json:
        raise CommandError("--csv does not go with --json", USAGE)
    settings = load_settings()
    plan = plan_query(_read_statement(statement, file), _parse_set_options(values or []))
    if database is not None and database >= len(settings.databases):
        raise CommandError(f"--database: there are 0 to {len(settings.databases) - 1}", USAGE)
    if explain:
        _print_plan(output, plan, settings, database, rows_max)
        return OK
    limits = QueryLimits(
        timeout_s, whole_s, parallel, settings.connect_timeout_s, bytes_max=limit_mb * 1_000_000
    )
    options = {"rows_max": rows_max, "database": database, "partial": partial}
    result = _run_query(plan, settings, limits, merge_bytes=merge_mb * 1_000_000, **options)
    _print_result(output, result, as_csv=as_csv)
    if result.more:
        print_error_line(
            f"only the first {rows_max} rows are shown: --limit-rows, or LIMIT in the statement"
        )
    for failure in result.missing:
        print_error_line(f"missing: {failure.description}")
    return NO if result.missing else OK


# ---- input


def _read_statement(given: str | None, file: Path | None) -> str:
    if given is not None and given.startswith("@") and file is None:
        file, given = Path(given[1:]), None
    if (given is None) == (file is None):
        raise CommandError("give a SELECT, or --file FILE, or - for standard input", USAGE)
    if given is not None and given != "-":
        return given
    try:
        with sys.stdin.buffer if file is None else file.open("rb") as source:
            return source.read(STATEMENT_BYTES_MAX).decode("utf-8-sig")
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}", USAGE) from None
    except UnicodeDecodeError:
        raise CommandError(f"{file or 'standard input'}: is not UTF-8 text", USAGE) from None


def _parse_set_options(given: Sequence[str]) -> dict[str, str]:
    values = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.isidentifier():
            raise CommandError(f"--set {one}: write --set NAME=VALUE", USAGE)
        values[name] = value
    return values


# ---- the run


def _run_query(
    plan: QueryPlan, settings: Settings, limits: QueryLimits, **options: Any
) -> QueryResult:
    fan_out = make_fan_out(settings, limits)
    try:
        with closing(fan_out), progress_bar("asking tables", after_s=_PROGRESS_AFTER_S) as show:
            run = QueryRun(plan, settings.routing, fan_out, progress=show, **options)
            return run.run_query()
    except QueryFailed as error:
        first = error.failures[0]
        hint = "; --whole-timeout allows more" if "all queries together" in first.text else ""
        if first.what == "time" and not hint:
            hint = "; --timeout allows more"
        raise CommandError(f"{first.description}{hint}", _CODES[first.what]) from None


def _print_plan(
    output: Output, plan: QueryPlan, settings: Settings, database: int | None, rows_max: int
) -> None:
    """Prints the statements that the shards would get, and the final query."""
    sqlite = settings.databases[0].startswith("sqlite")
    statements = [
        {
            "database": query.database,
            "table": query.table,
            "sql": sql_for_display(query.sql, query.values, sqlite=sqlite),
        }
        for table in plan.tables
        for query in make_shard_queries(
            table,
            settings.routing,
            sqlite=sqlite,
            rows_max=shard_row_limit(plan, table, rows_max),
            database=database,
        )
    ]
    final = ""
    if plan.final is not None:
        final = sql_for_display(*make_sql(plan.final, sqlite=sqlite), sqlite=sqlite)
    if output.as_json:
        output.print_value({"statements": statements, "rest": final}, "")
        return
    for one in statements:
        head = f"-- database {one['database']}, table {one['table']}"
        typer.echo(printable_text(f"{head}\n{one['sql']};"))
    if final:
        tables = ", ".join(f"{table.name}: {table.table}" for table in plan.tables)
        typer.echo(printable_text(f"-- then, on their rows ({tables})\n{final};"))


# ---- output


def _print_result(output: Output, result: QueryResult, *, as_csv: bool) -> None:
    columns = result.columns
    values = convert_rows(result)
    if as_csv:
        _print_csv([column.name for column in columns], values)
    elif output.as_json:
        typer.echo(one_line_json(_result_as_json(result, values)))
    else:
        titles = [f">{one.name}" if one.kind == "number" else one.name for one in columns]
        rows = [[_cell_for_people(value) for value in row] for row in values]
        output.print_table(None, titles, rows, empty="no rows")


def _print_csv(names: list[str], rows: list[list[Any]]) -> None:
    # A terminal would obey control characters; a file or a pipe gets the exact texts.
    safe = printable_text if sys.stdout.isatty() else str
    for line in csv_lines(names, rows):
        sys.stdout.write(safe(line) + "\n")


def _result_as_json(result: QueryResult, rows: list[list[Any]]) -> dict[str, Any]:
    columns = result.columns
    return {
        "columns": [column.name for column in columns],
        "rows": [
            {one.name: _cell_for_json(one, value) for one, value in zip(columns, row, strict=True)}
            for row in rows
        ],
        "more": result.more,
        "tables_asked": result.asked,
        "missing": [
            {"database": one.query.database, "table": one.query.table, "error": one.text}
            for one in result.missing
        ],
    }


def _cell_for_people(value: Any) -> str:
    if value is None:
        return "NULL"
    return time_for_people(ms_of_sql_time(value)) if isinstance(value, datetime) else str(value)


def _cell_for_json(column: ResultColumn, value: Any) -> Any:
    """A cell for JSON: ids are texts, and so is a number that a double would change."""
    match value:
        case None | str() | float():
            return value
        case datetime():
            return iso_utc(ms_of_sql_time(value))
        case int():
            return str(value) if column.is_id or abs(value) > _EXACT_MAX else value
        case Decimal() if value == value.to_integral_value():
            return int(value) if abs(value) <= _EXACT_MAX else f"{value:f}"
        case Decimal():
            return float(value) if Decimal(repr(float(value))) == value else f"{value:f}"
    return str(value)
