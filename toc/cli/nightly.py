"""`toc nightly`: reconciles, measures lateness and archives, one after the other, in one Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict
from typing import Annotated, Any

import typer

from toc.cli.archive import require_archive
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, UNAVAILABLE, error_text_and_code
from toc.cli.output import Output, printable_text
from toc.cli.reconcile import open_session_unless_none, reconcile_progress_bar, run_reconciliation
from toc.cli.time_texts import iso_utc
from toc.errors import SettingsError
from toc.node.health import health_of_reconciliation
from toc.reconcile.findings import RunVerdict
from toc.reconcile.lateness import write_lateness_tables
from toc.reconcile.nightly import kill_this_process_when_parent_ends
from toc.reconcile.report import report
from toc.reconcile.task_runner import OnProgress
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings, load_settings
from toc.store.archive_status import ARCHIVED, EVENTS_ARCHIVED, MARKS, read_archive_status
from toc.store.database_metadata import DatabaseMetadata
from toc.store.databases import Databases
from toc.store.reconcile_status import read_last_reconcile_result
from toc.store.schema_check import check_databases

# Exit codes from good to bad; all others are worse.
_GETTING_WORSE = (OK, RunVerdict.REPAIRED, RunVerdict.LEFT, RunVerdict.UNABLE)

Work = Callable[[], tuple[int, Iterable[str]]]
"""A part of the nightly run: returns its exit code and its lines."""


@answering_command
def run_nightly(
    output: Output,
    *,
    master: Annotated[
        str | None, typer.Option(metavar="URL", help="Spark's master, such as local[4].")
    ] = None,
    status: Annotated[
        bool,
        typer.Option("--status", help="Only show how the last run ended and what is archived."),
    ] = False,
    parent: Annotated[
        int | None,
        typer.Option(
            hidden=True,
            help="The process id of the node that starts this run, which ends with the node.",
        ),
    ] = None,
) -> int:
    """Compare the databases with Redis (and repair, by reconcile.repair), measure lateness, archive.

    The leader runs this every night at reconcile.nightly. If one part fails, the others still run.
    Exits with the worst of their codes. With --master none it compares and archives in this process, and
    leaves lateness out; if Spark does not start, it does the same, and fails.
    With --status it runs nothing, and exits 1 if the last run is too old, or has left something.
    """
    settings, clock = load_settings(), SystemClock()
    if status:
        return _show_nightly_status(output, settings, clock)
    if parent is not None:
        kill_this_process_when_parent_ends(parent, clock)
    with ExitStack() as stack:
        on_progress = stack.enter_context(reconcile_progress_bar())
        session, no_session = None, None
        try:
            report.check_report_directory(settings)
            session = stack.enter_context(open_session_unless_none(settings, master))
        except SettingsError as error:
            no_session = error

        def measure_lateness() -> tuple[int, Iterable[str]]:
            if no_session is not None:
                raise no_session
            if session is None:
                return OK, ["lateness: left out: it needs Spark, and --master is 'none'"]
            return _measure_lateness(session, settings, clock)

        parts: dict[str, Work] = {
            "reconcile": lambda: _reconcile_databases(settings, session, clock, on_progress),
            "lateness": measure_lateness,
        }
        if settings.reconcile.archive != "none":
            parts["archive"] = lambda: _archive_rows(session, settings, clock)
        results = [_run_nightly_part(part, work, output) for part, work in parts.items()]
    code: int = max((result["code"] for result in results), key=_exit_code_severity)
    if output.as_json:
        output.print_value({"code": code, "parts": results}, "")
    return code


def _show_nightly_status(output: Output, settings: Settings, clock: Clock) -> int:
    with closing(Databases.from_settings(settings, clock, pool_size=1)) as databases:
        last, now_ms = read_last_reconcile_result(databases), databases[0].now_ms()
        archived = {
            mark: {database.index: read_archive_status(database, mark) for database in databases}
            for mark in MARKS
        }
    health = health_of_reconciliation(settings, last, now_ms)
    has_archive = settings.reconcile.archive != "none"
    lines = ["no reconciliation has run, and none is planned (reconcile.nightly)"]
    if health is not None:
        lines = [f"reconciled: {health.how}" + (f"; {health.means}" if health.means else "")]
    if last is not None:
        whole = "never" if last.whole_ms is None else iso_utc(last.whole_ms)
        lines += [
            f"last run: ended {iso_utc(last.ended_ms)}, after {last.seconds:g} s",
            f"disagreements: {last.disagreements}, {last.repaired} repaired",
            f"last run that compared everything: {whole}",
            f"live jobs that no worker will claim: {last.unclaimable}",
        ]
    until = {
        mark: {
            index: None if one is None or not one.until_ms else iso_utc(one.until_ms)
            for index, one in of_databases.items()
        }
        for mark, of_databases in archived.items()
    }
    if has_archive:
        lines += [
            f"database {index}: archived: jobs until {jobs or '-'}, events until {events or '-'}"
            for (index, jobs), events in zip(
                until[ARCHIVED].items(), until[EVENTS_ARCHIVED].values(), strict=True
            )
        ]
    state = "up" if health is None else health.state
    output.print_value(
        {
            "state": state,
            "last": None if last is None else asdict(last),
            **(until if has_archive else dict.fromkeys(MARKS)),
        },
        "\n".join(lines),
    )
    return OK if state == "up" else NO


def _run_nightly_part(part: str, work: Work, output: Output) -> dict[str, Any]:
    try:
        code, found = work()
        lines = list(found)
    except Exception as error:  # noqa: BLE001 - the other parts are still done
        text, code = error_text_and_code(error)
        lines = [f"{part}: {text}"]
    if not output.as_json:  # printed after each part: a person may be reading the log
        for line in lines:
            typer.echo(printable_text(line))
    return {"part": part, "code": int(code), "lines": lines}


def _reconcile_databases(
    settings: Settings, session: Any, clock: Clock, on_progress: OnProgress
) -> tuple[int, Iterable[str]]:
    if not settings.has_timer:
        return OK, ["reconcile: redis_url is 'none': there is nothing to compare with"]
    report.check_report_directory(settings)  # before the work, not after it
    outcome, where = run_reconciliation(settings, session, clock, on_progress)
    return outcome.verdict, report.result_lines(outcome, where)


def _measure_lateness(session: Any, settings: Settings, clock: Clock) -> tuple[int, Iterable[str]]:
    lines: list[str] = []
    with closing(Databases.from_settings(settings, clock, pool_size=1)) as databases:
        # Databases that were set up with other shards would give wrong figures.
        check_databases(databases, DatabaseMetadata(databases), settings.facts)
    result = write_lateness_tables(session, settings, clock, lines.append)
    return (OK if result.is_good else UNAVAILABLE), lines


def _archive_rows(session: Any, settings: Settings, clock: Clock) -> tuple[int, Iterable[str]]:
    root = require_archive(settings)
    from toc.reconcile.archive import archive_due_rows  # noqa: PLC0415 - an extra
    from toc.reconcile.archive_maintenance import maintain_tables  # noqa: PLC0415 - too

    lines: list[str] = []
    result = archive_due_rows(session, settings, clock, lines.append)
    failed = maintain_tables(root)
    is_good = result.is_good and not failed
    code = NO if result.has_differences else OK if is_good else UNAVAILABLE
    return code, [*lines, *failed]


def _exit_code_severity(code: int) -> int:
    return _GETTING_WORSE.index(code) if code in _GETTING_WORSE else len(_GETTING_WORSE)
