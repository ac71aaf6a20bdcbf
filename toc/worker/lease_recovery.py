"""Recovers jobs whose lease was lost, one at a time per database (ADR 3, ADR 19).

The process that claimed these jobs has died or hangs, and one of the jobs may be the reason (I7): each of
them is a suspect. So each suspect is taken over in a transaction of its own, and runs while no other suspect
of its database runs in this process: if it kills the process, no other suspect of its database loses an
attempt. A suspect's last attempt runs while no other job runs in this process, and under a token that ends in
":alone"; only a lease lost by such a run ends a job dead. A job whose ordinary last attempt ran in the same
process as a poison job gets one more attempt, alone.

While a last attempt runs alone, the process is held: it claims no new jobs. A hold lasts up to HOLD_S_MAX;
then ":alone" is removed from the run's token, and other jobs start again.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from toc.domain.claim_tokens import ALONE
from toc.runtime.service import Service
from toc.store.databases import Database
from toc.worker.context import WorkerContext
from toc.worker.handler_pool import RunningHandlers
from toc.worker.job_run import JobRun
from toc.worker.permits import HOLD_BUSY_S
from toc.worker.take_over import SuspectJob, TakeOver

SUSPECTS_MAX = 10_000  # queued suspects of each database
IDLE_S, CHECK_S = 60.0, 0.02
QUIET_S_MAX = 2.0  # how long a hold waits until no handler runs
HOLD_S_MAX = 3.0  # how long a last attempt runs alone after that wait
# After so many tries to become quiet, a suspect runs beside other jobs; the pauses between the tries.
QUIET_TRIES_MAX, PAUSE_S_MIN, PAUSE_S_MAX = 5, 10.0, 60.0
NEEDS_HOLD = 0.0
DATABASE_RETRY_S = 3.0  # a database that does not answer, or refuses, is tried again after this
REFUSED_AGAIN_S = 0.1  # a suspect whose type's limit is used up is tried again after this
# The time from finding that a job has lost its last lease to its burial. Meanwhile a worker that took the job
# over, but got no answer, gives the job back: its settler tries to at least every two seconds.
BURY_AFTER_S = 5.0
EXTRA_MAX = 3  # attempts beyond max_attempts that a job may get because none of them ran alone


class LeaseRecovery(Service):
    """Takes over the suspects of one database; if its queue is full, the next pop or scan finds the jobs."""

    step_s_max = math.inf  # a step waits for a last attempt, up to the timeout of its type

    def __init__(
        self,
        database: Database,
        context: WorkerContext,
        take_over: TakeOver,
        running: RunningHandlers,
    ) -> None:
        super().__init__(f"toc-suspects-{database.index}")
        self._database, self._take_over, self._running = database, take_over, running
        self._permits, self._clock = context.permits, context.process.clock
        self._hold = context.permits.hold
        self._lease_s = context.process.settings.worker.lease_s
        self._queue: deque[SuspectJob] = deque()
        self._needing_hold: deque[SuspectJob] = deque()  # before their last attempt
        # A heap by the time of the next try.
        self._later: list[tuple[float, int, SuspectJob]] = []
        self._count = itertools.count()
        self._queued_ids: set[int] = set()  # job_ids in the two queues and the heap
        self._rest_until_s = float("-inf")
        self._lock = threading.Lock()

    def enqueue(self, suspect: SuspectJob, /) -> None:
        """Queues a suspect, unless it is queued already or the queue is full. Any thread; never blocks."""
        with self._lock:
            if suspect.job_id in self._queued_ids or len(self._queued_ids) >= SUSPECTS_MAX:
                return
            self._queued_ids.add(suspect.job_id)
            self._queue.append(suspect)
        self.wake()

    def run_once(self) -> float:
        """Takes over one suspect, or ends it dead, and waits until it is settled."""
        now_s = self._clock.monotonic_s()
        if now_s < self._rest_until_s:
            return self._rest_until_s - now_s
        while self._later and self._later[0][0] <= now_s:
            self._queue.append(heappop(self._later)[2])
        hold_s = self._hold.hold_wait_s if self._needing_hold else IDLE_S
        if self._needing_hold and not hold_s:
            # Checked before the hold: no hold may last while this service waits for the database.
            if not self._database_answers():
                hold_s = DATABASE_RETRY_S
            elif self._hold.try_begin_hold():
                self._process_suspect(self._needing_hold.popleft(), self._run_last_attempt_alone)
                return 0
        if self._queue:
            self._process_suspect(self._queue.popleft(), self._take_over_or_bury)
            return 0
        later_s = self._later[0][0] - now_s if self._later else IDLE_S
        return min(hold_s, later_s)

    def _process_suspect(
        self, suspect: SuspectJob, how: Callable[[SuspectJob], float | None]
    ) -> None:
        """Calls `how(suspect)`, which returns the seconds until the suspect is due again; None: finished."""
        again_s: float | None = None
        try:
            again_s = how(suspect)
        except Exception:
            self._rest_until_s = self._clock.monotonic_s() + DATABASE_RETRY_S
            raise
        finally:
            if again_s is None:
                with self._lock:
                    self._queued_ids.discard(suspect.job_id)
            elif again_s:
                due_s = self._clock.monotonic_s() + again_s
                heappush(self._later, (due_s, next(self._count), suspect))
            else:
                self._needing_hold.append(suspect)

    def _take_over_or_bury(self, suspect: SuspectJob) -> float | None:
        left = self._take_over.count_attempts_left(suspect)
        alone = suspect.token.endswith(ALONE)  # guard: dead-when-alone
        if left <= -EXTRA_MAX or (left <= 0 and alone):
            if not suspect.lost:
                suspect.lost = True
                return BURY_AFTER_S
            self._take_over.end_job_as_dead(suspect)
            return None
        # A last attempt that did not run alone (an ordinary claim) proves nothing: one more, alone.
        if left <= 1 and suspect.tries <= QUIET_TRIES_MAX:
            return NEEDS_HOLD
        # Takes a permit even if there is none left, so that the process is not quiet meanwhile.
        if not self._permits.take_permits_beyond_limit(self._database.index, 1):
            return HOLD_BUSY_S
        done = threading.Event()
        try:
            run = self._take_over.take_over_suspect(suspect, done, alone=False)
        finally:
            self._permits.return_permits(self._database.index, 1)
        if run is not None:
            # Not longer, though renewals move the end: a job that survived a lease does not kill processes.
            first_end_s = run.lease_end_s
            self._wait_for_any_event(lambda: first_end_s, done)
        # All refused suspects together ask that often.
        return REFUSED_AGAIN_S * (1 + len(self._later)) if suspect.is_refused else None

    def _run_last_attempt_alone(self, suspect: SuspectJob) -> float | None:
        """Runs a suspect's last attempt while this service holds the process."""
        try:
            if not self._wait_until_no_handler_runs():
                suspect.tries += 1
                # A worker with long handlers is never quiet: better to run with them than never.
                pause_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** (suspect.tries - 1))
                return pause_s if suspect.tries <= QUIET_TRIES_MAX else HOLD_BUSY_S
            # A stuck handler of another job is not waited for, but may still end the process; that would
            # prove nothing about this job, so the token does not end in ":alone".
            alone = self._running.stuck_job_ids <= {suspect.job_id}
            done = threading.Event()
            run = self._take_over_while_process_is_held(suspect, done, alone=alone)
            if run is None:
                return None
            end_s = self._clock.monotonic_s() + HOLD_S_MAX
            shared = (
                not self._wait_for_any_event(lambda: min(run.lease_end_s, end_s), done) and alone
            )
            if shared:  # ":alone" is removed from the row's token before other jobs start
                dropped = self._take_over.change_alone_mark(suspect, run, alone=False)
                self._wait_for_any_event(
                    lambda: max(run.lease_end_s, run.started_s + run.timeout_s), dropped, done
                )
        finally:
            self._hold.end_hold()
        # A run that hangs beyond its lease is not waited for: the next suspect is processed.
        ended = self._wait_for_any_event(lambda: run.lease_end_s, done)
        if shared and not ended and suspect.job_id in self._running.stuck_job_ids:
            # The run hangs by its own fault, not by the fault of the jobs beside it.
            self._take_over.change_alone_mark(suspect, run, alone=True)
        return None

    def _take_over_while_process_is_held(
        self, suspect: SuspectJob, done: threading.Event, *, alone: bool
    ) -> JobRun | None:
        """Takes the suspect over while this process claims no other jobs."""
        if self.stopping:
            return None
        lease_end_s = self._clock.monotonic_s() + self._lease_s
        try:
            return self._take_over.take_over_suspect(suspect, done, alone=alone)
        except Exception:
            # The row's token may end in ":alone": no other job may start before the row is corrected.
            if alone:
                self._wait_for_any_event(lambda: lease_end_s, done)
            raise

    def _database_answers(self) -> bool:
        """Whether the database answers at this moment."""
        if self._permits.outages.is_database_down(self._database.index):
            return False
        try:
            self._database.now_ms()
        except Exception as error:  # noqa: BLE001 - whatever it is, it cannot be asked now
            text = "suspects of database %d wait: %s"
            self._log_throttle.warning("suspects", text, self._database.index, error)
            return False
        return True

    def _wait_until_no_handler_runs(self) -> bool:
        deadline_s = self._clock.monotonic_s() + QUIET_S_MAX
        while not self._permits.no_handler_runs and not self.stopping:
            if self._clock.monotonic_s() > deadline_s:
                return False
            self._stopping.wait(CHECK_S)
        return True

    def _wait_for_any_event(
        self, until_s: Callable[[], float], first: threading.Event, *others: threading.Event
    ) -> bool:
        """Waits for one of the events. False: none was set by `until_s()`, or this service must stop.

        `until_s` is called again and again: renewals move the end of a lease.
        """
        while not (first.is_set() or any(event.is_set() for event in others)):
            if self.stopping or self._clock.monotonic_s() > until_s():
                return False
            first.wait(CHECK_S)
        return True
