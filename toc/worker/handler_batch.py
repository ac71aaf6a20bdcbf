"""Batch handlers: which jobs one call gets, and what follows from what the call returned or raised (ADR 48).

Runs of a batch handler wait in the `BatchCollector` until their batch is full or `batch_wait` is over. A run
that was taken over, and a run whose batch has failed, is never put together with others: no job may end dead
because of another job (I7).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toc.domain.text_escaping import escape_to_one_line
from toc.handlers.registry import HandlerSpec
from toc.handlers.verdicts import Verdict
from toc.runtime import metrics
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.service import Service
from toc.worker.job_run import JobRun, result_or_type_error

log = logging.getLogger(__name__)

IDLE_S = 60.0  # may be any time, because `enqueue` wakes the thread
# A batch waits at most for this part of a lease, so that enough of the lease is left to start the handler.
PART_OF_LEASE = 8
LOGGED_ERROR_CHARS_MAX = 200


@dataclass(slots=True, eq=False)
class HandlerBatch:
    """The runs whose jobs one call of a batch handler gets. All are of one type."""

    spec: HandlerSpec
    runs: Sequence[JobRun]

    def __post_init__(self) -> None:
        for run in self.runs:
            run.batch = self

    @property
    def timeout_s(self) -> float:
        """How long the call may take: the type's timeout, and the longest extension of a job."""
        return self.spec.timeout_s + max(run.control.extended_s for run in self.runs)

    @property
    def is_lost(self) -> bool:
        """Whether the claims of all jobs are lost."""
        return all(run.control.is_lost for run in self.runs)

    def call_handler(self) -> Any:
        """Calls the handler with the list of jobs; returns what it returns."""
        function: Any = self.spec.function
        return function([run.job for run in self.runs])


HandlerCall = JobRun | HandlerBatch
"""One call of a handler: with a job, or with the jobs of a batch."""


@dataclass(slots=True)
class _WaitingRuns:
    """The runs of one type that wait for more, until `until_s`."""

    runs: list[JobRun]
    until_s: float


class BatchCollector(Service):
    """Puts runs of the same type into batches. Any thread.

    `emit(batch)`: called when a batch is full, or has waited long enough. `solitary_max`: how many jobs it
    remembers that run alone from now on; the oldest are forgotten. Permits bound the runs that wait.
    """

    def __init__(
        self, clock: Clock, emit: Callable[[HandlerBatch], None], solitary_max: int
    ) -> None:
        super().__init__("toc-handler-batches")
        self._leases_clock, self._emit, self._solitary_max = clock, emit, solitary_max
        # Batches wait in real time, also when tests set the jobs' clock.
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._waiting: dict[str, _WaitingRuns] = {}  # by type
        self._solitary: dict[int, None] = {}  # job_ids, the oldest first

    def enqueue(self, run: JobRun, /) -> None:
        """Adds a run to the batch of its type; a run that must be alone becomes a batch of its own."""
        spec = run.spec
        with self._lock:
            waiting = self._waiting.get(spec.biz_type)
            is_taken_over = run.settled is not None
            if is_taken_over or run.job.job_id in self._solitary:
                waiting = _WaitingRuns([run], 0.0)
            elif waiting is None:
                until_s = self._clock.monotonic_s() + self._wait_s(run)
                waiting = self._waiting[spec.biz_type] = _WaitingRuns([run], until_s)
            else:
                waiting.runs.append(run)
            is_full = not waiting.until_s or len(waiting.runs) >= spec.batch
            if is_full and waiting.until_s:
                del self._waiting[spec.biz_type]
        if is_full:
            self._emit(HandlerBatch(spec, waiting.runs))
        elif len(waiting.runs) == 1:  # a batch has begun to wait
            self.start()
            self.wake()

    def run_once(self) -> float:
        """Emits the batches that have waited long enough. Returns the seconds until the next one."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            over = [name for name, waiting in self._waiting.items() if waiting.until_s <= now_s]
            batches = [self._waiting.pop(name).runs for name in over]
            next_s = min((it.until_s for it in self._waiting.values()), default=now_s + IDLE_S)
        for runs in batches:
            self._emit(HandlerBatch(runs[-1].spec, runs))
        return max(0.0, next_s - now_s)

    def take_waiting_runs(self) -> list[JobRun]:
        """Takes all waiting runs out, for a stop."""
        with self._lock:
            runs = [run for waiting in self._waiting.values() for run in waiting.runs]
            self._waiting.clear()
        return runs

    def note_solitary(self, runs: Sequence[JobRun]) -> None:
        """Remembers that these jobs run alone from now on in this process."""
        with self._lock:
            for run in runs:
                self._solitary.pop(run.job.job_id, None)
                self._solitary[run.job.job_id] = None
            while len(self._solitary) > self._solitary_max:
                del self._solitary[next(iter(self._solitary))]

    def forget_solitary(self, run: JobRun) -> None:
        """Forgets a job whose handler has not raised."""
        with self._lock:
            self._solitary.pop(run.job.job_id, None)

    def _wait_s(self, run: JobRun) -> float:
        left_s = run.lease_end_s - self._leases_clock.monotonic_s()
        return min(run.spec.batch_wait_s, max(0.0, left_s / PART_OF_LEASE))


class BatchEnds:
    """What follows from the end of a call of a batch handler.

    finish(run, result): as of the pool. run_alone(batch): queues a batch of one run.
    """

    def __init__(
        self,
        collector: BatchCollector,
        finish: Callable[[JobRun, object], None],
        run_alone: Callable[[HandlerBatch], None],
    ) -> None:
        self._collector, self._finish, self._run_alone = collector, finish, run_alone
        self._log_throttle = LogThrottle(log)

    def end_batch(self, batch: HandlerBatch, result: object) -> None:
        """Settles each job of a call that has returned or raised `result`, or runs each job alone."""
        metrics.BATCHES.labels(batch.spec.biz_type).inc()
        results = results_of_batch([run.job.job_id for run in batch.runs], result)
        if not isinstance(results, BaseException):
            for run, each in zip(batch.runs, results, strict=True):  # guard: verdict-of-its-job
                self._end_run(run, each)
        elif len(batch.runs) == 1:
            self._end_run(batch.runs[0], results)
        else:
            self._split(batch, results)

    def _end_run(self, run: JobRun, result: object) -> None:
        if isinstance(result, BaseException) and not isinstance(result, Verdict):
            self._collector.note_solitary([run])
        else:
            self._collector.forget_solitary(run)
        self._finish(run, result)

    def _split(self, batch: HandlerBatch, error: BaseException) -> None:
        """Runs each job of a failed batch alone, in the same attempt: one of them may be the reason."""
        metrics.BATCHES_SPLIT.labels(batch.spec.biz_type).inc()
        self._log_throttle.warning(
            batch.spec.biz_type,
            "a batch of %d jobs of %s failed, so each of them runs alone now: %s: %s",
            len(batch.runs), batch.spec.biz_type, type(error).__name__, _text_of_error(error),
        )  # fmt: skip
        self._collector.note_solitary(batch.runs)
        for run in batch.runs:
            if run.control.is_lost:
                self._finish(run, error)  # the row refuses the outcome
            else:
                self._run_alone(HandlerBatch(run.spec, [run]))


def results_of_batch(job_ids: Sequence[int], result: object) -> list[object] | BaseException:
    """The result of each job of a batch, in their order; or the exception because of which they run alone.

    `result`: what the handler returned or raised. A list or a dict must have a result for each job: a job
    that was forgotten must not end as done.
    """
    if isinstance(result, BaseException) and not isinstance(result, Verdict):
        return result
    if isinstance(result, Mapping):
        if result.keys() != set(job_ids):
            text = "must have each job_id of the batch, and no other key"
            return TypeError(f"the dict that a batch handler returns {text}")
        return [result_or_type_error(result[job_id]) for job_id in job_ids]
    if isinstance(result, (list, tuple)):
        if len(result) != len(job_ids):
            text = f"the batch handler returned {len(result)} verdicts for {len(job_ids)} jobs"
            return TypeError(text)
        return [result_or_type_error(each) for each in result]
    return [result] * len(job_ids)


def _text_of_error(error: BaseException) -> str:
    try:
        return escape_to_one_line(str(error))[:LOGGED_ERROR_CHARS_MAX]
    except Exception:  # noqa: BLE001 - the handler's own class cannot show itself
        return "?"
