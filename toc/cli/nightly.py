"""`toc nightly`: fills the analysts' tables, reconciles and archives, one after the other.

All parts share one Spark session, or do their work in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer

from toc.cli.archive import require_archive
from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, SETTINGS, UNAVAILABLE, error_text_and_code
from toc.cli.output import Output, printable_text
from toc.cli.reconcile import open_session_unless_none, reconcile_progress_bar, run_reconciliation
from toc.cli.time_texts import iso_utc
from toc.errors import SettingsError
from toc.node.health import health_of_last_night, health_of_reconciliation
from toc.reconcile.findings import RunVerdict
from toc.reconcile.last_result import store_night
from toc.reconcile.nightly import kill_this_process_when_parent_ends
from toc.reconcile.report import report
from toc.reconcile.task_runner import OnProgress
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings, load_settings
from toc.store.archive_status import ARCHIVED, EVENTS_ARCHIVED, MARKS, read_archive_status
from toc.store.databases import Databases
from toc.store.nightly_status import read_nightly_status
from toc.store.reconcile_status import read_last_reconcile_result

# Exit codes from good to bad; all others are worse.
_GETTING_WORSE = (OK, RunVerdict.REPAIRED, RunVerdict.LEFT, RunVerdict.UNABLE)


@dataclass(slots=True)
class PartResult:
    """What a part came to. lines: for people. seconds, counts: of its phases, for the table `runs`.

    findings: checks of tables that failed.
    """

    code: int
    lines: list[str]
    seconds: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    findings: int = 0


Work = Callable[[], PartResult]


@answering_command
def run_nightly(
    output: Output,
    *,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Spark's master, such as local[4]; 'none': in this process, without Spark.",
        ),
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
    """Fill the tables for analysts, compare the databases with Redis (and repair), archive.

    The leader runs this every night at reconcile.nightly. If one part fails, the others still run.
    Exits with the worst of their codes. With --master none it does all of it in this process; if Spark does
    not start, it does the same, and fails.
    With --status it runs nothing, and exits 1 if the last run is too old, failed, or has left something.
    """
    settings, clock = load_settings(), SystemClock()
    if status:
        return _show_nightly_status(output, settings, clock)
    if parent is not None:
        kill_this_process_when_parent_ends(parent, clock)
    night = _Night(settings, clock, output)
    with ExitStack() as stack:
        on_progress = stack.enter_context(reconcile_progress_bar())
        session = None
        try:
            report.check_report_directory(settings)
            session = stack.enter_context(open_session_unless_none(settings, master))
        except SettingsError as error:
            text = f"spark: {error}"
            night.run_part("spark", lambda: PartResult(SETTINGS, [text]))
        parts: dict[str, Work] = {
            "tables": lambda: _write_tables(session, settings, clock),
            "reconcile": lambda: _reconcile_databases(settings, session, clock, on_progress),
        }
        if settings.reconcile.archive != "none":
            parts["archive"] = lambda: _archive_rows(session, settings, clock)
        for part, work in parts.items():
            night.run_part(part, work)
    return night.end()


class _Night:
    """Runs parts one after the other, and keeps what they came to."""

    def __init__(self, settings: Settings, clock: Clock, output: Output) -> None:
        self._settings, self._clock, self._output = settings, clock, output
        self._began_ms, self._began_s = clock.wall_ms(), clock.monotonic_s()
        self._results: list[dict[str, Any]] = []
        self._phases: list[tuple[str, int, float, PartResult]] = []
        self._findings = 0

    def run_part(self, part: str, work: Work) -> None:
        """Runs a part; an error becomes its result, so that the other parts are still done."""
        began_ms, began_s = self._clock.wall_ms(), self._clock.monotonic_s()
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the other parts are still done
            text, code = error_text_and_code(error)
            result = PartResult(code, [f"{part}: {text}"])
        seconds = self._clock.monotonic_s() - began_s
        self._results.append({"part": part, "code": int(result.code), "lines": result.lines})
        self._phases.append((part, began_ms, seconds, result))
        self._findings += result.findings
        self._print_lines(result.lines)

    def end(self) -> int:
        """Writes the run into `runs` and the databases; returns its exit code."""
        self.run_part("runs", self._write_history)
        code = self._worst_code()
        failed = [
            row["part"] for row in self._results if row["code"] not in {OK, RunVerdict.REPAIRED}
        ]
        store_night(
            self._settings,
            self._clock,
            seconds=self._clock.monotonic_s() - self._began_s,
            code=code,
            failed=failed,
            findings=self._findings,
        )
        if self._output.as_json:
            parts = [row for row in self._results if row["part"] != "runs" or row["code"]]
            self._output.print_value({"code": code, "parts": parts}, "")
        return code

    def _worst_code(self) -> int:
        code: int = max((row["code"] for row in self._results), key=_exit_code_severity)
        return code

    def _write_history(self) -> PartResult:
        from toc.reconcile.tables.run_history import (  # noqa: PLC0415 - an extra
            WHOLE,
            PhaseRecord,
            RunHistory,
        )

        history = RunHistory(self._began_ms)
        for part, began_ms, seconds, result in self._phases:
            note = "; ".join(result.lines) if result.code else ""
            whole = PhaseRecord(part, WHOLE, began_ms, seconds, None, int(result.code), note)
            history.add_part(whole, result.seconds, result.counts)
        seconds = self._clock.monotonic_s() - self._began_s
        night = PhaseRecord(
            "night", WHOLE, self._began_ms, seconds, self._findings, self._worst_code()
        )
        history.write(self._settings, [night])
        return PartResult(OK, [])

    def _print_lines(self, lines: Sequence[str]) -> None:
        if not self._output.as_json:  # printed after each part: a person may be reading the log
            for line in lines:
                typer.echo(printable_text(line))


def _show_nightly_status(output: Output, settings: Settings, clock: Clock) -> int:
    with closing(Databases.from_settings(settings, clock, pool_size=1)) as databases:
        last, now_ms = read_last_reconcile_result(databases), databases[0].now_ms()
        night = read_nightly_status(databases)
        archived = {
            mark: {database.index: read_archive_status(database, mark) for database in databases}
            for mark in MARKS
        }
    health = health_of_reconciliation(settings, last, now_ms)
    night_health = health_of_last_night(settings, night, now_ms)
    has_archive = settings.reconcile.archive != "none"
    lines = ["no reconciliation has run, and none is planned (reconcile.nightly)"]
    if health is not None:
        lines = [f"reconciled: {health.how}" + (f"; {health.means}" if health.means else "")]
    if night_health is not None:
        means = f"; {night_health.means}" if night_health.means else ""
        lines.append(f"last night: {night_health.how}{means}")
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
    states = [one.state for one in (health, night_health) if one is not None]
    state = "degraded" if "degraded" in states else "up"
    output.print_value(
        {
            "state": state,
            "last": None if last is None else asdict(last),
            "night": None if night is None else asdict(night),
            **(until if has_archive else dict.fromkeys(MARKS)),
        },
        "\n".join(lines),
    )
    return OK if state == "up" else NO


def _reconcile_databases(
    settings: Settings, session: Any, clock: Clock, on_progress: OnProgress
) -> PartResult:
    if not settings.has_timer:
        return PartResult(OK, ["reconcile: redis_url is 'none': there is nothing to compare with"])
    report.check_report_directory(settings)  # before the work, not after it
    outcome, where = run_reconciliation(settings, session, clock, on_progress)
    counts = {**outcome.counts, "found": outcome.found.total()}
    return PartResult(
        outcome.verdict, report.result_lines(outcome, where), dict(outcome.seconds), counts
    )


def _write_tables(session: Any, settings: Settings, clock: Clock) -> PartResult:
    from toc.reconcile.archive_maintenance import maintain_tables  # noqa: PLC0415 - an extra
    from toc.reconcile.tables.day_filler import tables_root  # noqa: PLC0415 - too
    from toc.reconcile.tables.nightly_tables import write_analysis_tables  # noqa: PLC0415 - too
    from toc.reconcile.tables.table_specs import ANALYSIS_TABLES  # noqa: PLC0415 - too

    lines: list[str] = []
    result = write_analysis_tables(session, settings, clock, lines.append)
    failed = maintain_tables(tables_root(settings), ANALYSIS_TABLES)
    lines += failed
    code = UNAVAILABLE if result.has_errors or failed else OK if result.is_good else NO
    counts = {
        "days": sum(len(one.days) for one in result.databases),
        "jobs": sum(one.jobs for one in result.databases),
        "live": sum(one.live for one in result.databases),
    }
    return PartResult(code, lines, result.seconds, counts, result.findings)


def _archive_rows(session: Any, settings: Settings, clock: Clock) -> PartResult:
    root = require_archive(settings)
    from toc.reconcile.archive import archive_due_rows  # noqa: PLC0415 - an extra
    from toc.reconcile.archive_maintenance import maintain_tables  # noqa: PLC0415 - too

    lines: list[str] = []
    result = archive_due_rows(session, settings, clock, lines.append)
    failed = maintain_tables(root)
    is_good = result.is_good and not failed
    code = NO if result.has_differences else OK if is_good else UNAVAILABLE
    return PartResult(code, [*lines, *failed], counts={"rows": result.row_count})


def _exit_code_severity(code: int) -> int:
    return _GETTING_WORSE.index(code) if code in _GETTING_WORSE else len(_GETTING_WORSE)
