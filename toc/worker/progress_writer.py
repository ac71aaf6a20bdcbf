"""Writes the progress of running jobs into their rows, at most once per `worker.progress_s` (ADR 48).

The thread of a writer starts with the first progress that a handler tells: jobs that tell none cost nothing.
"""

from __future__ import annotations

from toc.domain.result_document import encode_document
from toc.runtime.clock import SystemClock
from toc.runtime.service import Service
from toc.store.databases import Database
from toc.worker.context import WorkerContext
from toc.worker.handler_pool import RunningHandlers

IDLE_S = 60.0  # may be any time, because the signal wakes the thread
ROWS_MAX = 500  # rows in one transaction


class ProgressWriter(Service):
    """Writes what the handlers of one database's jobs have told."""

    def __init__(
        self, database: Database, context: WorkerContext, running: RunningHandlers
    ) -> None:
        super().__init__(f"toc-progress-{database.index}")
        self._database, self._claims, self._running = database, context.claims, running
        self._signal, self._period_s = (
            context.progress_signal,
            context.process.settings.worker.progress_s,
        )
        self._clock = (
            SystemClock()
        )  # a rate of writes is one of real time, also in tests with a clock
        self._next_s = float("-inf")
        self._signal.add_listener(self._start_or_wake)

    def _start_or_wake(self) -> None:
        self.start()
        self.wake()

    def run_once(self) -> float:
        """Writes the progress that was told since the last call. Returns the seconds until the next call."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return self._next_s - now_s
        self._next_s = now_s + self._period_s
        self._signal.clear()
        told = []
        for run in self._running.runs_of_database(self._database.index):
            progress = run.control.progress
            if progress is not None and progress is not run.control.written_progress:
                told.append((run, progress))
        for at in range(0, len(told), ROWS_MAX):
            part = told[at : at + ROWS_MAX]
            self._claims.write_documents(
                self._database,
                [
                    (run.job.job_id, run.token, encode_document(progress, None))
                    for run, progress in part
                ],
            )
            for run, progress in part:
                run.control.written_progress = progress
        return self._period_s if told else IDLE_S
