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

    Its way, for the metrics: `found_ms`, the server's time that found it due (None: not known);
    `asked_s`, `queued_s`, `started_s`: when the claim began, when it was over, when the handler was
    called, by the monotonic clock.
    """

    job: Job
    spec: HandlerSpec
    topic: str
    database: int
    token: str
    lease_end_s: float
    queued_s: float
    found_ms: int | None = None
    asked_s: float | None = None
    started_s: float = 0.0
    settled: threading.Event | None = None  # somebody waits for it


@dataclass(frozen=True, slots=True)
class Ended:
    """A run and what it came to."""

    run: Run
    outcome: Outcome
