"""The page Reconcile: what the last comparisons of the databases with Redis found, and what to do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import HTMLResponse, Response

from toc.dashboard.render import render
from toc.dashboard.visit import Visit
from toc.domain.disagreements import Disagreement
from toc.errors import TocError
from toc.http.declared import not_allowed
from toc.http.problems import problem_of
from toc.reconcile.report.report import PAGE, list_newest_reports
from toc.reconcile.report.report_texts import (
    KINDS,
    clean_text,
    format_shard_ranges,
    next_steps,
)
from toc.reconcile.report.summary import RunFacts
from toc.store.nightly_status import NightlyStatus, read_nightly_status
from toc.store.reconcile_status import LastReconcileResult, read_last_reconcile_result

REPORTS_MAX = 30
FAILURES_SHOWN_MAX = 5  # of each report
_DATABASE = 0  # it has the last results


@dataclass(frozen=True, slots=True)
class ReportLine:
    """A report as the page shows it.

    found: kind, number, of these repaired. failures: shards, and why they were not compared.
    """

    name: str
    facts: RunFacts
    found: list[tuple[str, int, int]]
    advice: str
    commands: tuple[str, ...]
    failures: list[tuple[str, str]]
    failures_left_out: int


async def show_reconcile(visit: Visit) -> Response:
    """GET /ui/reconcile: it concerns all types."""
    if not visit.may_all("read"):
        raise not_allowed("read")
    backend = visit.backend

    def read_last() -> tuple[LastReconcileResult | None, NightlyStatus | None]:
        return read_last_reconcile_result(backend.databases), read_nightly_status(backend.databases)

    last = night = None
    failure = ""
    try:
        last, night = await backend.calls.run(_DATABASE, read_last)
    except TocError as error:  # the reports are files: they are there all the same
        failure = visit.texts.detail_of(problem_of(error))
    found = await asyncio.to_thread(list_newest_reports, backend.settings, REPORTS_MAX)
    lines = [_make_line(name, facts) for name, facts in found.reports]
    kinds = [kind for kind in Disagreement if any(line.facts.found.get(kind) for line in lines)]
    html = render(
        visit, "reconcile.html", last=last, night=night, failure=failure, lines=lines,
        kinds=[(kind, KINDS[kind]) for kind in kinds], unreadable=found.unreadable,
        directory=Path(backend.settings.reconcile.directory), page=PAGE, reports_max=REPORTS_MAX,
        at=backend.settings.reconcile.nightly, clean=clean_text,
    )  # fmt: skip
    return HTMLResponse(html)


def _make_line(name: str, facts: RunFacts) -> ReportLine:
    advice, commands = next_steps(facts)
    found = [
        (kind.value, count, facts.repaired.get(kind, 0))
        for kind in Disagreement
        if (count := facts.found.get(kind, 0))
    ]
    failures = [
        (
            clean_text(f"database {each.database}: {format_shard_ranges(each.shards)}"),
            clean_text(each.reason),
        )
        for each in facts.failures[:FAILURES_SHOWN_MAX]
    ]
    return ReportLine(
        name, facts, found, advice, commands, failures, len(facts.failures) - len(failures)
    )
