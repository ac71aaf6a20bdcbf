"""Places jobs after their commit: arms near ones in Redis; the loader will load the others."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from toc.errors import TimerUnavailable
from toc.runtime import metrics
from toc.runtime.clock import Clock, ServerTime
from toc.runtime.service import Service
from toc.timer.reminder import Reminder

if TYPE_CHECKING:
    from toc.timer.reminders import Reminders

log = logging.getLogger(__name__)

AGAIN_S_MIN, AGAIN_S_MAX = 0.2, 5.0
BATCH = 1000


_TopicSlot = tuple[str, int]
"""A slot of a topic."""


class ReminderQueue(Service):
    """Arms near jobs during the call; failed ones (up to `kept_max`) are retried in the background.

    After a failure, calls do not wait for Redis until a retry has succeeded: they queue at once. On a
    cluster this applies to the refused slots only. `make_reminders` is called once, when the first near job
    is armed: until then redis is not imported.
    """

    def __init__(
        self,
        make_reminders: Callable[[], Reminders],
        time: ServerTime,
        clock: Clock,
        *,
        near_ms: int,
        kept_max: int,
    ) -> None:
        super().__init__("toc-rearm")
        self._make_reminders, self._time, self._clock = make_reminders, time, clock
        self._reminders: Reminders | None = None
        self._near_ms, self._kept_max = near_ms, kept_max
        self._lock = threading.Lock()
        self._kept: deque[tuple[_TopicSlot, Reminder]] = deque()
        self._down = False  # all of Redis; else `_refused` says which slots
        self._refused: set[_TopicSlot] = set()
        self._retry_s = AGAIN_S_MIN
        # A pass tries what is kept once, batch by batch: a slot that it met refused is passed over.
        self._left_in_pass = 0
        self._passed_over: set[_TopicSlot] = set()

    @property
    def reminders(self) -> Reminders:
        """The timer's reminders; made at the first use."""
        with self._lock:
            if self._reminders is None:
                self._reminders = self._make_reminders()
            return self._reminders

    def close(self, timeout_s: float) -> None:
        """Ends the retries and disconnects from Redis."""
        self.stop(timeout_s)
        if self._reminders is not None:
            self._reminders.close()

    def place(self, jobs: Sequence[tuple[str, Reminder]]) -> None:
        """Arms those of the (topic, reminder) pairs that are near. Call it after the commit. Never raises."""
        until_ms = self._time.now_ms() + self._near_ms
        near = self._group_by_slot(
            job for job in jobs if job[1].due_ms is not None and job[1].due_ms <= until_ms
        )
        if not near:
            return
        with self._lock:
            down, out = self._down, set(self._refused)
        refused: set[_TopicSlot] = set()
        if not down:
            refused, down = self._try_arm(
                {place: near[place] for place in near if place not in out}
            )
        late = {place: near[place] for place in near if down or place in out or place in refused}
        if late:
            self._keep_for_retry(late, refused, down=down)

    def run_once(self) -> float:
        """Tries kept reminders again. Returns the seconds until the next try."""
        with self._lock:
            if not self._kept:
                self._down, self._left_in_pass = False, 0
                self._refused.clear()
                return 3600.0  # woken when there is something
            if not self._left_in_pass:
                self._left_in_pass, self._passed_over = len(self._kept), set()
            batch = list(islice(self._kept, min(BATCH, self._left_in_pass)))
        asked: dict[_TopicSlot, list[Reminder]] = defaultdict(list)
        for place, reminder in batch:
            if place not in self._passed_over:
                asked[place].append(reminder)
        refused, down = self._try_arm(asked)
        self._passed_over |= refused
        with self._lock:
            for kept in batch:
                self._kept.popleft()
                if down or kept[0] in self._passed_over:
                    self._kept.append(kept)  # behind those of slots that may be served
            self._down = down
            self._left_in_pass = 0 if down else self._left_in_pass - len(batch)
            if self._left_in_pass:
                self._refused -= {place for place, _ in batch}
                self._refused |= self._passed_over
                return 0
            self._refused = set(self._passed_over)
        if down or self._passed_over:
            self._retry_s = min(self._retry_s * 2, AGAIN_S_MAX)
            return self._retry_s
        self._retry_s = AGAIN_S_MIN
        return 0

    def _group_by_slot(
        self, jobs: Iterable[tuple[str, Reminder]]
    ) -> dict[_TopicSlot, list[Reminder]]:
        found: dict[_TopicSlot, list[Reminder]] = defaultdict(list)
        for topic, reminder in jobs:
            found[topic, self.reminders.slot_of(topic, reminder.job_id)].append(reminder)
        return found

    def _try_arm(
        self, reminders_of: Mapping[_TopicSlot, Sequence[Reminder]]
    ) -> tuple[set[_TopicSlot], bool]:
        """Returns the slots that were refused, and whether all of Redis refused. Never raises."""
        by_topic: dict[str, dict[int, Sequence[Reminder]]] = defaultdict(dict)
        for (topic, slot), reminders in reminders_of.items():
            by_topic[topic][slot] = reminders
        refused: set[_TopicSlot] = set()
        todo = list(by_topic.items())
        while todo:
            topic, by_slot = todo.pop()
            try:
                self._time.record_answer(self.reminders.arm(topic, chain(*by_slot.values())))
            except TimerUnavailable as error:
                self._log_throttle.warning(error.code, "reminders are kept for a retry: %s", error)
                if error.slots is None:
                    return refused, True
                refused |= {(topic, slot) for slot in error.slots}
            except Exception:
                # The job is committed: whatever Redis says, the call must not fail now. It may be
                # one slot that is broken: each is tried alone.
                if len(by_slot) > 1:
                    todo += [(topic, {slot: some}) for slot, some in by_slot.items()]
                    continue
                log.exception("reminders are kept for a retry")
                refused |= {(topic, slot) for slot in by_slot}
        return refused, False

    def _keep_for_retry(
        self, late: Mapping[_TopicSlot, Sequence[Reminder]], refused: set[_TopicSlot], *, down: bool
    ) -> None:
        jobs = [(place, reminder) for place, reminders in late.items() for reminder in reminders]
        metrics.ARMS_FAILED.inc(len(jobs))
        with self._lock:
            is_news = not self._kept or (down and not self._down) or not refused <= self._refused
            self._down |= down
            self._refused |= refused
            room = max(0, self._kept_max - len(self._kept))
            self._kept.extend(jobs[:room])
        # The loader and the scanner know the others from the database.
        metrics.ARMS_DROPPED.inc(max(0, len(jobs) - room))
        self.start()
        if is_news:
            self.wake()
