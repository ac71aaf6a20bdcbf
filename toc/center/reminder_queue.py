"""Arms committed jobs that are due soon; the loader arms later jobs."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from toc.errors import TimerUnavailable
from toc.runtime import metrics
from toc.runtime.clock import Clock, ServerTimeEstimate
from toc.runtime.service import Service
from toc.runtime.settings import Settings
from toc.timer.reminder import Reminder

if TYPE_CHECKING:
    from toc.timer.reminders import Reminders

log = logging.getLogger(__name__)

AGAIN_S_MIN, AGAIN_S_MAX = 0.2, 5.0
IDLE_S = 3600.0  # a new reminder to retry wakes the service earlier
_REDIS_IMPORT = threading.Lock()


_TopicSlot = tuple[str, int]
"""A slot of a topic."""


class ReminderQueue(Service):
    """Arms near jobs during the call; failed reminders (up to `arm_retries_max`) are retried in the
    background.

    When reminders of a slot could not be armed, later calls only keep their reminders of this slot in memory,
    and do not wait for Redis, until a retry for this slot has succeeded. While all of Redis is down, this
    holds for every slot. `time`: an estimate of Redis' time.
    """

    def __init__(self, settings: Settings, time: ServerTimeEstimate, clock: Clock) -> None:
        super().__init__("toc-rearm")
        self._settings, self._time, self._clock = settings, time, clock
        self._reminders: Reminders | None = None
        self._lock = threading.Lock()
        self._kept: dict[_TopicSlot, list[Reminder]] = {}
        self._down = False  # whether all of Redis refused the last arm
        self._retry_s = AGAIN_S_MIN

    @property
    def reminders_in_redis(self) -> Reminders:
        """The reminders in Redis, not those kept here for a retry.

        Made at the first use: until then redis is not imported.
        """
        with self._lock:
            if self._reminders is None:
                # The modules of redis import each other: a second thread would find them half made.
                with _REDIS_IMPORT:
                    from toc.timer.reminders import Reminders  # noqa: PLC0415 - far jobs do without redis

                self._reminders = Reminders.from_settings(self._settings, self._clock)
            return self._reminders

    @property
    def near_until_ms(self) -> int:
        """Jobs that are due until this time are near."""
        return self._time.estimate_now_ms() + self._settings.timer.arm_within_ms

    def close(self, timeout_s: float) -> None:
        """Ends the retries and disconnects from Redis."""
        self.stop(timeout_s)
        if self._reminders is not None:
            self._reminders.close()

    def arm_near_reminders(self, jobs: Iterable[tuple[str, Reminder]]) -> None:
        """Arms those of the (topic, reminder) pairs that are near. For use after the commit. Never raises."""
        until_ms = self.near_until_ms
        near: dict[_TopicSlot, list[Reminder]] = defaultdict(list)
        for topic, reminder in jobs:
            if reminder.due_ms is not None and reminder.due_ms <= until_ms:
                slot = self.reminders_in_redis.slot_of_job(topic, reminder.job_id)
                near[topic, slot].append(reminder)
        with self._lock:
            down = self._down
            late = {slot: some for slot, some in near.items() if down or slot in self._kept}
        refused, down = self._try_arm({slot: near[slot] for slot in near if slot not in late})
        late |= {slot: near[slot] for slot in refused}
        if late:
            self._keep_for_retry(late, down=down)

    def run_once(self) -> float:
        """Tries the kept reminders again. Returns the seconds until the next try."""
        with self._lock:
            tried = {slot: [*some] for slot, some in self._kept.items()}
        refused, down = self._try_arm(tried)
        with self._lock:
            self._down = down
            for slot in tried.keys() - refused:
                # Only those that were tried: other reminders may have been added meanwhile.
                del self._kept[slot][: len(tried[slot])]
                if not self._kept[slot]:
                    del self._kept[slot]
            is_empty = not self._kept
        if refused:
            self._retry_s = min(self._retry_s * 2, AGAIN_S_MAX)
            return self._retry_s
        self._retry_s = AGAIN_S_MIN
        return IDLE_S if is_empty else 0

    def _try_arm(
        self, reminders_of: Mapping[_TopicSlot, Sequence[Reminder]]
    ) -> tuple[set[_TopicSlot], bool]:
        """Returns the slots that were not armed, and whether all of Redis refused. Never raises."""
        by_topic: dict[str, list[_TopicSlot]] = defaultdict(list)
        for topic_slot in reminders_of:
            by_topic[topic_slot[0]].append(topic_slot)
        refused: set[_TopicSlot] = set()
        todo = list(by_topic.items())
        while todo:
            topic, slots = todo.pop()
            try:
                some = chain.from_iterable(reminders_of[slot] for slot in slots)
                self._time.record_server_time(self.reminders_in_redis.arm(topic, some))
            except TimerUnavailable as error:
                self._log_throttle.warning(error.code, "reminders are kept for a retry: %s", error)
                if error.slots is None:
                    left = [slots, *(slots for _, slots in todo)]
                    return refused.union(*left), True
                refused |= {(topic, slot) for slot in error.slots}
            except Exception:
                # The job is committed: whatever Redis says, the call must not fail now. Perhaps one slot
                # is broken: each slot is tried alone.
                if len(slots) > 1:
                    todo += [(topic, [slot]) for slot in slots]
                    continue
                log.exception("reminders are kept for a retry")
                refused.update(slots)
        return refused, False

    def _keep_for_retry(self, late: Mapping[_TopicSlot, Sequence[Reminder]], *, down: bool) -> None:
        count = sum(map(len, late.values()))
        with self._lock:
            is_news = not (self._down or late.keys() <= self._kept.keys())
            self._down |= down
            kept = sum(map(len, self._kept.values()))
            room = left = max(0, self._settings.timer.arm_retries_max - kept)
            for slot, some in late.items():
                if left > 0:
                    self._kept.setdefault(slot, []).extend(some[:left])
                    left -= len(some)
        metrics.ARMS_FAILED.inc(count)
        metrics.ARMS_DROPPED.inc(max(0, count - room))  # the loader and the scanner find these jobs
        self.start()
        if is_news:
            self.wake()
