"""Jobs whose lease was lost, one at a time.

Whoever claimed them has died or hangs, and one of them may be the reason (I7). So each is taken over
in a transaction of its own and runs while no other suspect runs in this process: if it kills the
process, it alone has lost an attempt among the suspects. Its last attempt runs while nothing else
runs here at all, and the token says so; only a lease that was lost by such a run ends a job dead. A
job whose ordinary last attempt shared the fate of a poison job gets one more, alone.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.worker.run import Run

log = logging.getLogger(__name__)

SUSPECTS_MAX = 10_000
IDLE_S, LOOK_S = 1.0, 0.02
QUIET_S_MAX = 2.0  # how long a worker is held for one suspect
QUIET_TRIES_MAX, PAUSE_S_MIN, PAUSE_S_MAX = 5, 10.0, 60.0  # then it runs beside the others
EXTRA_MAX = 3  # attempts beyond max_attempts that a job may get because it was never alone
ALONE = ":alone"  # ends the token of a claim that ran while nothing else did
LOST_LEASE = (
    "lease lost: in its last attempt the worker died, or the handler did not return in time"
)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A running row whose lease was over when it was seen under `token`."""

    database: int
    shard: int
    job_id: int
    type_no: int
    attempts: int
    token: str


class Undertaker(Protocol):
    """What the lane asks of the worker."""

    def bury(self, suspect: Suspect) -> None: ...
    def take_over(self, suspect: Suspect, done: threading.Event, *, alone: bool) -> Run | None: ...
    def max_attempts(self, suspect: Suspect) -> int: ...
    def hold(self, on: bool) -> None: ...
    @property
    def quiet(self) -> bool: ...
    def stuck_beside(self, job_id: int) -> bool: ...


class SuspectLane(Service):
    """Works off suspects one by one; a full lane leaves them to the next pop or scan."""

    def __init__(self, worker: Undertaker, clock: Clock) -> None:
        super().__init__("toc-suspects")
        self._worker, self._clock = worker, clock
        self._queue: deque[Suspect] = deque()
        self._later: list[tuple[float, Suspect]] = []  # those that found no quiet, and when again
        self._known: dict[int, int] = {}  # job_id -> how often it found no quiet
        self._lock = threading.Lock()

    def add(self, suspect: Suspect) -> bool:
        """Queues a suspect; False when the lane is full. One that is queued already is not doubled."""
        with self._lock:
            if suspect.job_id in self._known:
                return True
            if len(self._known) >= SUSPECTS_MAX:
                return False
            self._known[suspect.job_id] = 0
            self._queue.append(suspect)
        self.wake()
        return True

    def run_once(self) -> float:
        """Takes over (or buries) one suspect and waits until it is settled."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._queue += [suspect for due_s, suspect in self._later if due_s <= now_s]
            self._later = [entry for entry in self._later if entry[0] > now_s]
            if not self._queue:
                return IDLE_S
            suspect = self._queue.popleft()
        again = False
        try:
            again = self._handle(suspect)
        finally:
            with self._lock:
                tries = self._known.pop(suspect.job_id, 0) + 1
                if again:
                    pause_s = min(PAUSE_S_MAX, PAUSE_S_MIN * 2 ** (tries - 1))
                    self._known[suspect.job_id] = tries
                    self._later.append((self._clock.monotonic_s() + pause_s, suspect))
        return 0

    def _handle(self, suspect: Suspect) -> bool:
        """True: it needs the worker to itself, and has to come again."""
        left = self._worker.max_attempts(suspect) - suspect.attempts
        if left <= -EXTRA_MAX or (left <= 0 and suspect.token.endswith(ALONE)):
            self._worker.bury(suspect)
            return False
        # A last attempt that was shared (an ordinary claim) proves nothing: one more, alone.
        alone = left <= 1
        done = threading.Event()
        try:
            if alone and not self._wait_until_quiet():
                if self._known.get(suspect.job_id, 0) < QUIET_TRIES_MAX:
                    return not self.stopping
                alone = False  # a worker with long handlers is never quiet: better beside them than never
                self._worker.hold(False)
            # Another job's handler that hangs is not waited for, but may yet end the process: that would
            # prove nothing against this one.
            alone = alone and not self._worker.stuck_beside(suspect.job_id)
            run = None if self.stopping else self._worker.take_over(suspect, done, alone=alone)
            # One that hangs beyond its lease is nobody's any more: the next suspect goes on.
            while run and not self.stopping and self._clock.monotonic_s() < run.lease_end_s:
                if done.wait(LOOK_S):
                    break
        finally:
            self._worker.hold(False)
        return False

    def _wait_until_quiet(self) -> bool:
        self._worker.hold(True)
        deadline_s = self._clock.monotonic_s() + QUIET_S_MAX
        while not self._worker.quiet and not self.stopping:
            if self._clock.monotonic_s() > deadline_s:
                return False
            self._stopping.wait(LOOK_S)
        return True
