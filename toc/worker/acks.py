"""Tells Redis in the background which popped jobs are settled and which reminders to put back.

When an ack does not reach Redis (Redis is down, the process dies, more than `queue_max` acks wait), the
reminder returns to its StoreQueue after its stay in the PrepareQueue. The reminder is popped again, and
the claim sees that the job has ended.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NamedTuple

from toc.domain.pauses import HOLD_TOPIC_PREFIX
from toc.errors import TimerUnavailable
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.timer.reminders import Reminder, Reminders

IDLE_S = 60.0  # may be any time, because `enqueue` wakes the thread


class Ack(NamedTuple):
    """A message to Redis about a popped job. `back`: the reminder to put back; None: delete the reminder."""

    topic: str
    job_id: int
    back: Reminder | None


class AckSender(Service):
    """Sends queued acks to Redis, up to `batch_max` at a time. `reminders` None (no timer): drops acks."""

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

    def enqueue(self, acks: Sequence[Ack], /) -> None:
        """Queues acks of jobs whose state the database has recorded. Any thread.

        Never blocks: beyond `queue_max` the oldest acks are dropped.
        """
        if self._reminders is None or not acks:
            return
        if len(self._queue) + len(acks) > self._queue_max:
            text = "Redis is slow: acks were dropped; their reminders come back, which is harmless"
            self._log_throttle.warning("full", text)
        self._queue.extend(acks)
        self.wake()

    def run_once(self) -> float:
        """Sends one batch of acks. Returns the seconds until the next batch."""
        count = min(len(self._queue), self._batch_max)
        self.send_acks([self._queue.popleft() for _ in range(count)])
        return 0 if self._queue else IDLE_S

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Ends the loop and sends the queued acks, so that other nodes pop given-back jobs at once."""
        end_s = self._clock.monotonic_s() + timeout_s
        ended = super().stop(timeout_s)
        while ended and self._queue and self._clock.monotonic_s() < end_s:
            self.run_once()
        return ended

    def send_acks(self, acks: Sequence[Ack]) -> None:
        """Sends acks now, in the caller's thread. Logs failures: reminders not acked come back later."""
        by_topic: dict[str, list[Ack]] = defaultdict(list)
        for ack in acks:
            by_topic[ack.topic].append(ack)
        # A reminder that leaves a hold topic is in the topic of its type before.
        for topic, together in sorted(by_topic.items(), key=_is_of_hold_topic):
            try:
                self._send_acks_of_topic(topic, together)
            except TimerUnavailable as error:
                text = (
                    "acks failed; their reminders come back after their stay, which is harmless: %s"
                )
                self._log_throttle.warning("acks", text, error)
            except Exception as error:  # noqa: BLE001 - e.g. a broken key: the other topics are still sent
                metrics.SERVICE_ERRORS.labels(self.name).inc()
                self._log_throttle.warning("broken", "acks of topic %s failed: %s", topic, error)

    def _send_acks_of_topic(self, topic: str, acks: Sequence[Ack]) -> None:
        if self._reminders is not None:
            self._reminders.ack(topic, [ack.job_id for ack in acks if ack.back is None])
            self._reminders.put_back(topic, [ack.back for ack in acks if ack.back is not None])


def _is_of_hold_topic(acks_of_topic: tuple[str, Sequence[Ack]]) -> bool:
    return acks_of_topic[0].startswith(HOLD_TOPIC_PREFIX)
