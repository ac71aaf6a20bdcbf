"""Journals too large for memory: their lines are sorted into parts by job, and each part is judged alone.

One pass reads every file once and writes each line to its job's part; a second one judges the parts.
Both passes run in as many processes as there are processors. A part is small enough for any machine, and the
memory used does not grow with the history.
"""

from __future__ import annotations

import gc
import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from toc.testing.faults import FaultTimeline, LostLeases
from toc.testing.history import Fault, LeaseUnanswered, ScheduleUnanswered
from toc.testing.job_entries import EntriesByJob
from toc.testing.judge import JobJudge, Rules
from toc.testing.report import Report

CHUNK_BYTES = 64 << 20  # bytes that one task of the first pass reads
READ_BYTES = 8 << 20
PART_BYTES = 16 << 20
BLOCK_BYTES = 256 << 10  # bytes that are parsed at a time
LINE_BYTES_SHOWN = 200
# In JSON a quotation mark inside a text follows a backslash: so this matches the name, never a value.
_JOB_ID = re.compile(rb'"job_id":\s*(\d+)')


class _FileChunk(NamedTuple):
    """The lines of a file that begin at byte `first` or later, and before `end`."""

    path: Path
    first: int
    end: int


class _SharedEntries(NamedTuple):
    """Entries that belong to no single job."""

    faults: list[Fault]
    unanswered: list[ScheduleUnanswered]
    lost_leases: list[LeaseUnanswered]


def check_journal_files(
    paths: list[Path], rules: Rules, processes: int
) -> tuple[Report, _SharedEntries]:
    """Judges all jobs of these journals. The temporary directory needs as much room as the journals."""
    sizes = {path: path.stat().st_size for path in paths}
    # An odd number: so the part of an id depends on all its bits, and the parts have about equal sizes.
    parts = sum(sizes.values()) // PART_BYTES | 1
    with (
        TemporaryDirectory(prefix="toc-check-") as name,
        ProcessPoolExecutor(processes, get_context("spawn"), gc.disable) as pool,
    ):
        directory = Path(name)
        for part in range(parts):
            (directory / str(part)).mkdir()
        common = _SharedEntries([], [], [])
        chunks = [
            (directory, str(number), chunk, parts)
            for number, chunk in enumerate(_split_into_chunks(sizes))
        ]
        for found in pool.map(_write_lines_to_parts, *zip(*chunks, strict=True)):
            common.faults.extend(found.faults)
            common.unanswered.extend(found.unanswered)
            common.lost_leases.extend(found.lost_leases)
        report = Report(entries=sum(len(entries) for entries in common))
        tasks = [(directory / str(part), rules, common) for part in range(parts)]
        for judged in pool.map(_judge_part, *zip(*tasks, strict=True)):
            report.merge(judged, rules.problems_max)
    return report, common


def add_journal_file(by_job: EntriesByJob, path: Path) -> None:
    """Adds the entries of a journal, without a cut-off last line. Raises ValueError for other files."""
    with path.open("rb") as file:
        while lines := file.readlines(BLOCK_BYTES):
            if not lines[-1].endswith(b"\n"):
                lines.pop()
            try:
                _add_entry_lines(by_job, lines)
            except (ValueError, KeyError, TypeError):
                _raise_for_bad_line(path, lines)
                raise


def _add_entry_lines(by_job: EntriesByJob, lines: list[bytes]) -> None:
    # Many lines as one document: half the time that a call of the parser for each takes.
    for kind, values in json.loads(b"[" + b",".join(lines) + b"]"):
        by_job.add_entry(kind, values)


def _raise_for_bad_line(path: Path, lines: list[bytes]) -> None:
    """Raises ValueError for the first line that is no entry."""
    for line in lines:
        try:
            _add_entry_lines(EntriesByJob(), [line])
        except (ValueError, KeyError, TypeError) as error:
            shown = line[:LINE_BYTES_SHOWN].decode(errors="replace").rstrip()
            raise ValueError(f"{path}: this is no entry of a history: {shown}") from error


def _split_into_chunks(sizes: dict[Path, int]) -> Iterator[_FileChunk]:
    for path, size in sizes.items():
        for first in range(0, size, CHUNK_BYTES):
            yield _FileChunk(path, first, min(first + CHUNK_BYTES, size))


def _write_lines_to_parts(
    directory: Path, name: str, chunk: _FileChunk, parts: int
) -> _SharedEntries:
    """Writes the lines of a chunk to the files `directory/<part>/<name>`."""
    common = EntriesByJob()
    with chunk.path.open("rb") as file:
        if chunk.first:
            file.seek(chunk.first - 1)
            file.readline()  # the line that the chunk before has begun
        while file.tell() < chunk.end:
            lines = file.readlines(min(READ_BYTES, chunk.end - file.tell()))
            if lines and not lines[-1].endswith(b"\n"):
                lines.pop()
            nobodys: list[bytes] = []
            by_part: list[list[bytes]] = [[] for _ in range(parts)]
            for line in lines:
                match = _JOB_ID.search(line)
                if match is None:
                    nobodys.append(line)
                else:
                    by_part[int(match[1]) % parts].append(line)
            _raise_for_bad_line(chunk.path, nobodys)
            _add_entry_lines(common, nobodys)
            for part, found in enumerate(by_part):
                if found:
                    with (directory / str(part) / name).open("ab") as out:
                        out.writelines(found)
    return _SharedEntries(common.faults, common.unanswered, common.lost_leases)


def _judge_part(directory: Path, rules: Rules, common: _SharedEntries) -> Report:
    by_job = EntriesByJob()
    for path in sorted(directory.iterdir()):
        add_journal_file(by_job, path)
        path.unlink()
    return judge_all_jobs(by_job, rules, *common)


def judge_all_jobs(
    by_job: EntriesByJob,
    rules: Rules,
    faults: list[Fault],
    unanswered: list[ScheduleUnanswered],
    lost_leases: list[LeaseUnanswered],
) -> Report:
    """Judges the jobs of `by_job` and returns the report on them."""
    judge = JobJudge(
        rules,
        FaultTimeline(faults, rules.linger_ms),
        LostLeases(lost_leases),
        strangers_are_legal=bool(unanswered),
    )
    for job_id, job in by_job.jobs.items():
        judge.judge_job(job_id, job)
    judge.report.entries = by_job.entries
    for biz_type, late in judge.report.by_type.items():
        if biz_type not in rules.held_types:
            judge.report.lateness.merge(late)
    return judge.report


def count_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
