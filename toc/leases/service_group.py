"""Several services that share one thread, for services that mostly wait."""

from __future__ import annotations

from collections.abc import Iterable

from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import PAUSE_S_MAX, Service


class ServiceGroup(Service):
    """Calls `run_once` of its members in turn, each when it is due. A member that fails pauses by itself.

    Only for members whose steps are bounded, and which nothing needs to wake: they are never started.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name)
        self._clock = clock
        self._due_s: dict[Service, float] = {}

    def set_members(self, members: Iterable[Service]) -> None:
        """Replaces the members; new ones are due at once. Any thread."""
        due_s = self._due_s
        self._due_s = {member: due_s.get(member, 0.0) for member in members}
        self.wake()

    def run_once(self) -> float:
        """Runs the member that has been due for longest. Returns the seconds until the next one is due."""
        members = self._due_s
        if not members:
            return PAUSE_S_MAX
        first = min(members, key=members.__getitem__)
        now_s = self._clock.monotonic_s()
        if members[first] > now_s:
            return members[first] - now_s
        try:
            wait_s = first.run_once()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other members go on
            first._log_failure(error)  # noqa: SLF001 - a base class' method
            metrics.SERVICE_ERRORS.labels(first.name).inc()
            wait_s = PAUSE_S_MAX
        members[first] = self._clock.monotonic_s() + wait_s
        return 0
