"""`toc tables show` and `backfill`: the tables that analysts read."""

from __future__ import annotations

from datetime import date
from typing import Annotated

import typer

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, UNAVAILABLE
from toc.cli.output import Output
from toc.cli.reconcile import open_session_unless_none
from toc.errors import InvalidInput
from toc.runtime.clock import SystemClock
from toc.runtime.settings import load_settings


@answering_command
def show_analysis_tables(output: Output) -> None:
    """Show the tables for analysts: rows, days, files, size and versions."""
    from toc.reconcile.delta_tables import describe_table  # noqa: PLC0415 - an extra
    from toc.reconcile.tables.day_filler import tables_root  # noqa: PLC0415 - too
    from toc.reconcile.tables.table_specs import ANALYSIS_TABLES  # noqa: PLC0415 - too

    root = tables_root(load_settings())
    found = [describe_table(root, spec) for spec in ANALYSIS_TABLES]
    tables = [table for table in found if table is not None]
    output.print_table(
        {"tables": tables},
        ("table", ">rows", "from", "to", ">files", ">bytes", ">version", ">schema"),
        [tuple(table.values()) for table in tables],
        empty="there are no tables yet: `toc nightly` makes them",
    )


@answering_command
def backfill_analysis_tables(
    output: Output,
    *,
    first: Annotated[
        str, typer.Option("--from", metavar="DAY", help="The first day (UTC), as 2026-01-05.")
    ],
    last: Annotated[str, typer.Option("--to", metavar="DAY", help="The last day.")],
    master: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Spark's master, such as local[4]; 'none': in this process, without Spark.",
        ),
    ] = "none",
) -> int:
    """Fill days of lateness, volume and cohorts again, from the archive and the databases.

    Refused, before anything is written, for days whose jobs are neither in the archive nor in the databases.
    Can be repeated, and run beside a nightly run. Exits 1 if a check of a table failed, 3 if a server or a
    store did not answer.
    """
    from toc.reconcile.tables.backfill import backfill_tables  # noqa: PLC0415 - an extra

    settings, lines = load_settings(), list[str]()
    days = _parse_day("from", first), _parse_day("to", last)
    with open_session_unless_none(settings, master) as session:
        result = backfill_tables(session, settings, SystemClock(), *days, lines.append)
    rows = [
        {"database": one.index, "days": len(one.days), "jobs": one.jobs, "findings": one.findings,
         "error": one.error}
        for one in result.databases
    ]  # fmt: skip
    output.print_value({"databases": rows}, "\n".join(lines))
    return UNAVAILABLE if result.has_errors else OK if result.is_good else NO


def _parse_day(field: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidInput(field, text, "must be a day as 2026-01-05") from None
