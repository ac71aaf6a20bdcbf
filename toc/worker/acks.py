"""Tells Redis which popped jobs are settled or go back, while the next jobs are claimed and settled.

When an ack does not reach Redis (Redis is down, the process dies, more than `queue_max` acks wait), the
reminder returns after its stay, and the claim sees the state of the row.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from toc.errors import TimerUnavailable
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.timer.reminders import Reminder, Reminders

IDLE_S = 60.0  # any time will do: `put` wakes the thread


class Ack(NamedTuple):
    """What to tell Redis of a popped job. `back`: the reminder to put back; None: delete it."""

    topic: str
    job_id: int
    back: Reminder | None


class AckSender(Service):
    """Sends queued acks to Redis, up to `batch_max` at a time. `reminders` None (no timer): it drops them."""

    def __init__(
        self,
        reminders: Reminders | None,
        clock: Clock,
        *,
        batch_max: int,
        queue_max: int,
    ) -> None:
        super().__init__("toc-acks")
        self._reminders = reminders
        self._clock, self._batch_max, self._queue_max = clock, batch_max, queue_max
        self._queue: deque[Ack] = deque(maxlen=queue_max)

    def put(self, acks: Sequence[Ack]) -> None:
        """Queues acks of jobs that the database has recorded. Any thread.

        Never blocks: beyond `queue_max` the oldest acks are dropped.
        """
        if self._reminders is None:
            return
        if len(self._queue) + len(acks) > self._queue_max:
            text = "Redis is slow: settled jobs are not told, and come back when their stay is over"
            self._log_throttle.warning("full", text)
        self._queue.extend(acks)
        self.wake()

    def run_once(self) -> float:
        """Sends one batch. Returns the seconds until the next."""
        gone: dict[str, list[int]] = defaultdict(list)
        backs: dict[str, list[Reminder]] = defaultdict(list)
        for _ in range(min(len(self._queue), self._batch_max)):
            topic, job_id, back = self._queue.popleft()
            if back is None:
                gone[topic].append(job_id)
            else:
                backs[topic].append(back)
        for topic in gone.keys() | backs.keys():
            try:
                self.send_acks(topic, gone[topic], backs[topic])
            except Exception as error:  # noqa: BLE001 - e.g. a broken key: the other topics are still sent
                metrics.SERVICE_ERRORS.labels(self.name).inc()
                self._log_throttle.warning("broken", "acks of topic %s failed: %s", topic, error)
        return 0 if self._queue else IDLE_S

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Ends the loop and sends the queued acks, so that other nodes pop given-back jobs at once."""
        end_s = self._clock.monotonic_s() + timeout_s
        ended = super().stop(timeout_s)
        while ended and self._queue and self._clock.monotonic_s() < end_s:
            self.run_once()
        return ended

    def send_acks(self, topic: str, gone: Sequence[int], backs: Sequence[Reminder]) -> None:
        """Sends acks now: deletes the reminders of `gone` and puts those of `backs` back."""
        if self._reminders is None or not (gone or backs):
            return
        try:
            self._reminders.ack(topic, gone)
            self._reminders.put_back(topic, backs)
        except TimerUnavailable as error:
            text = "popped jobs come back when their stay is over, which is harmless: %s"
            self._log_throttle.warning("acks", text, error)
