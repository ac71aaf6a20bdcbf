"""A job, its statuses, and the legal transitions between them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from toc.domain.biz_ids import BusinessId
from toc.domain.occurrence_keys import nominal_ms_of_key
from toc.domain.result_document import Progress
from toc.domain.run_control import RunControl
from toc.domain.times import datetime_of
from toc.errors import InvalidInput

if TYPE_CHECKING:
    from toc.domain.countdown import Countdown


class Status(IntEnum):
    """The values of the column `status`."""

    PENDING = 0
    RUNNING = 1
    DONE = 2
    CANCELLED = 3
    DEAD = 4  # its attempts are used up; toc_dead_job has the error

    @property
    def live(self) -> bool:
        """True for pending and running: toc still has to act on the row."""
        return self <= Status.RUNNING


TRANSITIONS: dict[Status, dict[str, Status]] = {
    Status.PENDING: {
        "claim": Status.RUNNING,
        "cancel": Status.CANCELLED,
        "reschedule": Status.PENDING,
        "run_now": Status.PENDING,
        "repair": Status.PENDING,  # reconciliation sets due_time back to action_time
    },
    Status.RUNNING: {
        "done": Status.DONE,
        "retry": Status.PENDING,
        "snooze": Status.PENDING,
        "give_back": Status.PENDING,
        "drop": Status.CANCELLED,
        "bury": Status.DEAD,
        "take_over": Status.RUNNING,  # only when the lease is over, by the database's clock
        "undo_take_over": Status.RUNNING,  # no handler was started: the row becomes as before the take-over
    },
    Status.DEAD: {"redrive": Status.PENDING, "discard": Status.CANCELLED},
    Status.DONE: {},
    Status.CANCELLED: {},
}
"""Every legal transition: from -> verb -> to. Each verb is one guarded statement in `toc.store`."""


class AnswerKind(StrEnum):
    """The possible answers of cancel, reschedule, run_now, redrive, discard and arrive."""

    CANCELLED = "cancelled"
    RESCHEDULED = "rescheduled"
    REDRIVEN = "redriven"
    ARRIVED = "arrived"
    COMPLETED = "completed"
    REPEATED = "repeated"
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    ALREADY_CANCELLED = "already_cancelled"
    DEAD = "dead"
    SUPERSEDED = "superseded"
    UNKNOWN = "unknown"


_OK = {
    AnswerKind.CANCELLED, AnswerKind.RESCHEDULED, AnswerKind.REDRIVEN,
    AnswerKind.ARRIVED, AnswerKind.COMPLETED, AnswerKind.REPEATED,
}  # fmt: skip


class Answer(str):
    """The answer of cancel, discard, reschedule, run_now or redrive: one of these texts, with facts.

    cancelled | rescheduled | redriven    this call did it (discard: cancelled)
    running | done | already_cancelled | dead | pending    it did not: the job's current status
    superseded    redrive: a newer live job holds the job's key
    unknown       there is no such job

    `ok`: True when the call changed the job (the first line). `bool(answer)` is `answer.ok`, so
    "already_cancelled" is false: code that may cancel twice tests `answer in ("cancelled",
    "already_cancelled")`. `kind`: the text as an enum. `job_id`: the job (None for unknown). `attempts`:
    how often it was tried. `hint`: what may be wrong with the call, as a text for people; only with
    "unknown", otherwise None.
    """

    __slots__ = ("attempts", "hint", "job_id")
    job_id: int | None
    attempts: int
    hint: str | None

    def __new__(
        cls, text: str, job_id: int | None = None, attempts: int = 0, hint: str | None = None
    ) -> Self:
        self = super().__new__(cls, AnswerKind(text).value)
        self.job_id, self.attempts, self.hint = job_id, attempts, hint
        return self

    @property
    def kind(self) -> AnswerKind:
        """The text as an enum, for `match` and for type checkers."""
        return AnswerKind(str(self))

    @property
    def ok(self) -> bool:
        """Whether the call changed the job as asked."""
        return self.kind in _OK

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        facts = (("job_id", self.job_id), ("attempts", self.attempts), ("hint", self.hint))
        told = "".join(f", {name}={value!r}" for name, value in facts if value)
        return f"Answer({str(self)!r}{told})"


class Scheduled(NamedTuple):
    """What `schedule(..., details=True)` did.

    `did`: "inserted", a new job; "replaced", the live job with the same dedup_key got the new time
    and attribute; "kept", that job is unchanged. `running`: the kept job runs already, so it does not use the
    new time and attribute.
    """

    job_id: int
    did: Literal["inserted", "replaced", "kept"]
    running: bool = False

    @property
    def created(self) -> bool:
        """Whether the call inserted a new job."""
        return self.did == "inserted"


ANSWER_OF_STATUS = {
    Status.PENDING: AnswerKind.PENDING,
    Status.RUNNING: AnswerKind.RUNNING,
    Status.DONE: AnswerKind.DONE,
    Status.CANCELLED: AnswerKind.ALREADY_CANCELLED,
    Status.DEAD: AnswerKind.DEAD,
}


@dataclass(frozen=True, slots=True)
class Job:
    """One job, as read from the database. Times are milliseconds since 1970 UTC.

    `due_ms` is when toc acts on the row next: action_time while pending, the retry's time after a
    failure, the end of the lease while running, None once ended. `token` identifies the claim that runs
    the job (or ran it last): `toc.complete` compares it with the row's, inside the handler's
    own transaction. `claimed_ms`: when it was last claimed; None: never. `trace`: what the caller or a hook
    gave with the job, as a W3C traceparent. `priority`: 0 to 9, which of the type's due jobs that wait goes
    first. `result`: what `toc.Done(result)`
    has kept; None: nothing. `last_progress`: what `progress` has told last; None: nothing. `get` and `find`
    read these two; the job of a handler does not have them.
    """

    job_id: int
    biz_id: int | str
    biz_type: str
    status: Status
    action_ms: int
    attribute: dict[str, Any]
    due_ms: int | None
    attempts: int
    token: str | None
    dedup_key: str | None = None
    claimed_ms: int | None = None
    tenant: str | None = None
    trace: str | None = None
    priority: int = 0
    result: Any = None
    last_progress: Progress | None = None
    _control: RunControl | None = field(default=None, repr=False, compare=False)
    # A countdown's state, or the function that reads it.
    _countdown: Countdown | Callable[[Job], Countdown | None] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def countdown(self) -> Countdown | None:
        """How far a countdown is, and what made it fire; None: the job is no countdown (`toc.countdown`).

        In a handler in this process the first use reads the database, and raises StoreUnavailable if it does
        not answer. In an `async def` handler: `await asyncio.to_thread(lambda: job.countdown)`.
        """
        if callable(self._countdown):
            object.__setattr__(self, "_countdown", self._countdown(self))
        return self._countdown  # type: ignore[return-value]  # it was read

    @property
    def lost(self) -> threading.Event:
        """Set when the handler has lost its claim on the job: its outcome will be refused.

        This happens when the worker stood still, or could not reach the database, for longer than
        `worker.lease_s`, and another worker has taken the job over; or when a person changed the row by
        SQL. A long handler checks `job.lost.is_set()` between its steps, or waits with
        `job.lost.wait(seconds)` instead of `time.sleep(seconds)`. An `async def` handler is cancelled.
        Outside of a handler the event is never set.
        """
        return threading.Event() if self._control is None else self._control.lost

    def extend(self, seconds: float) -> None:
        """Moves the timeout of this attempt by so many seconds, for a handler that needs longer.

        The worker goes on to renew the lease of the job until the new timeout. All extensions of an attempt
        together are at most `worker.extend_s_max` (default 3600 s). Raises InvalidInput beyond that, for a
        number that is not above 0, and for a job that no handler runs.
        """
        if self._control is None:
            raise InvalidInput("job", self.job_id, "is not run by a handler: nothing to extend")
        self._control.extend(seconds)

    def progress(self, done: int, total: int) -> None:
        """Tells how far the handler is: `done` of `total`, integers with 0 <= done <= total and total >= 1.

        `get(job_id).last_progress` shows it. The worker writes it at most once per `worker.progress_s`
        (default 1 s), and once more with the outcome, so a handler may call this as often as it likes.
        Nothing is written for a job whose claim is lost. Raises InvalidInput for other numbers, and for a job
        that no handler runs.
        """
        if self._control is None:
            raise InvalidInput("job", self.job_id, "is not run by a handler: it makes no progress")
        self._control.tell_progress(done, total)

    @property
    def action_time(self) -> datetime:
        """The moment the business asked for, as an aware UTC datetime."""
        return datetime_of(self.action_ms)

    @property
    def nominal_time(self) -> datetime | None:
        """For an occurrence of a recurring schedule: the time of the schedule that it stands for, in UTC.

        `action_time` is later by the schedule's jitter, and after a snooze. None: the job is no occurrence.
        """
        nominal_ms = nominal_ms_of_key(self.dedup_key)
        return None if nominal_ms is None else datetime_of(nominal_ms)

    @property
    def due_time(self) -> datetime | None:
        """`due_ms` as an aware UTC datetime."""
        return None if self.due_ms is None else datetime_of(self.due_ms)


@dataclass(frozen=True, slots=True)
class Event:
    """A recorded change of a job: by a person, or by anything but a normal start and end.

    what: the verb. attempts: the number of attempts after the event. actor: a person's name or a process
    (host:pid…). reason: None if it is not known. account: the database account that wrote the event, as the
    server recorded it; None: SQLite. Comparisons ignore `account`. run_id: the run of `toc admin` or of a
    repair that made the change. related_job_id: for a repaired misfit, the job that replaces it; for that
    job, the misfit. claimed_ms: when the attempt began that the event ends; None: the event ends no attempt,
    or the moment when the attempt ended is not known, because its lease was lost.
    """

    at_ms: int
    what: str
    from_status: Status
    to_status: Status
    attempts: int
    actor: str
    reason: str | None
    account: str | None = field(default=None, compare=False)
    run_id: str | None = None
    related_job_id: int | None = None
    claimed_ms: int | None = None

    @property
    def took_ms(self) -> int | None:
        """How long the attempt took that the event ends, from its claim; None: see `claimed_ms`."""
        return None if self.claimed_ms is None else max(0, self.at_ms - self.claimed_ms)


class NewJob(NamedTuple):
    """A job that is about to be inserted; `type_no` is the number of its biz_type.

    biz_id: the integer, or the hash of `biz_text`. seal: if the payload is encrypted, makes `attribute` for
    another job_id, since a payload is bound to its row.
    """

    job_id: int
    biz_id: int
    type_no: int
    action_ms: int
    attribute: str | None  # JSON text
    dedup_key: str | None
    biz_text: str | None = None
    tenant: str | None = None
    trace: str | None = None
    priority: int = 0
    seal: Callable[[int], str] | None = None

    def attribute_for(self, job_id: int) -> str | None:
        """The attribute as it is written into the row of this id."""
        return self.attribute if self.seal is None else self.seal(job_id)

    @property
    def business_id(self) -> BusinessId:
        return BusinessId(self.biz_id, self.biz_text, self.tenant)


@dataclass(frozen=True, slots=True)
class DeadJob:
    """A dead letter: a job whose attempts are used up, with its last error."""

    job_id: int
    biz_id: int | str
    biz_type: str
    attempts: int
    error: str
    dead_ms: int
    tenant: str | None = None
