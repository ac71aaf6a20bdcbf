"""The claim stage: claims the batches that fetchers put, and hands the jobs that it claimed to the run stage.

Each database has stages of its own, so that one that hangs delays no other. A rate limiter, or a pause of a
type, belongs before a stage's inbox: it keeps a batch, with its permits, until the batch may go on.
"""

from __future__ import annotations

from collections import deque

from toc.runtime.batch import Batch
from toc.runtime.service import Service
from toc.store.databases import Database
from toc.worker.batch_claim import BatchClaim, ClaimOutlets, acks_that_return
from toc.worker.context import WorkerContext

CLAIM_LANES = 2  # claim stages of each database: one works in Python while the other waits
IDLE_S = 60.0  # any time will do: `put` wakes the thread


class ClaimStage(Service):
    """Claims batches of one database, one after the other. Their permits bound the inbox."""

    def __init__(
        self, database: Database, lane: int, context: WorkerContext, outlets: ClaimOutlets
    ) -> None:
        super().__init__(f"toc-claim-{database.index}-{lane}")
        self._database, self._context, self._outlets = database, context, outlets
        self._inbox: deque[Batch] = deque()

    def put(self, batch: Batch, /) -> None:
        """Queues a batch; one without permits returns to the timer at once. Any thread; never blocks."""
        if not batch.permits:
            self._put_off(batch)
            return
        self._inbox.append(batch)
        self.wake()
        if self.stopping:  # its thread may have ended
            self._put_off_all()

    def run_once(self) -> float:
        """Claims one batch. Raises what the claim of a popped batch raised."""
        try:
            batch = self._inbox.popleft()
        except IndexError:
            return IDLE_S
        self.claim(batch)
        return 0 if self._inbox else IDLE_S

    def claim(self, batch: Batch) -> None:
        """Claims a batch now, in the caller's thread."""
        index, permits = self._database.index, self._context.permits
        one = BatchClaim(self._context, self._database, self._outlets, self._log_throttle, batch)
        claimed, failure = 0, None
        try:
            if permits.outages.is_down(index):
                self._outlets.acks.send(acks_that_return(self._context, index, batch))
            else:
                claimed = one.run()
        except Exception as error:
            failure = error
            if batch.popped:  # else a fetcher waits for the answer, and says what has failed
                raise
        finally:
            permits.give_back(index, one.permits_left)
            if batch.answer is not None:
                batch.answer.give(claimed, failure)

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Ends the loop and returns the queued ids to the timer, where other nodes pop them."""
        ended = super().stop(timeout_s)
        self._put_off_all()
        return ended

    def _put_off_all(self) -> None:
        while self._inbox:
            try:
                batch = self._inbox.popleft()
            except IndexError:  # another thread was faster
                return
            self._put_off(batch)

    def _put_off(self, batch: Batch) -> None:
        index = self._database.index
        self._outlets.acks.send(acks_that_return(self._context, index, batch))
        self._context.permits.give_back(index, batch.permits)
        if batch.answer is not None:
            batch.answer.give(0)
