"""The report of a run: a folder with findings.parquet, summary.json and index.html.

A folder is written under another name and renamed when it is whole, and gets that name back before it
is deleted: whoever lists the directory sees whole reports only. What a killed run left is cleared away
by a later one. Only folders with our mark in them are ever deleted, and none is overwritten.
"""

from __future__ import annotations

import errno
import importlib.util
import itertools
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from toc.domain.times import datetime_of
from toc.errors import SettingsError
from toc.reconcile.findings import ReconcileResult
from toc.reconcile.report.lines import lines_of
from toc.reconcile.report.summary import (
    SUMMARY,
    Before,
    BrokenSummary,
    before_of,
    before_told,
    read_summary,
    summary_of,
)
from toc.runtime.files import DIRECTORY_MODE, make_directory, open_file
from toc.runtime.settings import Settings

log = logging.getLogger(__name__)

PAGE, FINDINGS = "index.html", "findings.parquet"
MODULES = ("jinja2", "matplotlib", "pyarrow")
LEFTOVER_S = 3600  # older drafts are of runs that were killed: writing takes seconds
LOOKS_MAX = 50  # at earlier reports

_NAME = re.compile(r"(\d{4}-\d\d-\d\dT\d{6}Z)(?:-([1-9]\d*))?", re.ASCII)
_DRAFT = re.compile(rf"\.{_NAME.pattern}\.\d+\.partial", re.ASCII)
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}


def write(outcome: ReconcileResult, settings: Settings) -> Path:
    """Writes the report of a run, deletes the oldest ones; returns the new folder.

    Raises SettingsError when the directory cannot be written, or the extra is not installed.
    """
    _explain_missing_packages()
    from toc.reconcile.report.page import render  # noqa: PLC0415 - an extra
    from toc.reconcile.report.parquet import write_findings  # noqa: PLC0415 - as above

    directory = Path(settings.reconcile.directory)
    stamp = f"{datetime_of(outcome.began_ms):%Y-%m-%dT%H%M%SZ}"
    before, notes = _find_earlier(directory, stamp, outcome.namespace)
    summary = summary_of(outcome, before)
    page = render(outcome, summary, before, notes)
    with _explain_write_errors(settings):
        make_directory(directory)
        draft = _new_draft(directory, stamp)
        try:
            _delete_old_drafts(directory, draft.stat().st_mtime)
            with _new_file(draft / FINDINGS) as sink:
                write_findings(outcome, sink)
            with _new_file(draft / SUMMARY) as sink:
                sink.write(json.dumps(summary, indent=1).encode("ascii"))
            with _new_file(draft / PAGE) as sink:
                sink.write(page.encode())
            _sync_directory(draft)
            report = _publish(draft, directory, stamp)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        _sync_directory(directory)
    _delete_oldest(directory, report, outcome.namespace, settings.reconcile.reports_max)
    return report


def check(settings: Settings) -> None:
    """Raises SettingsError when reports could not be written: to be known before the work, not after."""
    _explain_missing_packages()
    directory = Path(settings.reconcile.directory)
    with _explain_write_errors(settings):
        make_directory(directory)
        _new_draft(directory, "0000-00-00T000000Z").rmdir()


def lines(outcome: ReconcileResult, report: Path | None = None) -> list[str]:
    """The result as a few plain lines. `report`: what `write` returned; with it, yesterday's figures too."""
    return list(lines_of(outcome, _read_before_of(report), report))


def as_json(outcome: ReconcileResult, report: Path | None = None) -> dict[str, Any]:
    """What summary.json holds, and where the report is."""
    return summary_of(outcome, _read_before_of(report)) | {
        "report": None if report is None else str(report)
    }


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
def _new_file(path: Path) -> Iterator[IO[bytes]]:
    """A new file that is on the disk when it is closed."""
    with open_file(path, "xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(directory: Path) -> None:
    with suppress(OSError):  # not every file system can
        number = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _new_draft(directory: Path, name: str) -> Path:
    """An empty folder that nobody else has."""
    for number in itertools.count(1):
        draft = directory / f".{name}.{number}.partial"
        with suppress(FileExistsError):
            draft.mkdir(DIRECTORY_MODE)
            return draft
    raise AssertionError


def _publish(draft: Path, directory: Path, stamp: str) -> Path:
    """Gives a draft its name, behind all others of its second."""
    taken = [number for (second, number), _ in _list_reports(directory) if second == stamp]
    for number in itertools.count(max(taken, default=0) + 1):
        report = directory / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            return draft.rename(report)
        except OSError as error:  # somebody else's, since we looked
            if error.errno not in _TAKEN:
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


def _find_earlier(directory: Path, stamp: str, namespace: str) -> tuple[Before | None, list[str]]:
    """The newest earlier report of this namespace, and notes about those that cannot be used."""
    notes: list[str] = []
    earlier = [path for (second, _), path in _list_reports(directory) if second <= stamp]
    for path in earlier[:LOOKS_MAX]:
        try:
            summary = read_summary(path)
            if summary.get("namespace") == namespace:
                return before_of(path.name, summary), notes
        except BrokenSummary as error:
            notes.append(f"An earlier report was left out: {path.name}/{SUMMARY} {error}.")
    return None, notes


def _read_before_of(report: Path | None) -> Before | None:
    """What a written report says about the one before it."""
    if report is None:
        return None
    try:
        return before_told(read_summary(report))
    except BrokenSummary:
        return None


def _delete_old_drafts(directory: Path, now_s: float) -> None:
    """Deletes drafts of killed runs. `now_s`: by the clock that also dates the drafts."""
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(OSError):  # gone meanwhile
                is_draft = _DRAFT.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
                if is_draft and entry.stat(follow_symlinks=False).st_mtime < now_s - LEFTOVER_S:
                    shutil.rmtree(entry.path, ignore_errors=True)


def _delete_oldest(directory: Path, newest: Path, namespace: str, reports_max: int) -> None:
    """Deletes the oldest reports of the namespace, so that `reports_max` are left; never `newest`."""
    others = [path for _, path in _list_reports(directory) if path != newest]
    if len(others) < reports_max:
        return
    for path in [path for path in others if _has_our_summary(path, namespace)][reports_max - 1 :]:
        try:
            draft = _new_draft(directory, path.name)
            shutil.rmtree(path.rename(draft))  # an empty folder makes way
        except OSError as error:
            log.warning("the old report %s cannot be deleted: %s", path, error.strerror)


def _has_our_summary(path: Path, namespace: str) -> bool:
    try:
        return bool(read_summary(path).get("namespace") == namespace)
    except BrokenSummary:
        return False
