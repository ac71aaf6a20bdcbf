"""The limits of a process: follows the catalogue, and tells the gate which types are limited (ADR 45)."""

from __future__ import annotations

from toc.limits.admission import LimitAdmission
from toc.limits.keeper import SETTLE_MS, LimitKeeper
from toc.limits.limits import Limits
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.settings import Settings
from toc.store.declared_types import DeclaredTypeCache
from toc.timer.limit_store import LimitStore
from toc.timer.reminders import Reminders
from toc.worker.gate import Gate

LEAVING_S = 60.0  # how long a hold topic is popped beyond the time when it should be empty
CHECK_S = 1.0  # time between two looks at the catalogue, which is in memory


class LimitedTypes(Service):
    """Tells the gate which types have limits.

    A type stays with the gate for a while after its limits were removed, without a limit: reminders may still
    wait in its hold topic.
    """

    def __init__(self, limits: Limits, gate: Gate, clock: Clock, leaving_s: float) -> None:
        super().__init__("toc-limited-types")
        self._limits, self._gate, self._clock = limits, gate, clock
        self._leaving_s = leaving_s
        self._until_s: dict[str, float] = {}

    def run_once(self) -> float:
        """Compares the catalogue with the gate."""
        self.update_gate()
        return CHECK_S

    def update_gate(self) -> None:
        now_s = self._clock.monotonic_s()
        limited = frozenset(self._limits.limited_types)
        self._until_s |= dict.fromkeys(limited, now_s + self._leaving_s)
        self._until_s = {name: at_s for name, at_s in self._until_s.items() if at_s > now_s}
        self._gate.set_limits(
            {name: LimitAdmission(self._limits, name) for name in limited},
            self._until_s.keys() - limited,
        )


class LimitFollower:
    """The limits of a process and the services that keep them. `reminders`: None without Redis.

    The ramps of `gate` take their starts from the same store.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        declared: DeclaredTypeCache,
        reminders: Reminders | None,
        gate: Gate,
    ) -> None:
        store = None
        if reminders is not None:
            store = LimitStore(
                reminders,
                settings.namespace,
                clock,
                settle_ms=SETTLE_MS,
                partitions_max=settings.limits.partitions,
            )
        self._ramp_starts = gate.ramp_starts
        self._ramp_starts.store = store
        self.limits = Limits(
            declared,
            store,
            clock,
            hold_ms=round(settings.worker.lease_s * 1000),
            partitions_max=settings.limits.partitions,
        )
        timer = settings.timer
        # No reminder in a hold topic is due later than the horizon and the slack from now.
        leaving_s = timer.horizon_s + timer.slack_s + timer.stay_s + LEAVING_S
        self._types = LimitedTypes(self.limits, gate, clock, leaving_s)
        self._keeper = LimitKeeper(self.limits, clock)
        for service in (self._types, self._keeper):
            declared.add_listener(service.wake)
        self.services: list[Service] = [self._types]

    def set_nodes(self, index: int | None, nodes: int) -> None:
        """Without Redis this process takes part number `index` of `nodes` parts of limits and ramps.

        None: one of `nodes` equal parts.
        """
        self.limits.set_nodes(index, nodes)
        self._ramp_starts.set_nodes(index, nodes)

    def start(self) -> None:
        """Starts the keeper; the gate knows the limits before anything is claimed."""
        self._types.update_gate()
        self._keeper.start()

    def stop(self, timeout_s: float) -> bool:
        """Stops the keeper, after the last job has ended: its releases are still sent."""
        return self._keeper.stop(timeout_s)
