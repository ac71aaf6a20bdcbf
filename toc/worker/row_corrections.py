"""Corrections of rows after an answer was lost, or when a hold ends; the settler writes them.

A claim or take-over whose answer was lost may have been committed. Nobody runs such a job, so the job is
given back under the token of the claim; if the claim was not committed, giving back changes nothing. A
correction waits for its database without a time limit, because the correction stays valid while the row has
the token. A correction never waits for a lock: when a row is locked, the correction is retried later, and
other corrections are written.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from toc.errors import StoreUnavailable, is_away
from toc.runtime.clock import Clock
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.service import Inbox
from toc.store.claims import Claims, Outcome
from toc.store.databases import Database
from toc.timer.reminders import Reminder
from toc.worker.acks import Ack

# Jobs per database; beyond this the oldest corrections are dropped: leases end.
CORRECTIONS_MAX = 10_000
AGAIN_S, TRIES_MAX = 1.0, 60  # retries of a correction that fails though its database answers
REST = 4  # the pause after a wait for a table lock is this many times as long as the wait


def _new_event() -> threading.Event:
    # `threading.Event` is looked up at each call, because the simulation replaces it.
    return threading.Event()


@dataclass(slots=True, eq=False, kw_only=True)
class RowCorrection(ABC):
    """`written` is set when the correction is in the database, is not needed, or was dropped."""

    written: threading.Event = field(default_factory=_new_event)
    tries: int = 0
    again_s: float = float("-inf")  # not retried before this time

    @property
    @abstractmethod
    def uncorrected_job_ids(self) -> Sequence[int]:
        """The jobs whose rows are not corrected yet."""

    @abstractmethod
    def correct_rows(self, database: Database, claims: Claims) -> Sequence[Ack]:
        """Corrects all rows that are not locked; returns the acks to send to Redis.

        Afterwards `uncorrected_job_ids` are those whose rows were locked.
        """


@dataclass(slots=True, eq=False)
class GiveBackJobs(RowCorrection):
    """Gives back the jobs of one claim, or of one take-over. `due_ms` None: the jobs were not popped."""

    topic: str
    outcomes: Sequence[Outcome]
    due_ms: int | None = None

    @property
    def uncorrected_job_ids(self) -> Sequence[int]:
        return [outcome.job_id for outcome in self.outcomes]

    def correct_rows(self, database: Database, claims: Claims) -> Sequence[Ack]:
        locked: set[int] = set()
        held = claims.settle_jobs(database, self.outcomes, locked)
        self.outcomes = [o for o in self.outcomes if o.job_id in locked and o[:2] not in held]
        if self.due_ms is None:
            return ()
        return [Ack(self.topic, job_id, Reminder(self.due_ms, job_id)) for job_id, _ in held]


@dataclass(slots=True, eq=False)
class ChangeAloneMark(RowCorrection):
    """Removes ":alone" from a run's token in the row, or sets it again, by replacing `seen` with `token`.

    ":alone" is removed when other jobs start to run at the same time, and set again when the run hangs.
    """

    shard: int
    job_id: int
    seen: str
    token: str
    done: bool = False

    @property
    def uncorrected_job_ids(self) -> Sequence[int]:
        return [] if self.done else [self.job_id]

    def correct_rows(self, database: Database, claims: Claims) -> Sequence[Ack]:
        self.done = claims.replace_claim_token(
            database, self.shard, self.job_id, self.seen, self.token
        )
        return ()


class CorrectionQueue:
    """The corrections of one database, in order. The settle stage calls `write_next_correction`.

    `wake()` wakes the settle stage.
    """

    def __init__(
        self,
        database: Database,
        claims: Claims,
        acks: Inbox[Sequence[Ack]],
        clock: Clock,
        log_throttle: LogThrottle,
        wake: Callable[[], None],
    ) -> None:
        self._database, self._claims, self._acks = database, claims, acks
        self._clock, self._log_throttle, self._wake = clock, log_throttle, wake
        self._lock = threading.Lock()
        self._queue: deque[RowCorrection] = deque()
        self._again_s = float("-inf")

    def __len__(self) -> int:
        return len(self._queue)

    def enqueue(self, correction: RowCorrection, /) -> None:
        """Queues a correction, which carries no permit. Any thread; never blocks."""
        with self._lock:
            self._queue.append(correction)
            while len(self._queue) > 1 and self._count_queued_jobs() > CORRECTIONS_MAX:
                self._queue.popleft().written.set()  # so that no thread waits for it any longer
                text = (
                    "database %d: claims with lost answers are not given back: jobs wait for leases"
                )
                self._log_throttle.warning("corrections", text, self._database.index)
        self._wake()

    def _count_queued_jobs(self) -> int:
        return sum(len(each.uncorrected_job_ids) for each in self._queue)

    def write_next_correction(self) -> float:
        """Writes one correction. Returns the seconds until the next correction.

        Raises StoreUnavailable and keeps the correction when the database does not answer.
        """
        now_s = self._clock.monotonic_s()
        with self._lock:
            if not self._queue:
                return float("inf")
            wait_s = max(self._again_s, min(each.again_s for each in self._queue)) - now_s
            first = self._next_due_correction(now_s) if wait_s <= 0 else None
        if first is None:
            return wait_s if wait_s > 0 else AGAIN_S
        try:
            acks = first.correct_rows(self._database, self._claims)
        except Exception as error:
            locked = isinstance(error, StoreUnavailable) and error.locked
            if is_away(error) and not locked:
                raise
            first.tries += not locked
            text = "database %d: a claim whose answer was lost cannot be given back: %s"
            self._log_throttle.warning("correction", text, self._database.index, error)
            ended_s = self._clock.monotonic_s()
            pause_s = max(AGAIN_S, REST * (ended_s - now_s)) if locked else AGAIN_S
            self._again_s = ended_s + pause_s
            self._remove_or_requeue(first, back=first.tries < TRIES_MAX)
            return pause_s
        if first.uncorrected_job_ids:
            # Rows were locked: the correction keeps its place, and later corrections go on.
            first.again_s = self._clock.monotonic_s() + AGAIN_S
        else:
            self._remove_or_requeue(first, back=False)
        self._acks.enqueue(acks)
        return 0

    def _next_due_correction(self, now_s: float) -> RowCorrection | None:
        """The first correction that is due and that follows no other correction of the same job."""
        before: set[int] = set()
        for each in self._queue:
            if each.again_s <= now_s and before.isdisjoint(each.uncorrected_job_ids):
                return each
            before.update(each.uncorrected_job_ids)
        return None

    def _remove_or_requeue(self, one: RowCorrection, *, back: bool) -> None:
        """Removes a correction from the queue; `back`: appends it again for a retry."""
        with self._lock:
            if one in self._queue:  # else it was dropped because the queue was full
                self._queue.remove(one)
                if back:
                    self._queue.append(one)
        if not back:
            one.written.set()
