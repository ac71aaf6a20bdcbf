"""Outcomes to the database, then to Redis (see `acks`). Never the other way round.

One settler per database: one that does not answer holds up no other. Its queue is bounded by the
worker's bound on jobs in flight.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable

from toc.errors import is_away
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.store.claims import Claims, Kind
from toc.store.databases import Database
from toc.timer.slots import Entry
from toc.worker.acks import Ack, Acks
from toc.worker.run import Ended, Run

log = logging.getLogger(__name__)

IDLE_S = 1.0
AGAIN_S = 1.0  # after which an outcome that could not be written is tried again, within its lease
_ENDED = (Kind.DONE, Kind.DROP, Kind.BURY)


class Settler(Service):
    """Settles the runs of one database. `released(database, runs)` is told which have left flight."""

    def __init__(
        self,
        database: Database,
        claims: Claims,
        acks: Acks,
        released: Callable[[int, list[Run]], None],
        back_in_time: Callable[[int, int, int], Entry],
        clock: Clock,
        *,
        batch_max: int,
        wait_ms: int,
    ) -> None:
        super().__init__(f"toc-settler-{database.index}")
        self._database, self._claims, self._acks = database, claims, acks
        self._released, self._back_in_time, self._clock = released, back_in_time, clock
        self._batch_max, self._wait_s = batch_max, wait_ms / 1000
        self._queue: deque[Ended] = deque()
        self._batch: list[Ended] = []  # taken from the queue, not settled yet
        self._failed: list[Ended] = []  # could not be written, and will be tried again
        self._failed_s = 0.0
        self._moving = threading.Lock()  # between those two: seen in one of them, never in both

    def put(self, ended: Ended) -> None:
        """Takes an outcome. Any thread; never blocks."""
        self._queue.append(ended)
        if not self._wake.is_set():
            self.wake()

    def run_once(self) -> float:
        """Settles one batch. Raises StoreUnavailable and keeps the batch when the database is away."""
        if not self._batch:
            self._fill_batch()
        if not self._batch:
            return IDLE_S
        failed: list[Ended] = []
        try:
            held = self._claims.settle(self._database, [ended.outcome for ended in self._batch])
        except Exception as error:
            if is_away(error):
                raise
            text = "settling %d outcomes of database %d failed, one by one now: %s"
            self._seldom.warning("batch", text, len(self._batch), self._database.index, error)
            held, failed = self._one_by_one()
        lost = {id(ended) for ended in failed}
        batch = [ended for ended in self._batch if id(ended) not in lost]
        gone = self._put_off(failed)
        self._count(batch, held)
        self._released(self._database.index, [ended.run for ended in [*batch, *gone]])
        settled = [e for e in batch if (e.outcome.job_id, e.outcome.token) in held]
        self._acks.put([self._ack_of(ended) for ended in settled])
        return 0

    @property
    def pending(self) -> int:
        """Outcomes that are not recorded yet."""
        # The batch first: what moves into it meanwhile must not be counted twice (see Worker.quiet).
        with self._moving:
            written = len(self._batch) + len(self._failed)
        return written + len(self._queue)

    def _fill_batch(self) -> None:
        if self._failed and self._clock.monotonic_s() >= self._failed_s + AGAIN_S:
            with self._moving:  # by themselves: they may fail again
                self._batch, self._failed = self._failed, []
            return
        if not self._queue:
            return
        awaited = self._queue[0].run.settled is not None  # the next suspect waits for it
        if len(self._queue) < self._batch_max and not (awaited or self.stopping):
            self._stopping.wait(self._wait_s)  # a little company makes a commit cheaper for all
        while self._queue and len(self._batch) < self._batch_max:
            self._batch.append(self._queue.popleft())

    def _put_off(self, failed: list[Ended]) -> list[Ended]:
        """Ends the batch; those of it that failed are kept, but for those whose lease is over: these."""
        now_s = self._clock.monotonic_s()
        if not self._failed:  # what fails later does not put off what has waited already
            self._failed_s = now_s
        with self._moving:
            self._batch = []
            self._failed += [ended for ended in failed if now_s < ended.run.lease_end_s]
        return [ended for ended in failed if now_s >= ended.run.lease_end_s]

    def _one_by_one(self) -> tuple[set[tuple[int, str]], list[Ended]]:
        """One outcome that cannot be written must not hold up the others. Those that held, and those."""
        held: set[tuple[int, str]] = set()
        failed: list[Ended] = []
        for ended in self._batch:
            try:
                held |= self._claims.settle(self._database, [ended.outcome])
            except Exception as error:
                if is_away(error):
                    raise
                text = "outcome %s of job %d cannot be recorded: %s"
                job_id = ended.outcome.job_id
                self._seldom.warning("outcome", text, ended.outcome.kind, job_id, error)
                failed.append(ended)
        return held, failed

    def _count(self, batch: list[Ended], held: set[tuple[int, str]]) -> None:
        kinds: Counter[tuple[str, Kind]] = Counter()
        for ended in batch:
            outcome = ended.outcome
            if (outcome.job_id, outcome.token) not in held:
                metrics.STALE.inc()
                log.warning(
                    "outcome %s of job %d came too late: refused", outcome.kind, outcome.job_id
                )
                continue
            kinds[ended.run.job.biz_type, outcome.kind] += 1
            if outcome.kind is Kind.BURY:
                log.warning("job %d is dead: %s", outcome.job_id, outcome.error.partition("\n")[0])
        for (biz_type, kind), n in kinds.items():
            metrics.ENDED.labels(biz_type, kind.value).inc(n)

    def _ack_of(self, ended: Ended) -> Ack:
        run, outcome = ended
        if outcome.kind in _ENDED:
            return Ack(run.topic, outcome.job_id, None)
        now_ms = run.now_ms(self._clock.monotonic_s())
        back = self._back_in_time(now_ms, outcome.due_ms or run.job.action_ms, outcome.job_id)
        return Ack(run.topic, outcome.job_id, back)
