"""What has become of popped jobs, told to Redis, while the next ones are claimed and settled.

What Redis does not hear (it is down, the process dies here, more than `queue_max` wait) comes back when
its stay is over, and the claim sees what the row has become.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from toc.domain.ids import gene_of
from toc.domain.routing import slot_of
from toc.errors import TimerUnavailable
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.timer.slots import Entry, Slots

IDLE_S = 60.0  # nothing needs it: whoever has something to tell wakes it


class Ack(NamedTuple):
    """`back`: the reminder that goes back; None: the job is forgotten."""

    topic: str
    job_id: int
    back: Entry | None


class Acks(Service):
    """Tells what was `put`, up to `batch_max` at a time. Without a timer it tells nobody."""

    def __init__(
        self,
        slots: Slots | None,
        slots_of: Callable[[str], int],
        clock: Clock,
        *,
        batch_max: int,
        queue_max: int,
    ) -> None:
        super().__init__("toc-acks")
        self._slots, self._slots_of = slots, slots_of
        self._clock, self._batch_max, self._queue_max = clock, batch_max, queue_max
        self._queue: deque[Ack] = deque(maxlen=queue_max)

    def put(self, acks: Sequence[Ack]) -> None:
        """Takes what the database has recorded. Any thread; never blocks: the oldest are left out."""
        if self._slots is None:
            return
        if len(self._queue) + len(acks) > self._queue_max:
            text = "Redis is slow: settled jobs are not told, and come back when their stay is over"
            self._seldom.warning("full", text)
        self._queue.extend(acks)
        self.wake()

    def run_once(self) -> float:
        """Tells one batch. Returns the seconds until the next."""
        gone: dict[str, list[int]] = defaultdict(list)
        backs: dict[str, list[Entry]] = defaultdict(list)
        for _ in range(min(len(self._queue), self._batch_max)):
            topic, job_id, back = self._queue.popleft()
            if back is None:
                gone[topic].append(job_id)
            else:
                backs[topic].append(back)
        for topic in gone.keys() | backs.keys():
            try:
                self.tell(topic, gone[topic], backs[topic])
            except Exception as error:  # noqa: BLE001 - a broken key, say: the others are told all the same
                metrics.SERVICE_ERRORS.labels(self.name).inc()
                self._seldom.warning("broken", "acks of topic %s failed: %s", topic, error)
        return 0 if self._queue else IDLE_S

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Ends the loop, and tells what waits: what was given back is popped elsewhere at once."""
        end_s = self._clock.monotonic_s() + timeout_s
        ended = super().stop(timeout_s)
        while ended and self._queue and self._clock.monotonic_s() < end_s:
            self.run_once()
        return ended

    def tell(self, topic: str, gone: Sequence[int], backs: Sequence[Entry]) -> None:
        """Tells Redis at once."""
        if self._slots is None or not (gone or backs):
            return
        slots = self._slots_of(topic)
        gone_by_slot: dict[int, list[int]] = defaultdict(list)
        backs_by_slot: dict[int, list[Entry]] = defaultdict(list)
        for job_id in gone:
            gone_by_slot[slot_of(gene_of(job_id), slots)].append(job_id)
        for entry in backs:
            backs_by_slot[slot_of(gene_of(entry.job_id), slots)].append(entry)
        try:
            self._slots.ack(topic, gone_by_slot)
            self._slots.put_back(topic, backs_by_slot)
        except TimerUnavailable as error:
            text = "popped jobs come back when their stay is over, which is harmless: %s"
            self._seldom.warning("acks", text, error)
