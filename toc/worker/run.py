"""One claimed job on its way through the worker."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import NamedTuple

from toc.domain.job import Job
from toc.handlers.registry import HandlerSpec
from toc.store.claims import Outcome


@dataclass(slots=True)
class Run:
    """`claimed_ms`: the database's time at its claim. `lease_end_s`: when the lease surely holds no more,
    by this process' monotonic clock.

    Its way, by the monotonic clock: `asked_s`, `queued_s`, `started_s`: when the claim began, when it was
    over, when the handler was called. `found_ms`: the server's time that found it due (None: not known).
    """

    job: Job
    spec: HandlerSpec
    topic: str
    database: int
    token: str
    claimed_ms: int
    lease_end_s: float
    asked_s: float
    queued_s: float
    found_ms: int | None = None
    started_s: float = 0.0
    settled: threading.Event | None = None  # somebody waits for it

    def now_ms(self, now_s: float) -> int:
        """The database's time, carried on from the claim, or more. `now_s`: the monotonic clock's.

        Never less: a delay that is counted from it does not end early. More by as long as the claim took
        at most: it was made at some time between asking and being answered, and may have waited for locks
        after it had read the time.

        Not Redis' time, though a pop brings that more often: a try that is put off must not be
        put off by the hour that Redis' clock is wrong.
        """
        return self.claimed_ms + 1 + math.ceil((now_s - self.asked_s) * 1000)

    def late_s(self, now_s: float) -> float:
        """How long after its action time it is, at most (see `now_ms`)."""
        return max(0.0, (self.claimed_ms - self.job.action_ms) / 1000 + now_s - self.asked_s)


class Ended(NamedTuple):
    """A run and what it came to."""

    run: Run
    outcome: Outcome
