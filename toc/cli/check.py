"""`toc check`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from toc.cli.common_options import answering_command
from toc.cli.exit_codes import NO, OK, USAGE, CommandError
from toc.cli.output import Output, printable_text
from toc.testing.checker import History
from toc.testing.checker import check as check_all
from toc.testing.final_rows import rows
from toc.testing.judge import Rules
from toc.testing.report import MEANING, Lateness, Report

KEPT_MAX = 100_000


@answering_command
def check_history(
    output: Output,
    *,
    histories: Annotated[
        list[Path], typer.Argument(metavar="HISTORY...", exists=True, dir_okay=False)
    ],
    with_rows: Annotated[
        bool, typer.Option("--rows", help="Read the rows from the databases, now.")
    ] = False,
    tolerance_ms: Annotated[
        float, typer.Option(min=0, metavar="MS", help="How far clocks may differ.")
    ] = 0.0,
    late_ms: Annotated[
        float, typer.Option(min=0, metavar="MS", help="From this delay on a start counts as late.")
    ] = 1000.0,
    limit: Annotated[
        int, typer.Option(min=0, max=KEPT_MAX, help="Show so many problems of each kind.")
    ] = 20,
) -> int:
    """Say whether toc kept its promises, by the journals of clients and handlers.

    Exits 1 when toc did not keep a promise.
    """
    given: list[History] = list(histories)
    if with_rows:
        given.append(rows())
    rules = Rules(tolerance_ms=tolerance_ms, late_ms=late_ms, problems_max=limit)
    try:
        report = check_all(given, rules)
    except ValueError as error:
        raise CommandError(printable_text(error), USAGE) from error
    output.print_value(report.facts(), "\n".join(_make_report_lines(report)))
    return OK if report.holds else NO


def _make_report_lines(report: Report) -> Iterator[str]:
    yield f"{report.entries:,} entries: {report.scheduled:,} jobs, {report.starts:,} starts"
    yield f"{'rows':<14}{_counts_as_text(report.by_status)}"
    yield f"{'duplicates':<14}{_counts_as_text(report.duplicates)}"
    yield f"{'unanswered':<14}{report.unanswered:,} calls: both outcomes are legal"
    yield f"{'lateness':<14}{_lateness_as_text(report.lateness)}"
    for biz_type, late in sorted(report.by_type.items()):
        yield f"  {printable_text(biz_type)}: {_lateness_as_text(late)}"
    yield from _make_fault_lines(report)
    yield ""
    for kind, meaning in MEANING.items():
        yield f"{kind:<14}{report.problems_by_kind[kind]:>10,}  {meaning}"
    yield ""
    yield from (printable_text(problem) for problem in report.problems)
    more = report.problems_by_kind.total() - len(report.problems)
    if more:
        yield f"and {more:,} more: --limit shows them"
    yield "HOLDS" if report.holds else "BROKEN"


def _make_fault_lines(report: Report) -> Iterator[str]:
    if not report.by_fault:
        return
    yield ""
    titles = ("times", "jobs", "broken", "duplicates", "worst ms", "recovery ms")
    yield f"{'fault':<30}" + "".join(f"{title:>13}" for title in titles)
    for name, found in sorted(report.by_fault.items()):
        figures = (found.times, found.jobs, found.problems.total(), found.duplicates)
        yield f"{printable_text(name):<30}" + "".join(
            f"{figure:>13,.0f}" for figure in (*figures, found.worst_ms, found.recovery_ms)
        )


def _counts_as_text(counts: dict[str, int]) -> str:
    found = [f"{n:,} {printable_text(name)}" for name, n in sorted(counts.items()) if n]
    return ", ".join(found) or "none"


def _lateness_as_text(late: Lateness) -> str:
    if not late.count:
        return "no starts"
    shown = {"p50": 50, "p99": 99, "p99.9": 99.9}
    percentiles = [f"{name} {late.percentile(percent):,.1f} ms" for name, percent in shown.items()]
    return ", ".join([*percentiles, f"max {late.max_ms:,.1f} ms"])
