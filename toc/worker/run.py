"""One claimed job on its way through the worker."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from toc.domain.job import Job
from toc.handlers.registry import HandlerSpec
from toc.store.claims import Outcome


@dataclass(slots=True)
class Run:
    """`lease_end_s`: when the lease surely holds no more, by this process' monotonic clock.

    `due_ms` is the due time that the claim found (not in the row any more: there it is the lease).
    """

    job: Job
    spec: HandlerSpec
    topic: str
    database: int
    token: str
    lease_end_s: float
    queued_s: float
    settled: threading.Event | None = None  # somebody waits for it


@dataclass(frozen=True, slots=True)
class Ended:
    """A run and what it came to."""

    run: Run
    outcome: Outcome
