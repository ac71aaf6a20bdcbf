"""One claimed job on its way through the worker."""

from __future__ import annotations

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

    Its way, for the metrics: `found_ms`, the server's time that found it due (None: not known);
    `asked_s`, `queued_s`, `started_s`: when the claim began, when it was over, when the handler was
    called, by the monotonic clock.
    """

    job: Job
    spec: HandlerSpec
    topic: str
    database: int
    token: str
    claimed_ms: int
    lease_end_s: float
    queued_s: float
    found_ms: int | None = None
    asked_s: float | None = None
    started_s: float = 0.0
    settled: threading.Event | None = None  # somebody waits for it

    def now_ms(self, now_s: float) -> int:
        """The database's time, carried on from the claim. `now_s`: the monotonic clock's.

        Not Redis' time, though a pop brings that more often: a try that is put off must not be
        put off by the hour that Redis' clock is wrong.
        """
        return self.claimed_ms + int((now_s - self.queued_s) * 1000)


class Ended(NamedTuple):
    """A run and what it came to."""

    run: Run
    outcome: Outcome
