"""The faults of a run: which one explains a duplicate, and when each was on, or had just ended. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from toc.testing.history import Fault, LeaseUnanswered


class FaultState(NamedTuple):
    """The faults at one moment. `during`: names of the faults that are on.

    `after`: name and end in ms of each fault that has ended since the last beginning of a fault.
    """

    during: tuple[str, ...]
    after: tuple[tuple[str, float], ...]


QUIET = FaultState((), ())


class FaultTimeline:
    """Finds faults by time and process. `linger_ms`: how long after its end a fault explains a duplicate."""

    def __init__(self, faults: Iterable[Fault], linger_ms: float = 0.0) -> None:
        self.all = sorted(faults, key=lambda fault: fault.from_ms)
        by_process: dict[str, list[Fault]] = defaultdict(list)
        for fault in self.all:
            for process in fault.processes or ("",):
                by_process[process].append(fault)
        self._by_process = {
            name: _FaultsByTime(found, linger_ms) for name, found in by_process.items()
        }
        self._anything = _FaultsByTime(self.all, linger_ms)
        self._edges, self._moments = _build_timeline(self.all)

    def find_explaining_fault(self, process: str, from_ms: float, to_ms: float) -> str | None:
        """The name of a fault that hit this process between these times; else of one that hit all processes.

        None: there was no such fault.
        """
        for name in (process, ""):
            line = self._by_process.get(name)
            if (
                line is not None
                and (fault := line.find_overlapping_fault(from_ms, to_ms)) is not None
            ):
                return fault.name
        return None

    def has_fault_within(self, from_ms: float, to_ms: float) -> bool:
        """Whether any fault was on between these times, in any process."""
        return self._anything.find_overlapping_fault(from_ms, to_ms) is not None

    def fault_state_at(self, at_ms: float) -> FaultState:
        position = bisect_right(self._edges, at_ms) - 1
        return self._moments[position] if position >= 0 else QUIET


class LostLeases:
    """Finds calls for leases whose answers were lost, by type and time."""

    def __init__(self, calls: Iterable[LeaseUnanswered]) -> None:
        self._calls = FaultTimeline(
            Fault("lost leases", call.asked_ms, call.at_ms, (call.biz_type,)) for call in calls
        )

    def were_possible_within(self, biz_type: str, from_ms: float, to_ms: float) -> bool:
        """Whether a job of the type may have been leased to nobody between these times."""
        return self._calls.find_explaining_fault(biz_type, from_ms, to_ms) is not None


class _FaultsByTime:
    """Faults in the order of their beginning; finds a fault that overlaps a time span, by bisection."""

    def __init__(self, faults: list[Fault], linger_ms: float) -> None:
        self._faults = faults
        self._linger_ms = linger_ms
        self._from_ms = [fault.from_ms for fault in faults]
        self._last_ms = list(accumulate((fault.to_ms for fault in faults), max))

    def find_overlapping_fault(self, from_ms: float, to_ms: float) -> Fault | None:
        position = bisect_right(self._from_ms, to_ms) - 1
        while position >= 0 and self._last_ms[position] + self._linger_ms >= from_ms:
            if self._faults[position].to_ms + self._linger_ms >= from_ms:
                return self._faults[position]
            position -= 1
        return None


def _build_timeline(faults: list[Fault]) -> tuple[list[float], list[FaultState]]:
    """The times at which faults begin or end, and the faults that are on from each time on."""
    begins, ends = defaultdict(list), defaultdict(list)
    for fault in faults:
        begins[fault.from_ms].append(fault.name)
        ends[fault.to_ms].append(fault.name)
    edges = sorted({*begins, *ends})
    on: Counter[str] = Counter()
    after: dict[str, float] = {}
    moments = []
    for edge in edges:
        if begins[edge]:
            after.clear()
        on.update(begins[edge])
        on.subtract(ends[edge])
        after.update(dict.fromkeys(ends[edge], edge))
        during = tuple(sorted(name for name, n in on.items() if n > 0))
        moments.append(FaultState(during, tuple(sorted(after.items()))))
    return edges, moments
