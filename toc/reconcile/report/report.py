"""The report of a run: a folder with findings.parquet, summary.json and index.html.

A folder is written under a draft's name and renamed when it is complete, and gets a draft's name again before
it is deleted: a reader of the directory sees complete reports only. A later run deletes the drafts of killed
runs. Only folders with a summary of toc are deleted, and none is overwritten.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from toc.domain.disagreements import Disagreement
from toc.domain.times import datetime_of
from toc.errors import SettingsError
from toc.reconcile.findings import ReconcileResult
from toc.reconcile.report.report_texts import (
    clean_text,
    format_kind_counts,
    format_shard_ranges,
    next_steps,
)
from toc.reconcile.report.summary import (
    SUMMARY,
    EarlierRunSummary,
    ReportSummary,
    RunFacts,
    RunFigures,
    UnreadableSummary,
    earlier_run_name,
    make_summary,
    read_summary,
)
from toc.runtime.private_files import make_private_directory, open_private_file, sync_directory
from toc.runtime.settings import Settings

log = logging.getLogger(__name__)

PAGE, FINDINGS = "index.html", "findings.parquet"
MODULES = ("jinja2", "pyarrow", "deltalake")
LEFTOVER_S = 3600  # older drafts belong to runs that were killed: writing takes seconds
SEARCHED_MAX = 50  # earlier reports that a run looks at to find its predecessor
LINES_MAX = 10  # lines with reasons; the page has all reasons

_NAME = re.compile(r"(\d{4}-\d\d-\d\dT\d{6}Z)(?:-([1-9]\d*))?", re.ASCII)
_DRAFT = re.compile(rf"\.{_NAME.pattern}\.\w+\.partial", re.ASCII)


def write_report(outcome: ReconcileResult, settings: Settings) -> Path:
    """Writes the report of a run, and deletes the oldest reports; returns the new folder.

    Raises SettingsError when the directory cannot be written, or the extra is not installed.
    """
    _explain_missing_packages()
    from toc.reconcile.report.html_page import (  # noqa: PLC0415 - an extra
        read_table_figures,
        render_html_page,
    )
    from toc.reconcile.report.parquet import (  # noqa: PLC0415 - as above
        first_seen_ms,
        read_first_seen,
        write_findings,
    )
    from toc.reconcile.tables.day_filler import tables_root  # noqa: PLC0415 - as above

    directory = Path(settings.reconcile.directory)
    stamp = f"{datetime_of(outcome.began_ms):%Y-%m-%dT%H%M%SZ}"
    before, notes = _find_earlier_report(directory, stamp, outcome.namespace)
    earlier = read_first_seen(directory / before["report"] / FINDINGS) if before else {}
    oldest_ms: dict[str, int] = {}
    for finding in outcome.findings:
        seen_ms = first_seen_ms(finding, outcome, earlier)
        oldest_ms[finding.kind] = min(seen_ms, oldest_ms.get(finding.kind, seen_ms))
    summary = make_summary(outcome, before, oldest_ms)
    figures = read_table_figures(tables_root(settings))
    page = render_html_page(outcome, summary, notes, figures)
    with _explain_write_errors(settings):
        make_private_directory(directory)
        draft = _create_draft_folder(directory, stamp)
        try:
            _delete_old_drafts(directory, draft.stat().st_mtime)
            with _create_synced_file(draft / FINDINGS) as file:
                write_findings(outcome, file, earlier)
            with _create_synced_file(draft / SUMMARY) as file:
                file.write(json.dumps(summary, indent=1).encode("ascii"))
            with _create_synced_file(draft / PAGE) as file:
                file.write(page.encode())
            sync_directory(draft)
            report = _rename_draft(draft, directory, stamp)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        sync_directory(directory)
    _delete_oldest_reports(directory, report, outcome.namespace, settings.reconcile.reports_max)
    return report


def check_report_directory(settings: Settings) -> None:
    """Raises SettingsError if no report can be written. Call it before a run, not after the run's work."""
    _explain_missing_packages()
    directory = Path(settings.reconcile.directory)
    with _explain_write_errors(settings):
        make_private_directory(directory)
        _create_draft_folder(directory, "0000-00-00T000000Z").rmdir()


def read_newest_figures(settings: Settings) -> RunFigures | None:
    """The figures of the newest report of this namespace; None: there is none that can be read."""
    for _, path in _list_reports(Path(settings.reconcile.directory))[:SEARCHED_MAX]:
        with suppress(UnreadableSummary):
            figures = read_summary(path, RunFigures)
            if figures.namespace == settings.namespace:
                return figures
    return None


class ReportList(NamedTuple):
    """Reports of this namespace, newest first, by the names of their folders. unreadable: names."""

    reports: list[tuple[str, RunFacts]]
    unreadable: list[str]


def list_newest_reports(settings: Settings, limit: int) -> ReportList:
    """The newest reports in `reconcile.directory` of this machine."""
    found = ReportList([], [])
    for _, path in _list_reports(Path(settings.reconcile.directory))[:SEARCHED_MAX]:
        if len(found.reports) == limit:
            break
        try:
            if read_summary(path, ReportSummary).namespace == settings.namespace:
                found.reports.append((path.name, read_summary(path, RunFacts)))
        except UnreadableSummary:
            found.unreadable.append(path.name)
    return found


def result_lines(outcome: ReconcileResult, report: Path | None = None) -> list[str]:
    """The result as a few plain lines. `report`: the folder from `write_report`, with the earlier figures."""
    summary = _read_or_make_summary(outcome, report)
    found = [summary["text"]]
    found += _limit_lines("taken up", map(_taken_up_text, summary["taken_up"]))
    found += _limit_lines("not compared", map(_failure_text, summary["failures"]))
    if summary["broken_off"]:
        found.append(f"repairing broke off: {summary['broken_off']}")
    found += _format_disagreement_counts(summary)
    if outcome.repairing:
        left = (row for row in summary["repairs"] if not row["repaired"])
        found += _limit_lines(
            "left", (f"{format_kind_counts(row['kinds'])}: {row['how']}" for row in left)
        )
    if report is not None:
        found.append(f"report: {report / PAGE}")
    text, commands = next_steps(outcome)
    if commands:
        found.append(f"{text} {', '.join(f'`{command}`' for command in commands)}")
    return found


def _taken_up_text(row: Mapping[str, Any]) -> str:
    shards = clean_text(format_shard_ranges(row["shards"]))
    return f"shards {shards}, compared until {row['compared']} by a run that was interrupted"


def _failure_text(row: Mapping[str, Any]) -> str:
    noun = "shard" if len(row["shards"]) == 1 else "shards"
    shards = clean_text(format_shard_ranges(row["shards"]))
    return f"{noun} {shards} (database {row['database']}): {row['reason']}"


def _limit_lines(name: str, texts: Iterable[str]) -> list[str]:
    """The first LINES_MAX texts, each after a name, and the number of the others."""
    found = list(texts)
    if len(found) > LINES_MAX:
        found[LINES_MAX:] = [f"{len(found) - LINES_MAX} more reasons, see the report"]
    return [f"{name}: {text}" for text in found]


def result_as_json(outcome: ReconcileResult, report: Path | None = None) -> dict[str, Any]:
    """The content of summary.json, and the report's folder."""
    return _read_or_make_summary(outcome, report) | {
        "report": None if report is None else str(report)
    }


def _read_or_make_summary(outcome: ReconcileResult, report: Path | None) -> dict[str, Any]:
    """The summary from the report's folder, which has the figures of the earlier run; else a new summary."""
    if report is not None:
        with suppress(OSError):  # a later run may have deleted it
            return dict(json.loads((report / SUMMARY).read_bytes()))
    return make_summary(outcome)


def _format_disagreement_counts(summary: Mapping[str, Any]) -> Iterator[str]:
    """For each kind of disagreement that was found now or before, one line with its counts."""
    before, earlier = summary["before"], earlier_run_name(summary)
    for kind in Disagreement:
        now, then = summary["found"].get(kind, 0), before["found"][kind] if before else 0
        if not now and not then:
            continue
        facts = [f"{now:>9,}"]
        if summary["repairing"]:
            facts.append(f"{summary['repaired'].get(kind, 0):,} repaired")
        if before:
            facts.append(f"{earlier} {then:,}")
        if summary["oldest"].get(kind, summary["began"]) < summary["began"]:
            facts.append(f"the oldest was first seen {summary['oldest'][kind]}")
        yield f"  {kind.value:<14} {'  '.join(facts)}"


# ---- one report


def _explain_missing_packages() -> None:
    for name in MODULES:
        if importlib.util.find_spec(name) is None:
            raise SettingsError(f"{name} is not installed: pip install 'toc[reconcile]'")


@contextmanager
def _explain_write_errors(settings: Settings) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingsError(
            "reconcile.directory: must be a directory that can be written; "
            f"got {settings.reconcile.directory!r} ({error.strerror or error})"
        ) from error


@contextmanager
def _create_synced_file(path: Path) -> Iterator[IO[bytes]]:
    """Creates a file, which is on the disk when the block has ended."""
    with open_private_file(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _create_draft_folder(directory: Path, name: str) -> Path:
    """Creates an empty folder with a draft's name."""
    return Path(tempfile.mkdtemp(".partial", f".{name}.", directory))


def _rename_draft(draft: Path, directory: Path, stamp: str) -> Path:
    """Renames a draft to the name of a report, with the next free number of that second."""
    taken = [number for (second, number), _ in _list_reports(directory) if second == stamp]
    for number in itertools.count(max(taken, default=0) + 1):
        report = directory / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            return draft.rename(report)
        except OSError:
            # If the name exists, another process has just taken it: the next number is tried.
            if not os.path.lexists(report):
                raise
    raise AssertionError


# ---- other reports


def _list_reports(directory: Path) -> list[tuple[tuple[str, int], Path]]:
    """Folders that have a report's name, newest first, with the second and the number in it."""
    found = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match and entry.is_dir(follow_symlinks=False):
                found.append(((match[1], int(match[2] or 1)), directory / entry.name))
    return sorted(found, reverse=True)


def _find_earlier_report(
    directory: Path, stamp: str, namespace: str
) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest earlier report of this namespace, and notes on those that cannot be read."""
    notes: list[str] = []
    earlier = [path for (second, _), path in _list_reports(directory) if second <= stamp]
    for path in earlier[:SEARCHED_MAX]:
        try:
            if read_summary(path, ReportSummary).namespace == namespace:
                return read_summary(path, EarlierRunSummary).to_dict(path.name), notes
        except UnreadableSummary as error:
            notes.append(f"An earlier report was left out: {path.name}/{SUMMARY} {error}.")
    return None, notes


def _delete_old_drafts(directory: Path, now_s: float) -> None:
    """Deletes drafts of killed runs. `now_s`: by the clock that also dates the drafts."""
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):  # another process has deleted the draft meanwhile
                is_draft = _DRAFT.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                if is_draft and entry.stat(follow_symlinks=False).st_mtime < now_s - LEFTOVER_S:
                    shutil.rmtree(entry.path, ignore_errors=True)


def _delete_oldest_reports(directory: Path, newest: Path, namespace: str, reports_max: int) -> None:
    """Deletes the oldest reports of the namespace, so that `reports_max` are left; never `newest`."""
    others = [path for _, path in _list_reports(directory) if path != newest]
    if len(others) < reports_max:
        return
    for path in [path for path in others if _belongs_to_namespace(path, namespace)][
        reports_max - 1 :
    ]:
        try:
            draft = _create_draft_folder(directory, path.name)
            shutil.rmtree(path.rename(draft))  # a rename may replace an empty folder
        except OSError as error:
            log.warning("the old report %s cannot be deleted: %s", path, error.strerror)


def _belongs_to_namespace(path: Path, namespace: str) -> bool:
    with suppress(UnreadableSummary):
        return read_summary(path, ReportSummary).namespace == namespace
    return False
