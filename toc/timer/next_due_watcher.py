"""Reads the heads (first reminders) of all slots periodically, and reports those that are due soon.

It backs up wake-ups, which can be lost, and notices slots that their owner does not pop. One or two calls
read all slots of a topic, so that an idle worker costs almost nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from toc.errors import TimerUnavailable
from toc.runtime.service import Service
from toc.timer.reminders import Reminders

OnHeadSeen = Callable[[int, float], None]
"""Called with a slot and the seconds until its head is due (less than 0: overdue)."""


class NextDueWatcher(Service):
    """Reads the heads of the slots that `set_slots` names every `period_s`; none before the first call.

    `on_head_seen`: one callback per topic.
    """

    def __init__(
        self, reminders: Reminders, on_head_seen: Mapping[str, OnHeadSeen], *, period_s: float
    ) -> None:
        super().__init__("toc-heads")
        self._reminders, self._on_head_seen, self._period_s = reminders, on_head_seen, period_s
        self._owned: Mapping[str, Sequence[int]] = {}
        self._new_slots: deque[Mapping[str, Sequence[int]]] = deque(maxlen=1)

    def set_slots(self, slots: Mapping[str, Sequence[int]]) -> None:
        """Replaces the slots to read, by topic, from the next step on. Any thread."""
        self._new_slots.append(slots)

    def run_once(self) -> float:
        """Reads all heads once. Raises TimerUnavailable when none of a topic's slots answered."""
        if self._new_slots:
            self._owned = self._new_slots.popleft()
        failed: TimerUnavailable | None = None
        for topic, slots in self._owned.items():
            on_head_seen = self._on_head_seen[topic]
            try:
                # All heads due before the next step has ended, even if this step is late.
                near = self._reminders.heads(topic, slots, 2 * self._period_s + 1)
            except TimerUnavailable as error:
                failed = error
                continue
            for slot, in_s in near.items():
                on_head_seen(slot, in_s)
        if failed is not None:
            raise failed
        return self._period_s
