"""A job, its states, and the only moves between them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any, NamedTuple

from toc.domain.times import datetime_of


class Status(IntEnum):
    """The column `status`. 0, 2 and 3 are what DBAs have always queried."""

    PENDING = 0
    RUNNING = 1
    DONE = 2
    CANCELLED = 3
    DEAD = 4  # retries used up; in toc_dead_job too

    @property
    def live(self) -> bool:
        """True while toc still has to look at the row."""
        return self <= Status.RUNNING


TRANSITIONS: dict[Status, dict[str, Status]] = {
    Status.PENDING: {
        "claim": Status.RUNNING,
        "cancel": Status.CANCELLED,
        "reschedule": Status.PENDING,
        "repair": Status.PENDING,  # due at its action_time again (reconciliation)
    },
    Status.RUNNING: {
        "done": Status.DONE,
        "retry": Status.PENDING,
        "snooze": Status.PENDING,
        "give_back": Status.PENDING,
        "drop": Status.CANCELLED,
        "bury": Status.DEAD,
        "take_over": Status.RUNNING,  # only when the lease is over, by the database's clock
    },
    Status.DEAD: {"redrive": Status.PENDING},
    Status.DONE: {},
    Status.CANCELLED: {},
}
"""Every legal move: from -> verb -> to. Each verb is one guarded statement in `toc.store`."""


class Answer(str):
    """What cancel, reschedule or redrive found: one of the texts below, with facts beside it.

    cancelled | rescheduled | redriven    it was done
    running | done | already_cancelled | dead | pending    it was not: this is the case
    superseded    redrive: a newer live job holds the job's key
    unknown       there is no such job

    `job_id` is the job that answered (None for unknown), `attempts` how often it was tried.
    """

    __slots__ = ("attempts", "job_id")
    job_id: int | None
    attempts: int

    def __new__(cls, text: str, job_id: int | None = None, attempts: int = 0) -> Answer:
        self = super().__new__(cls, text)
        self.job_id, self.attempts = job_id, attempts
        return self


ANSWER_OF_STATUS = {
    Status.PENDING: "pending",
    Status.RUNNING: "running",
    Status.DONE: "done",
    Status.CANCELLED: "already_cancelled",
    Status.DEAD: "dead",
}


@dataclass(frozen=True, slots=True)
class Job:
    """One job as the database has it. Times are milliseconds since 1970 UTC.

    `due_ms` is when toc looks at the row next: action_time while pending, the retry's time after a
    failure, the end of the lease while running, None once ended. `token` names the claim that runs
    the job (or ran it last): `toc.once` compares it with the row's, inside the handler's
    own transaction. `claimed_ms` is when it was last taken.
    """

    job_id: int
    biz_id: int
    biz_type: str
    status: Status
    action_ms: int
    attribute: dict[str, Any]
    due_ms: int | None
    attempts: int
    token: str | None
    dedup_key: str | None = None
    claimed_ms: int | None = None

    @property
    def action_time(self) -> datetime:
        """The moment the business asked for, as an aware UTC datetime."""
        return datetime_of(self.action_ms)

    @property
    def due_time(self) -> datetime | None:
        """`due_ms` as an aware UTC datetime."""
        return None if self.due_ms is None else datetime_of(self.due_ms)


@dataclass(frozen=True, slots=True)
class Event:
    """What a person or an unhappy path did to a job.

    what: the verb. attempts: how often the job has been tried, after the event. actor: who did it, a
    person's name or a process (host:pid…). reason: why, where something is known.
    """

    at_ms: int
    what: str
    from_status: Status
    to_status: Status
    attempts: int
    actor: str
    reason: str | None


class NewJob(NamedTuple):
    """A job that is about to be inserted; `type_no` is the catalogue's number of its biz_type."""

    job_id: int
    biz_id: int
    type_no: int
    action_ms: int
    attribute: str | None  # JSON text
    dedup_key: str | None


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A dead letter: a job whose attempts are used up, with its last error."""

    job_id: int
    biz_id: int
    biz_type: str
    attempts: int
    error: str
    dead_ms: int
