"""Says whether toc kept its promises, from journals and the databases' rows alone: no counter of toc is used.

In the manner of Jepsen's checker for Chronos, for jobs that are due once: each job's calls, handler
runs and final row are judged together (`judge`); a duplicate needs a reason, such as a fault (`faults`).
`report.Kind` lists the problems. Memory grows with the largest part, not with the history.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from toc.testing.history import Entry, Fault, Journal, ScheduleUnanswered
from toc.testing.job_entries import EntriesByJob
from toc.testing.journal_parts import (
    PART_BYTES,
    add_journal_file,
    check_journal_files,
    count_processors,
    judge_all_jobs,
)
from toc.testing.judge import Rules
from toc.testing.report import FaultEffects, Kind, Problem, Report

WHOLE_BYTES = 2 * PART_BYTES
"""Journals of so many bytes in all are checked in memory, by this process."""

History = str | os.PathLike[str] | Iterable[Entry]
"""The path of a journal, or entries."""


def check(
    histories: Iterable[History], rules: Rules | None = None, *, processes: int | None = None
) -> Report:
    """The verdict on one run; the entries may stand in any order, in any of the histories.

    The verdict is complete only if the histories have a Row for each job (`toc.testing.final_rows`), read
    when all clients and nodes have stopped. Large journals are checked in `processes` (default: one per
    processor), with files in the temporary directory that are as large as the journals; a script that calls
    `check` then needs the usual `if __name__ == "__main__"`. Raises OSError for a file that cannot be read,
    ValueError for a file that is no journal.
    """
    rules = rules or Rules()
    paths: list[Path] = []
    by_job = EntriesByJob()
    given: list[Iterable[Entry]] = []
    for history in histories:
        if isinstance(history, str | os.PathLike):
            paths.append(Path(history))
        else:
            given.append(history)
    if sum(path.stat().st_size for path in paths) > WHOLE_BYTES:
        return _check_large_journals(paths, given, rules, processes or count_processors())
    for entries in given:
        by_job.add_entries(entries)
    for path in paths:
        add_journal_file(by_job, path)
    report = judge_all_jobs(by_job, rules, by_job.faults, by_job.unanswered, by_job.lost_leases)
    return _add_overall_findings(report, by_job.faults, by_job.unanswered)


def _check_large_journals(
    paths: list[Path], given: list[Iterable[Entry]], rules: Rules, processes: int
) -> Report:
    with TemporaryDirectory(prefix="toc-check-") as name:
        extra = Path(name) / "given"
        with Journal(extra) as journal:
            for entries in given:
                for entry in entries:
                    journal.write(entry)
        report, common = check_journal_files([*paths, extra], rules, processes)
    return _add_overall_findings(report, common.faults, common.unanswered)


def _add_overall_findings(
    report: Report, faults: list[Fault], unanswered: list[ScheduleUnanswered]
) -> Report:
    """Adds the findings that concern the whole history, not a single job."""
    for fault in faults:
        figures = report.by_fault.setdefault(fault.name, FaultEffects())
        figures.times += 1
        figures.lasted_ms += fault.to_ms - fault.from_ms
    report.unanswered += len(unanswered)
    most = sum(call.jobs for call in unanswered)
    if unanswered and report.strangers > most:
        text = f"{report.strangers} jobs that nobody scheduled, and only {most} calls without an answer"
        report.problems_by_kind[Kind.WRONG] += 1
        report.problems.append(Problem(Kind.WRONG, 0, text))
    order = {kind: position for position, kind in enumerate(Kind)}
    report.problems.sort(key=lambda problem: (order[problem.kind], problem.job_id))
    return report
