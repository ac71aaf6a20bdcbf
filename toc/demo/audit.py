"""Compares the journals with the databases' final rows. Pure; believes no counter.

What counts as broken:

    lost          a scheduled job has no row, has not ended, or is "done" and no handler did it
    early         a handler started before the action_time in force at that moment
    after cancel  a handler started (or succeeded) although cancel() had answered "cancelled"
    duplicate     a handler started again although the start before it had not failed
    wrong ending  cancelled in the answer and not in the row, or the reverse; dead without having
                  failed `max_attempts` times or without a dead letter; a row nobody scheduled
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from toc.demo.journal import CancelAnswered, Ended, Entry, MoveAnswered, Scheduled, Started
from toc.domain.job import Status
from toc.trial.rows import Row


@dataclass(slots=True)
class Verdict:
    """What the audit found. Each problem list holds one line per case."""

    scheduled: int = 0
    starts: int = 0
    retries: int = 0  # starts after a failed one
    moved: int = 0
    paid_too_late: int = 0  # cancel() answered that it was running or done: no breach
    by_status: Counter[Status] = field(default_factory=Counter)
    late_ms: list[float] = field(default_factory=list)  # first starts, minus their action_time
    lost: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    after_cancel: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return [*self.lost, *self.early, *self.after_cancel, *self.duplicates, *self.wrong]

    @property
    def holds(self) -> bool:
        return not self.problems


@dataclass(slots=True)
class _Story:
    """All that is known of one job, each list by time."""

    scheduled: Scheduled | None = None
    cancels: list[CancelAnswered] = field(default_factory=list)
    moves: list[MoveAnswered] = field(default_factory=list)
    starts: list[Started] = field(default_factory=list)
    ends: list[Ended] = field(default_factory=list)

    @property
    def cancelled(self) -> CancelAnswered | None:
        return next((cancel for cancel in self.cancels if cancel.answer == "cancelled"), None)

    @property
    def done(self) -> bool:
        return any(not end.failed for end in self.ends)

    def action_ms(self, at_ms: float) -> int:
        """The action_time in force: the new one from when a successful move was asked for."""
        moved = [
            move for move in self.moves if move.answer == "rescheduled" and move.asked_ms < at_ms
        ]
        if moved:
            return moved[-1].action_ms
        return self.scheduled.action_ms if self.scheduled is not None else 0

    def outcome_between(self, start: Started, after: Started | None) -> Ended | None:
        """How a start ended, if it did before the next one."""
        return next(
            (
                end
                for end in self.ends
                if end.at_ms >= start.at_ms and end.attempt == start.attempt
                if after is None or end.at_ms <= after.at_ms
            ),
            None,
        )


def audit(
    entries: Iterable[Entry],
    rows: Mapping[int, Row],
    dead_letters: Set[int],
    max_attempts: Mapping[str, int],
) -> Verdict:
    """The verdict on a finished run: `entries` of all journals, in any order."""
    verdict = Verdict()
    stories = _collect(entries)
    for job_id, job in sorted(stories.items()):
        _count(verdict, job)
        if job.scheduled is None:
            verdict.wrong.append(f"job {job_id}: somebody acted on it, and nobody scheduled it")
            continue
        _check_starts(verdict, job_id, job)
        _check_cancel(verdict, job_id, job, rows.get(job_id))
        _check_end(verdict, job_id, job, rows.get(job_id))
        if rows.get(job_id, Row(Status.PENDING, 0)).status is Status.DEAD:
            _check_dead(verdict, job_id, job, dead_letters, max_attempts)
    for job_id, row in rows.items():
        verdict.by_status[row.status] += 1
        if job_id not in stories:
            verdict.wrong.append(f"job {job_id}: there is a row, and nobody scheduled it")
    return verdict


def _collect(entries: Iterable[Entry]) -> dict[int, _Story]:
    stories: dict[int, _Story] = defaultdict(_Story)
    for entry in sorted(entries, key=lambda entry: entry.at_ms):
        job = stories[entry.job_id]
        match entry:
            case Scheduled():
                job.scheduled = entry
            case CancelAnswered():
                job.cancels.append(entry)
            case MoveAnswered():
                job.moves.append(entry)
            case Started():
                job.starts.append(entry)
            case Ended():
                job.ends.append(entry)
    return stories


def _count(verdict: Verdict, job: _Story) -> None:
    verdict.scheduled += job.scheduled is not None
    verdict.starts += len(job.starts)
    verdict.moved += sum(move.answer == "rescheduled" for move in job.moves)
    verdict.paid_too_late += sum(cancel.answer != "cancelled" for cancel in job.cancels)


def _check_starts(verdict: Verdict, job_id: int, job: _Story) -> None:
    for position, start in enumerate(job.starts):
        action_ms = job.action_ms(start.at_ms)
        if position == 0:
            verdict.late_ms.append(start.at_ms - action_ms)
        if start.at_ms < action_ms:
            early_ms = action_ms - start.at_ms
            verdict.early.append(f"job {job_id}: started {early_ms:.1f} ms before its time")
        if position:
            outcome = job.outcome_between(job.starts[position - 1], start)
            if outcome is not None and outcome.failed:
                verdict.retries += 1
            else:
                why = "that one had succeeded" if outcome is not None else "that one had not ended"
                verdict.duplicates.append(f"job {job_id}: started after a start, and {why}")


def _check_cancel(verdict: Verdict, job_id: int, job: _Story, row: Row | None) -> None:
    cancelled = job.cancelled
    if cancelled is not None:
        after = [start for start in job.starts if start.at_ms > cancelled.at_ms]
        if after:
            late_ms = after[0].at_ms - cancelled.at_ms
            verdict.after_cancel.append(f'job {job_id}: started {late_ms:.1f} ms after "cancelled"')
        elif job.done:
            verdict.after_cancel.append(f'job {job_id}: "cancelled", and its handler succeeded')
    if row is not None and (row.status is Status.CANCELLED) != (cancelled is not None):
        said = (
            "nobody was told so" if cancelled is None else f"the row says {row.status.name.lower()}"
        )
        verdict.wrong.append(f"job {job_id}: cancelled, but {said}")


def _check_end(verdict: Verdict, job_id: int, job: _Story, row: Row | None) -> None:
    if row is None:
        verdict.lost.append(f"job {job_id}: was scheduled, and has no row")
    elif row.status.live:
        verdict.lost.append(f"job {job_id}: has not ended, it is {row.status.name.lower()}")
    elif row.status is Status.DONE and not job.done:
        verdict.lost.append(f"job {job_id}: the row says done, no handler has done it")
    elif row.status is Status.DEAD and job.done:
        verdict.wrong.append(f"job {job_id}: the row says dead, its handler has succeeded")


def _check_dead(
    verdict: Verdict,
    job_id: int,
    job: _Story,
    dead_letters: Set[int],
    max_attempts: Mapping[str, int],
) -> None:
    assert job.scheduled is not None  # noqa: S101 - the caller has looked
    wanted = max_attempts[job.scheduled.biz_type]
    failed = sum(end.failed for end in job.ends)
    if failed != wanted:
        verdict.wrong.append(f"job {job_id}: dead after {failed} failures of {wanted}")
    if job_id not in dead_letters:
        verdict.wrong.append(f"job {job_id}: dead without a dead letter")
