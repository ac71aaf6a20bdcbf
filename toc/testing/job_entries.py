"""The entries of a history, grouped by job. Pure.

An entry comes as its kind and its values, as a journal has them; for speed no object is made of it. Tuples
begin with their time, so that they sort by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from toc.testing.history import Entry, Fault, LeaseUnanswered, ScheduleUnanswered

SUCCESS, AGAIN, SNOOZED, DROPPED, BURIED = "", "again", "snooze", "drop", "dead"
STOPPED = "stopped"
"""How a handler's run ended. AGAIN: the handler failed, or asked for a retry. STOPPED: the process ended and
cancelled the handler; the attempt does not count."""


class ClientCall(NamedTuple):
    """A call of a client and its answer. `action_ms`: of schedule and reschedule, else 0."""

    at_ms: float
    asked_ms: float
    answer: str
    action_ms: int


class HandlerStart(NamedTuple):
    at_ms: float
    attempt: int
    process: str
    token: str
    biz_type: str


class HandlerEnd(NamedTuple):
    at_ms: float
    attempt: int
    token: str
    how: str


class FinalRow(NamedTuple):
    status: str
    attempts: int
    action_ms: int
    token: str
    dead_letter: bool | None


class JobEntries:
    """All entries of one job. `sort_by_time` sorts each list by the time of its entries."""

    __slots__ = (
        "biz_type", "cancels", "discards", "ends", "moves", "redrives", "row", "schedules", "starts",
    )  # fmt: skip

    def __init__(self) -> None:
        self.biz_type = ""
        self.schedules: list[ClientCall] = []
        self.cancels: list[ClientCall] = []
        self.moves: list[ClientCall] = []
        self.redrives: list[ClientCall] = []
        self.discards: list[ClientCall] = []
        self.starts: list[HandlerStart] = []
        self.ends: list[HandlerEnd] = []
        self.row: FinalRow | None = None

    def sort_by_time(self) -> None:
        for entries in (
            self.schedules,
            self.cancels,
            self.moves,
            self.redrives,
            self.discards,
            self.starts,
            self.ends,
        ):
            if len(entries) > 1:
                entries.sort()

    def find_end_of_start(self, start: HandlerStart, until_ms: float) -> HandlerEnd | None:
        """How the run that began with `start` ended; None: it had not ended at `until_ms`."""
        for end in self.ends:
            if (
                end.token == start.token
                and end.attempt == start.attempt
                and end.at_ms >= start.at_ms
            ):
                return end if end.at_ms <= until_ms else None
        return None


class EntriesByJob:
    """Collects the entries of a history by job; they may come in any order."""

    def __init__(self) -> None:
        self.jobs: dict[int, JobEntries] = {}
        self.faults: list[Fault] = []
        self.unanswered: list[ScheduleUnanswered] = []
        self.lost_leases: list[LeaseUnanswered] = []
        self.entries = 0

    def add_entries(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.add_entry(
                type(entry).__name__, {name: getattr(entry, name) for name in entry.__slots__}
            )

    def add_entry(self, kind: str, values: dict[str, Any]) -> None:
        """Adds one entry of the history to the entries of its job.

        Raises KeyError for an unknown kind, and KeyError or TypeError for a missing value.
        """
        self.entries += 1
        if kind == "Fault":
            self.faults.append(Fault(**values | {"processes": tuple(values.get("processes", ()))}))
            return
        if kind == "ScheduleUnanswered":
            self.unanswered.append(ScheduleUnanswered(**values))
            return
        if kind == "LeaseUnanswered":
            self.lost_leases.append(LeaseUnanswered(**values))
            return
        job_id = values["job_id"]
        job = self.jobs.get(job_id)
        if job is None:
            job = self.jobs[job_id] = JobEntries()
        _ADD[kind](job, values)


def _add_schedule(job: JobEntries, v: dict[str, Any]) -> None:
    job.biz_type = v["biz_type"]
    job.schedules.append(ClientCall(v["at_ms"], v["asked_ms"], "scheduled", v["action_ms"]))


def _add_cancel(job: JobEntries, v: dict[str, Any]) -> None:
    job.cancels.append(ClientCall(v["at_ms"], v["asked_ms"], v["answer"], 0))


def _add_reschedule(job: JobEntries, v: dict[str, Any]) -> None:
    job.moves.append(ClientCall(v["at_ms"], v["asked_ms"], v["answer"], v["action_ms"]))


def _add_redrive(job: JobEntries, v: dict[str, Any]) -> None:
    job.redrives.append(ClientCall(v["at_ms"], v["asked_ms"], v["answer"], 0))


def _add_discard(job: JobEntries, v: dict[str, Any]) -> None:
    job.discards.append(ClientCall(v["at_ms"], v["asked_ms"], v["answer"], 0))


def _add_start(job: JobEntries, v: dict[str, Any]) -> None:
    job.starts.append(
        HandlerStart(v["at_ms"], v["attempt"], v["process"], v["token"], v["biz_type"])
    )


def _add_end(job: JobEntries, v: dict[str, Any]) -> None:
    verdict = v.get("verdict", "")
    how = AGAIN if v["failed"] and verdict != STOPPED else _HOW[verdict]
    job.ends.append(HandlerEnd(v["at_ms"], v["attempt"], v["token"], how))


def _set_final_row(job: JobEntries, v: dict[str, Any]) -> None:
    job.row = FinalRow(
        v["status"], v["attempts"], v["action_ms"], v.get("token", ""), v.get("dead_letter")
    )


_HOW = {"": SUCCESS, "retry": AGAIN, "snooze": SNOOZED, "drop": DROPPED, "dead": BURIED} | {
    STOPPED: STOPPED
}
_ADD = {
    "Scheduled": _add_schedule,
    "CancelAnswered": _add_cancel,
    "RescheduleAnswered": _add_reschedule,
    "Redriven": _add_redrive,
    "DiscardAnswered": _add_discard,
    "Started": _add_start,
    "Ended": _add_end,
    "Row": _set_final_row,
}
