"""Recovers jobs whose lease was lost, one at a time per database (ADR 3, ADR 19).

The process that claimed them has died or hangs, and one of them may be the reason (I7): each is a suspect.
So each suspect is taken over in a transaction of its own, and runs while no other suspect of its database
runs in this process: if it kills the process, no other suspect of its database loses an attempt. Its last
attempt runs while nothing else runs in this process, and the token is marked ":alone"; only a lease lost by
such a run ends a job dead. A job whose ordinary last attempt ran in the same process as a poison job gets
one more attempt, alone.

While a last attempt runs alone the process is held: it claims no new jobs. A hold lasts up to HOLD_S_MAX;
then the run's token loses its mark, and other jobs start again.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from toc.domain.tokens import ALONE
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.worker.hold import BUSY_S, ProcessHold
from toc.worker.run import Run

log = logging.getLogger(__name__)

SUSPECTS_MAX = 10_000  # of each database
IDLE_S, CHECK_S = 60.0, 0.02
QUIET_S_MAX = 2.0  # how long a held process may take until nothing runs
HOLD_S_MAX = 3.0  # how long a last attempt then runs alone
QUIET_TRIES_MAX, PAUSE_S_MIN, PAUSE_S_MAX = 5, 10.0, 60.0  # after these tries it runs with others
NEEDS_HOLD = 0.0
DATABASE_RETRY_S = 3.0  # a database that does not answer, or refuses, is tried again after this
# From finding that a job has lost its last lease to burying it: a worker that has taken it over and got no
# answer gives it back meanwhile. Its settler tries that at least every two seconds.
BURY_AFTER_S = 5.0
EXTRA_MAX = 3  # attempts beyond max_attempts that a job may get because none of them ran alone
LOST_LEASE = (
    "lease lost: in its last attempt the worker died, or the handler did not return in time"
)


@dataclass(frozen=True, slots=True)
class LostLease:
    """A suspect: a running row under `token` whose lease was over."""

    database: int
    shard: int
    job_id: int
    type_no: int
    attempts: int
    token: str


@dataclass(slots=True)
class QueuedSuspect:
    """A suspect in the queue. `tries`: how often the process did not become quiet for it.

    `lost`: it has lost its last lease, and is buried when it is processed again.
    """

    suspect: LostLease
    tries: int = 0
    lost: bool = False


class RecoveryWorker(Protocol):
    """What `LeaseRecovery` needs of the worker."""

    def bury(self, suspect: LostLease) -> None: ...
    def take_over(
        self, suspect: LostLease, done: threading.Event, *, alone: bool, holding: bool
    ) -> Run | None:
        """Claims the suspect and queues it. None: another process has it. `done`: set when it is settled.

        Raises ProcessIsHeld when another LeaseRecovery holds the process. When the answer is lost, `done`
        is set after the job was given back; when the database refuses, at once.
        """

    def change_alone_mark(self, suspect: LostLease, run: Run, *, alone: bool) -> threading.Event:
        """Sets or removes ":alone" in the token of a run. The event is set when the row has the token."""

    def database_answers(self, database: int) -> bool:
        """Whether the database answers at this moment."""

    def lease_s(self, suspect: LostLease) -> float: ...
    def max_attempts(self, suspect: LostLease) -> int: ...
    @property
    def is_quiet(self) -> bool: ...
    def has_other_stuck_handler(self, job_id: int) -> bool: ...
    def is_stuck(self, job_id: int) -> bool: ...


class ProcessIsHeld(Exception):
    """A take-over must wait, because another LeaseRecovery holds the process."""


class LeaseRecovery(Service):
    """Takes over the suspects of one database; when its queue is full, the next pop or scan finds them."""

    def __init__(
        self, database: int, worker: RecoveryWorker, hold: ProcessHold, clock: Clock
    ) -> None:
        super().__init__(f"toc-suspects-{database}")
        self._database, self._worker, self._hold, self._clock = database, worker, hold, clock
        self._queue: deque[QueuedSuspect] = deque()
        self._needing_hold: deque[QueuedSuspect] = deque()  # before their last attempt
        self._later: list[
            tuple[float, int, QueuedSuspect]
        ] = []  # a heap by the time of the next try
        self._count = itertools.count()
        self._queued_ids: set[int] = set()  # job_ids of all three
        self._rest_until_s = float("-inf")
        self._lock = threading.Lock()

    def add(self, suspect: LostLease) -> bool:
        """Queues a suspect, unless it is queued already; False when the queue is full."""
        with self._lock:
            if suspect.job_id in self._queued_ids:
                return True
            if len(self._queued_ids) >= SUSPECTS_MAX:
                return False
            self._queued_ids.add(suspect.job_id)
            self._queue.append(QueuedSuspect(suspect))
        self.wake()
        return True

    def run_once(self) -> float:
        """Takes over (or buries) one suspect and waits until it is settled."""
        now_s = self._clock.monotonic_s()
        if now_s < self._rest_until_s:
            return self._rest_until_s - now_s
        while self._later and self._later[0][0] <= now_s:
            self._queue.append(heappop(self._later)[2])
        hold_s = self._hold.wait_s if self._needing_hold else IDLE_S
        if self._needing_hold and not hold_s:
            # Asked before the hold: else the process would be held while this waits for the database.
            if not self._worker.database_answers(self._database):
                hold_s = DATABASE_RETRY_S
            elif self._hold.try_begin():
                self._process_suspect(self._needing_hold.popleft(), self._run_with_process_held)
                return 0
        if self._queue:
            self._process_suspect(self._queue.popleft(), self._take_over_or_bury)
            return 0
        later_s = self._later[0][0] - now_s if self._later else IDLE_S
        return min(hold_s, later_s)

    def _process_suspect(
        self, waiting: QueuedSuspect, how: Callable[[QueuedSuspect], float | None]
    ) -> None:
        """Calls `how(waiting)`, which returns the seconds until the suspect is due again; None: finished."""
        again_s: float | None = None
        try:
            again_s = how(waiting)
        except Exception:
            self._rest_until_s = self._clock.monotonic_s() + DATABASE_RETRY_S
            raise
        finally:
            if again_s is None:
                with self._lock:
                    self._queued_ids.discard(waiting.suspect.job_id)
            elif again_s:
                due_s = self._clock.monotonic_s() + again_s
                heappush(self._later, (due_s, next(self._count), waiting))
            else:
                self._needing_hold.append(waiting)

    def _take_over_or_bury(self, waiting: QueuedSuspect) -> float | None:
        suspect = waiting.suspect
        left = self._worker.max_attempts(suspect) - suspect.attempts
        alone = suspect.token.endswith(ALONE)  # guard: dead-when-alone
        if left <= -EXTRA_MAX or (left <= 0 and alone):
            if not waiting.lost:
                waiting.lost = True
                return BURY_AFTER_S
            self._worker.bury(suspect)
            return None
        # A last attempt that did not run alone (an ordinary claim) proves nothing: one more, alone.
        if left <= 1 and waiting.tries <= QUIET_TRIES_MAX:
            return NEEDS_HOLD
        done = threading.Event()
        try:
            run = self._worker.take_over(suspect, done, alone=False, holding=False)
        except ProcessIsHeld:
            return BUSY_S
        if run is not None:
            self._wait_for_any(run.lease_end_s, done)
        return None

    def _run_with_process_held(self, waiting: QueuedSuspect) -> float | None:
        """A last attempt, while this lane holds the process."""
        try:
            if not self._wait_until_quiet():
                waiting.tries += 1
                # A worker with long handlers is never quiet: better to run with them than never.
                pause_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** (waiting.tries - 1))
                return pause_s if waiting.tries <= QUIET_TRIES_MAX else BUSY_S
            # A stuck handler of another job is not waited for, but may still end the process; that would
            # prove nothing about this job, so the token gets no mark.
            alone = not self._worker.has_other_stuck_handler(waiting.suspect.job_id)
            done = threading.Event()
            run = self._take_over_held(waiting.suspect, done, alone=alone)
            if run is None:
                return None
            end_s = min(run.lease_end_s, self._clock.monotonic_s() + HOLD_S_MAX)
            shared = not self._wait_for_any(end_s, done) and alone
            if shared:  # the row's mark is removed before other jobs start
                dropped = self._worker.change_alone_mark(waiting.suspect, run, alone=False)
                self._wait_for_any(run.lease_end_s, dropped, done)
        finally:
            self._hold.end()
        # A run that hangs beyond its lease is not waited for: the next suspect is processed.
        ended = self._wait_for_any(run.lease_end_s, done)
        if shared and not ended and self._worker.is_stuck(waiting.suspect.job_id):
            self._worker.change_alone_mark(
                waiting.suspect, run, alone=True
            )  # no fault of those beside it
        return None

    def _take_over_held(
        self, suspect: LostLease, done: threading.Event, *, alone: bool
    ) -> Run | None:
        if self.stopping:
            return None
        lease_end_s = self._clock.monotonic_s() + self._worker.lease_s(suspect)
        try:
            return self._worker.take_over(suspect, done, alone=alone, holding=True)
        except Exception:
            # The row's token may be marked ":alone": no other job may start before that is corrected.
            if alone:
                self._wait_for_any(lease_end_s, done)
            raise

    def _wait_until_quiet(self) -> bool:
        deadline_s = self._clock.monotonic_s() + QUIET_S_MAX
        while not self._worker.is_quiet and not self.stopping:
            if self._clock.monotonic_s() > deadline_s:
                return False
            self._stopping.wait(CHECK_S)
        return True

    def _wait_for_any(
        self, until_s: float, first: threading.Event, *others: threading.Event
    ) -> bool:
        """Waits for one of the events. False: none was set by `until_s`, or this service must stop."""
        while not (first.is_set() or any(event.is_set() for event in others)):
            if self.stopping or self._clock.monotonic_s() > until_s:
                return False
            first.wait(CHECK_S)
        return True
