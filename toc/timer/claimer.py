"""Offers popped ids of one database to the sink, in another thread than the poller that popped them.

Needed only where a slot holds jobs of several databases (slot_amount < shards): a claim in a database that
hangs must not block the poller, because it also pops the jobs of the other databases.
"""

from __future__ import annotations

from collections import deque

from toc.runtime.service import Service
from toc.runtime.sink import Batch, Sink

IDLE_S = 60.0  # any time will do: `submit` wakes the thread


class Claimer(Service):
    """Claims batches from a queue. The reserved room of each batch bounds the queue."""

    def __init__(self, database: int, sink: Sink) -> None:
        super().__init__(f"toc-claimer-{database}")
        self._database, self._sink = database, sink
        self._queue: deque[tuple[Batch, int]] = deque()

    def submit(self, batch: Batch, room: int) -> None:
        """Queues a batch; `room` is the reservation made for it, which the claimer releases.

        Any thread; never blocks.
        """
        self._queue.append((batch, room))
        self.wake()
        if self.stopping:  # its thread may have ended
            self._put_off_all()

    def run_once(self) -> float:
        """Offers one batch. Raises StoreUnavailable after its ids were returned to the timer."""
        try:
            batch, room = self._queue.popleft()
        except IndexError:
            return IDLE_S
        try:
            self._sink.offer(self._database, batch)
        finally:
            self._sink.release_room(self._database, room)
        return 0 if self._queue else IDLE_S

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Ends the loop and returns the queued ids to the timer, where other nodes pop them."""
        ended = super().stop(timeout_s)
        self._put_off_all()
        return ended

    def _put_off_all(self) -> None:
        while self._queue:
            try:
                batch, room = self._queue.popleft()
            except IndexError:  # another thread was faster
                return
            self._sink.put_off(self._database, batch)
            self._sink.release_room(self._database, room)
