"""`toc reconcile`: finds all disagreements between MySQL and Redis, repairs them if asked to, and reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from toc.cli.clients import current_person
from toc.cli.common_options import answering_command
from toc.cli.output import Output
from toc.cli.progress_bar import progress_bar
from toc.reconcile.findings import ReconcileResult
from toc.reconcile.last_result import store_result
from toc.reconcile.reconciliation import Reconciliation
from toc.reconcile.report import report
from toc.reconcile.spark import open_spark_session
from toc.reconcile.task_runner import OnProgress
from toc.reconcile.unfinished_run import open_unfinished_run
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings, load_settings


@answering_command
def reconcile_once(
    output: Output,
    *,
    repair: Annotated[
        bool | None,
        typer.Option(
            "--repair/--dry-run",
            help="Repair disagreements, or only report them (reconcile.repair).",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Spark's master, such as local[4]; 'none': in this process, without Spark.",
        ),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Compare everything, also what an interrupted run has compared."
        ),
    ] = False,
) -> int:
    """Compare the databases with Redis, all of it, and write a report.

    Exits 0 when they agree, 5 when they disagreed and all is repaired, 1 when disagreements are left,
    3 when not everything could be compared (what was compared is repaired).
    """
    settings, clock = load_settings(), SystemClock()
    report.check_report_directory(settings)
    began_s = clock.monotonic_s()
    with (
        open_session_unless_none(settings, master) as session,
        reconcile_progress_bar() as on_progress,
    ):
        start_s = clock.monotonic_s() - began_s
        outcome, where = run_reconciliation(
            settings, session, clock, on_progress, repair=repair, fresh=fresh, start_s=start_s
        )
    output.print_value(
        report.result_as_json(outcome, where), "\n".join(report.result_lines(outcome, where))
    )
    return int(outcome.verdict)


def run_reconciliation(
    settings: Settings,
    session: Any,
    clock: Clock,
    on_progress: OnProgress,
    *,
    repair: bool | None = None,
    fresh: bool = False,
    start_s: float = 0.0,
) -> tuple[ReconcileResult, Path]:
    """Compares, repairs (None: by the settings), stores and reports the result; returns the report too.

    Goes on with a run that was interrupted; fresh: does not.
    """
    repair = settings.reconcile.repair if repair is None else repair
    with open_unfinished_run(settings, clock, repair=repair, fresh=fresh) as unfinished:
        run = Reconciliation(
            settings,
            session,
            repair=repair,
            actor=current_person(),
            clock=clock,
            on_progress=on_progress,
            unfinished=unfinished,
        )
        if start_s:
            run.outcome.seconds["start"] = start_s
        outcome = run.run()
        store_result(outcome, settings, clock)
        where = report.write_report(outcome, settings)
        if unfinished is not None:
            unfinished.delete()
    return outcome, where


def open_session_unless_none(settings: Settings, master: str | None) -> Any:
    """A Spark session, or None for `master` none. Spark's output goes to spark.log in reconcile.directory."""
    if master == "none":
        return nullcontext(None)
    return open_spark_session(settings, master, Path(settings.reconcile.directory) / "spark.log")


@contextmanager
def reconcile_progress_bar() -> Iterator[OnProgress]:
    """A progress bar at a terminal, elsewhere nothing; yields the callback that the run calls."""
    with progress_bar("starting") as show:
        yield lambda phase, done, of: show(done, of, phase)
