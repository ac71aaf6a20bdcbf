"""Looks at the heads of all slots, again and again, and tells of those that are near.

It is what backs up wake-ups, which get lost; and what sees the slots whose owner leaves them lying. All
slots of a topic go in a call or two, so that a worker with nothing to do costs next to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from toc.errors import TimerUnavailable
from toc.runtime.service import Service
from toc.timer.slots import Slots

See = Callable[[int, float], None]
"""Called with a slot and the seconds until its head is due (less than 0: overdue)."""


class Heads(Service):
    """Looks every `period_s`; at nothing until `own` says at which. `see` by topic."""

    def __init__(self, slots: Slots, see: Mapping[str, See], *, period_s: float) -> None:
        super().__init__("toc-heads")
        self._slots, self._see, self._period_s = slots, see, period_s
        self._owned: Mapping[str, Sequence[int]] = {}
        self._told: deque[Mapping[str, Sequence[int]]] = deque(maxlen=1)

    def own(self, slots: Mapping[str, Sequence[int]]) -> None:
        """From the next look on these slots, by topic. Any thread."""
        self._told.append(slots)

    def run_once(self) -> float:
        """One look at all. Raises TimerUnavailable when some topic's slots gave no answer at all."""
        if self._told:
            self._owned = self._told.popleft()
        failed: TimerUnavailable | None = None
        for topic, slots in self._owned.items():
            see = self._see[topic]
            try:
                # What is due before the next look has been made, were this one late.
                near = self._slots.heads(topic, slots, 2 * self._period_s + 1)
            except TimerUnavailable as error:
                failed = error
                continue
            for slot, in_s in near.items():
                see(slot, in_s)
        if failed is not None:
            raise failed
        return self._period_s
