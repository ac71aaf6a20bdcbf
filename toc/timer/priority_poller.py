"""Pops the jobs of one type by priority: one poller for each priority, run as one (ADR 51).

The due reminders of each priority have a topic of their own, ordered by due time. Within a priority the job
that is due first goes first, so the next job is at the head of one of these topics: the head whose due time,
less `priority x ageing_s`, is the earliest. No score is changed, so nothing is popped before it is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from toc.runtime.clock import Clock
from toc.runtime.service import PAUSE_S_MAX, Service
from toc.timer.poller import WAIT_S_MAX, Poller

REST_S = 2 * PAUSE_S_MAX  # the others go on meanwhile, if the Redis node of one priority fails


class PriorityPoller(Service):
    """The pollers of one type, by the priority of their jobs. It has no thread: other code runs its steps."""

    def __init__(
        self, topic: str, pollers: Mapping[int, Poller], clock: Clock, ageing_s: float
    ) -> None:
        super().__init__(f"toc-priority-poller-{topic}")
        self.topic, self.pollers = topic, dict(pollers)
        self._clock, self._ageing_s = clock, ageing_s
        self._rests_until_s: dict[int, float] = {}  # by priority
        self.on_wake: Callable[[], None] | None = None
        """Called when one of the pollers is woken."""
        for poller in self.pollers.values():
            poller.on_wake = self.wake
            poller.reads_heads = True

    def wake(self) -> None:
        super().wake()
        if self.on_wake is not None:
            self.on_wake()

    def take_wake(self) -> bool:
        """Whether one of the pollers was woken since the last call."""
        was_woken = self._wake.is_set()
        self._wake.clear()
        return was_woken

    def take_reports(self) -> None:
        """See `Poller.take_reports`."""
        for poller in self.pollers.values():
            poller.take_reports()

    @property
    def head_due_s(self) -> float:
        """When the reminder that is popped next is due, by the monotonic clock; infinity: none is known."""
        return min(poller.head_due_s for poller in self.pollers.values())

    def run_once(self) -> float:
        """Pops of the priority whose turn it is. Returns the seconds until the next step."""
        if any(poller.waits_for_claim for poller in self.pollers.values()):
            # Jobs of this batch may come back, and go before those of a lower priority.
            return WAIT_S_MAX
        now_s = self._clock.monotonic_s()
        heads: dict[int, float] = {}
        for priority, poller in self.pollers.items():
            if self._rests_until_s.get(priority, now_s) <= now_s:
                with self._resting_after_error(priority):
                    poller.update_heads()
                heads[priority] = poller.head_due_s
        chosen = choose_priority(heads, now_s, self._ageing_s)
        if chosen is None:
            rests_s = [at_s for at_s in self._rests_until_s.values() if at_s > now_s]
            return min([*heads.values(), *rests_s, now_s + WAIT_S_MAX]) - now_s
        with self._resting_after_error(chosen):
            return self.pollers[chosen].run_once()

    @contextmanager
    def _resting_after_error(self, priority: int) -> Iterator[None]:
        """After an error leaves the priority out for a while: perhaps only its Redis node fails."""
        try:
            yield
        except Exception:
            self._rests_until_s[priority] = self._clock.monotonic_s() + REST_S
            raise


def choose_priority(heads: Mapping[int, float], now_s: float, ageing_s: float) -> int | None:
    """The priority of the next job; None: none is due. `heads`: when the first job of each is due."""
    due = {priority: head_s for priority, head_s in heads.items() if head_s <= now_s}
    if not due:
        return None
    aged_s = {priority: due[priority] - priority * ageing_s for priority in due}  # guard: aged-head
    return min(aged_s, key=lambda priority: (aged_s[priority], -priority))
