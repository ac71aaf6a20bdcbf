"""Placing jobs after their commit: near ones are armed, far ones are the loader's."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from toc.domain.ids import gene_of
from toc.domain.routing import slot_of
from toc.errors import TimerUnavailable
from toc.runtime import metrics
from toc.runtime.clock import Clock, ServerTime
from toc.runtime.service import Service
from toc.timer.slots import Entry, Slots

log = logging.getLogger(__name__)

AGAIN_S_MIN, AGAIN_S_MAX = 0.2, 5.0
BATCH = 1000


_Place = tuple[str, int]
"""A slot of a topic."""


class Arms(Service):
    """Arms near jobs in line; what fails is kept (up to `kept_max`) and tried again behind the scenes.

    After a failure, calls do not wait for Redis until a retry has succeeded: they queue at once. On
    a cluster that is so for the slots that were refused; jobs of the others are armed in line.
    """

    def __init__(
        self,
        slots: Slots,
        slots_of: Callable[[str], int],
        time: ServerTime,
        clock: Clock,
        *,
        near_ms: int,
        kept_max: int,
    ) -> None:
        super().__init__("toc-rearm")
        self._slots, self._slots_of, self._time, self._clock = slots, slots_of, time, clock
        self._near_ms, self._kept_max = near_ms, kept_max
        self._lock = threading.Lock()
        self._kept: deque[tuple[_Place, Entry]] = deque()
        self._down = False  # all of Redis; else `_refused` says which slots
        self._refused: set[_Place] = set()
        self._again_s = AGAIN_S_MIN
        # A pass tries what is kept once, batch by batch: a slot that it met refused is passed over.
        self._left = 0
        self._passed_over: set[_Place] = set()

    def place(self, jobs: Sequence[tuple[str, Entry]]) -> None:
        """Arms the near ones of (topic, entry). Only after the jobs' commit. Never raises."""
        until_ms = self._time.now_ms() + self._near_ms
        near = self._by_place(
            job for job in jobs if job[1].due_ms is not None and job[1].due_ms <= until_ms
        )
        if not near:
            return
        with self._lock:
            down, out = self._down, set(self._refused)
        refused: set[_Place] = set()
        if not down:
            refused, down = self._arm({place: near[place] for place in near if place not in out})
        late = {place: near[place] for place in near if down or place in out or place in refused}
        if late:
            self._keep(late, refused, down=down)

    def run_once(self) -> float:
        """Tries kept reminders again. Returns the seconds until the next try."""
        with self._lock:
            if not self._kept:
                self._down, self._left = False, 0
                self._refused.clear()
                return 3600.0  # woken when there is something
            if not self._left:
                self._left, self._passed_over = len(self._kept), set()
            batch = list(islice(self._kept, min(BATCH, self._left)))
        asked: dict[_Place, list[Entry]] = defaultdict(list)
        for place, entry in batch:
            if place not in self._passed_over:
                asked[place].append(entry)
        refused, down = self._arm(asked)
        self._passed_over |= refused
        with self._lock:
            for kept in batch:
                self._kept.popleft()
                if down or kept[0] in self._passed_over:
                    self._kept.append(kept)  # behind those of slots that may be served
            self._down = down
            self._left = 0 if down else self._left - len(batch)
            if self._left:
                self._refused -= {place for place, _ in batch}
                self._refused |= self._passed_over
                return 0
            self._refused = set(self._passed_over)
        if down or self._passed_over:
            self._again_s = min(self._again_s * 2, AGAIN_S_MAX)
            return self._again_s
        self._again_s = AGAIN_S_MIN
        return 0

    def _by_place(self, jobs: Iterable[tuple[str, Entry]]) -> dict[_Place, list[Entry]]:
        found: dict[_Place, list[Entry]] = defaultdict(list)
        for topic, entry in jobs:
            found[topic, slot_of(gene_of(entry.job_id), self._slots_of(topic))].append(entry)
        return found

    def _arm(self, entries_of: Mapping[_Place, Sequence[Entry]]) -> tuple[set[_Place], bool]:
        """Answers which slots were refused, and whether all of Redis was. Never raises."""
        by_topic: dict[str, dict[int, Sequence[Entry]]] = defaultdict(dict)
        for (topic, slot), entries in entries_of.items():
            by_topic[topic][slot] = entries
        refused: set[_Place] = set()
        todo = list(by_topic.items())
        while todo:
            topic, by_slot = todo.pop()
            try:
                self._time.heard(self._slots.arm(topic, by_slot))
            except TimerUnavailable as error:
                self._seldom.warning(error.code, "reminders are kept for a retry: %s", error)
                if error.slots is None:
                    return refused, True
                refused |= {(topic, slot) for slot in error.slots}
            except Exception:
                # The job is committed: whatever Redis says, the call must not fail now. It may be
                # one slot that is broken: each is tried alone.
                if len(by_slot) > 1:
                    todo += [(topic, {slot: entries}) for slot, entries in by_slot.items()]
                    continue
                log.exception("reminders are kept for a retry")
                refused |= {(topic, slot) for slot in by_slot}
        return refused, False

    def _keep(
        self, late: Mapping[_Place, Sequence[Entry]], refused: set[_Place], *, down: bool
    ) -> None:
        jobs = [(place, entry) for place, entries in late.items() for entry in entries]
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
