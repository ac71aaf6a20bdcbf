"""The entries of a history, grouped by job. Pure.

An entry comes as its kind and its values, as a journal has them; for speed no object is made of it. Tuples
begin with their time, so that they sort by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from toc.testing.history import Entry, Fault, ScheduleUnanswered

SUCCESS, AGAIN, SNOOZED, DROPPED, BURIED = "", "again", "snooze", "drop", "dead"
STOPPED = "stopped"
"""How a handler's run ended. AGAIN: it failed, or asked for a retry. STOPPED: its process ended and
cancelled it; the attempt does not count."""


class ClientCall(NamedTuple):
    """A call of a client and its answer. `action_ms`: of schedule and reschedule, else 0."""

    at_ms: float
    asked_ms: float
    answer: str
    action_ms: int


class Start(NamedTuple):
    at_ms: float
    attempt: int
    process: str
    token: str
    biz_type: str


class End(NamedTuple):
    at_ms: float
    attempt: int
    token: str
    how: str


class FinalState(NamedTuple):
    status: str
    attempts: int
    action_ms: int
    token: str
    dead_letter: bool | None


class JobEntries:
    """All that is known about one job. `sort` puts each list into the order of time."""

    __slots__ = ("biz_type", "cancels", "ends", "moves", "redrives", "row", "schedules", "starts")

    def __init__(self) -> None:
        self.biz_type = ""
        self.schedules: list[ClientCall] = []
        self.cancels: list[ClientCall] = []
        self.moves: list[ClientCall] = []
        self.redrives: list[ClientCall] = []
        self.starts: list[Start] = []
        self.ends: list[End] = []
        self.row: FinalState | None = None

    def sort(self) -> None:
        for entries in (
            self.schedules,
            self.cancels,
            self.moves,
            self.redrives,
            self.starts,
            self.ends,
        ):
            if len(entries) > 1:
                entries.sort()

    def end_of(self, start: Start, until_ms: float) -> End | None:
        """How a start ended, if it did by then."""
        for end in self.ends:
            if (
                end.token == start.token
                and end.attempt == start.attempt
                and end.at_ms >= start.at_ms
            ):
                return end if end.at_ms <= until_ms else None
        return None


class EntriesByJob:
    """Collects entries, in any order."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobEntries] = {}
        self.faults: list[Fault] = []
        self.unanswered: list[ScheduleUnanswered] = []
        self.entries = 0

    def add_all(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.add(type(entry).__name__, {name: getattr(entry, name) for name in entry.__slots__})

    def add(self, kind: str, values: dict[str, Any]) -> None:
        """One entry; raises KeyError for a kind or a value that is not there."""
        self.entries += 1
        if kind == "Fault":
            self.faults.append(Fault(**values | {"processes": tuple(values.get("processes", ()))}))
            return
        if kind == "ScheduleUnanswered":
            self.unanswered.append(ScheduleUnanswered(**values))
            return
        job_id = values["job_id"]
        job = self.jobs.get(job_id)
        if job is None:
            job = self.jobs[job_id] = JobEntries()
        _ADD[kind](job, values)


def _scheduled(job: JobEntries, v: dict[str, Any]) -> None:
    job.biz_type = v["biz_type"]
    job.schedules.append(ClientCall(v["at_ms"], v["asked_ms"], "scheduled", v["action_ms"]))


def _note_cancel(job: JobEntries, v: dict[str, Any]) -> None:
    job.cancels.append(ClientCall(v["at_ms"], v["asked_ms"], v["answer"], 0))


def _note_reschedule(job: JobEntries, v: dict[str, Any]) -> None:
    job.moves.append(ClientCall(v["at_ms"], v["asked_ms"], v["answer"], v["action_ms"]))


def _redriven(job: JobEntries, v: dict[str, Any]) -> None:
    job.redrives.append(ClientCall(v["at_ms"], v["asked_ms"], v["answer"], 0))


def _started(job: JobEntries, v: dict[str, Any]) -> None:
    job.starts.append(Start(v["at_ms"], v["attempt"], v["process"], v["token"], v["biz_type"]))


def _ended(job: JobEntries, v: dict[str, Any]) -> None:
    verdict = v.get("verdict", "")
    how = AGAIN if v["failed"] and verdict != STOPPED else _HOW[verdict]
    job.ends.append(End(v["at_ms"], v["attempt"], v["token"], how))


def _row(job: JobEntries, v: dict[str, Any]) -> None:
    job.row = FinalState(
        v["status"], v["attempts"], v["action_ms"], v.get("token", ""), v.get("dead_letter")
    )


_HOW = {"": SUCCESS, "retry": AGAIN, "snooze": SNOOZED, "drop": DROPPED, "dead": BURIED} | {
    STOPPED: STOPPED
}
_ADD = {
    "Scheduled": _scheduled,
    "CancelAnswered": _note_cancel,
    "RescheduleAnswered": _note_reschedule,
    "Redriven": _redriven,
    "Started": _started,
    "Ended": _ended,
    "Row": _row,
}
