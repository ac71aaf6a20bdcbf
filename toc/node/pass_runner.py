"""Runs the jobs that `run_now` lets through a pause or a ramp (ADR 44)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from toc.domain.ids import routing_bits_of
from toc.domain.pauses import PASS_MS
from toc.domain.routing import Routing
from toc.runtime.clock import Clock
from toc.runtime.job_batch import BatchClaimAnswer, JobBatch, PermitSource
from toc.runtime.service import Inbox, Service
from toc.store import pauses
from toc.store.databases import Database
from toc.store.pauses import read_passes, version_of_pass
from toc.worker.gate import Gate

PERIOD_S = 0.5
BEGINNING = (0, "")


class PassRunner(Service):
    """Claims the jobs of one database that have a pass, by their ids, while something is restricted.

    Every process tries; the claim decides who gets a job. A job that was not claimed is tried again until its
    pass ends: its consumer may not have come yet. `permits()`, `inbox()`: of this process' claim stage.
    """

    def __init__(
        self,
        database: Database,
        routing: Routing,
        gate: Gate,
        permits: Callable[[], PermitSource],
        inbox: Callable[[], Inbox[JobBatch]],
        clock: Clock,
    ) -> None:
        super().__init__(f"toc-passes-{database.index}")
        self._database, self._routing, self._gate = database, routing, gate
        self._permits, self._inbox, self._clock = permits, inbox, clock
        self._claimed: set[tuple[int, int]] = set()  # job_id and version of the pass
        self._after = BEGINNING

    def run_once(self) -> float:
        """Reads a page of passes and claims their jobs. Raises StoreUnavailable, and the claim's error."""
        if self._gate.is_open:
            self._claimed.clear()
            return PERIOD_S
        found_s, now_ms = self._clock.monotonic_s(), self._gate.now_ms()
        passes = read_passes(self._database, now_ms, self._after)
        is_full = len(passes) >= pauses.PASSES_MAX
        self._after = passes[-1].place if is_full else BEGINNING
        oldest = version_of_pass(now_ms - PASS_MS)
        self._claimed = {key for key in self._claimed if key[1] >= oldest}
        for job_id, version, _ in passes:
            key = job_id, version
            if key not in self._claimed and self._claim_job(job_id, found_s):
                self._claimed.add(key)
        return PERIOD_S

    def _claim_job(self, job_id: int, found_s: float) -> bool:
        """Claims one job; True: it runs in this process, or a consumer of this process got it."""
        permits = self._permits()
        if not permits.take_permits(self._database.index, 1):
            return False
        answer = BatchClaimAnswer()
        ids: Mapping[int, Sequence[int]] = {
            self._routing.shard_of_hash(routing_bits_of(job_id)): [job_id]
        }
        self._inbox().enqueue(
            JobBatch("", ids, None, found_s, popped=False, permits=1, answer=answer, has_pass=True)
        )
        return answer.wait_for_claim() > 0
