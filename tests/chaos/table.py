"""The table of a run: what was done, and what it did to the jobs."""

from __future__ import annotations

from collections.abc import Sequence

from toc.testing import FaultEffects, Kind, Report

HEAD = (
    "fault", "times", "jobs", "lost", "early", "after cancel", "wrong", "duplicates",
    "worst lateness", "recovery",
)  # fmt: skip


def table(report: Report) -> list[str]:
    """As Markdown. A job is of the faults during which it was due, or after which and before the next.

    early: at a time that was never, or no longer, in force. wrong: all else that does not agree.
    recovery: how long after a fault's end a job was still started more than two seconds late.
    """
    lines = [row(HEAD), row(["---"] + ["--:"] * (len(HEAD) - 1))]
    for name, figures in sorted(report.by_fault.items()):
        lines.append(row(_cells(name, figures)))
    total = FaultEffects(problems=report.problems_by_kind, duplicates=report.duplicates.total())
    total.during.merge(report.lateness)
    total.times = sum(figures.times for figures in report.by_fault.values())
    lines.append(row([*_cells("**all**", total)[:-1], ""]))
    return lines


def _cells(name: str, figures: FaultEffects) -> list[str]:
    problems = figures.problems
    share = (
        f" ({figures.duplicates / figures.jobs:.3%})" if figures.jobs and figures.duplicates else ""
    )
    return [
        name,
        str(figures.times),
        f"{figures.jobs:,}",
        str(problems[Kind.LOST]),
        str(problems[Kind.EARLY] + problems[Kind.OLD_TIME]),
        str(problems[Kind.AFTER_CANCEL]),
        str(problems[Kind.DUPLICATE] + problems[Kind.STALE] + problems[Kind.WRONG]),
        f"{figures.duplicates}{share}",
        f"{figures.worst_ms / 1000:.1f} s",
        f"{figures.recovery_ms / 1000:.1f} s",
    ]


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
