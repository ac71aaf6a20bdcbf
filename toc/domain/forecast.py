"""When jobs will be late: what is due, beside what can be done. Pure arithmetic.

Jobs of a type with a rate limit or a pause first wait for these, then all jobs together wait for the capacity
of the whole system, in the order in which they are due or were let through. Left out: retries, the ramp after
a pause, concurrency, limits of partitions, priorities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from toc.domain.fluid_queue import (
    Curve,
    Wait,
    add_curves,
    curve_of,
    serve,
    value_at,
    waits_between,
)

ON_TIME_MS = 60_000.0  # the slices of the next hour are minutes: less is not to be seen
MINUTE_MS = 60_000.0


@dataclass(frozen=True, slots=True)
class TypeGate:
    """What holds the jobs of a type back. per_s: jobs a second, None: any number.

    closed_until_ms: the end of a pause; 0: it is not paused; infinite: until somebody resumes it.
    """

    per_s: float | None = None
    closed_until_ms: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.per_s is None and not self.closed_until_ms


@dataclass(frozen=True, slots=True)
class LatePeriod:
    """A time in which jobs are late. Times in ms since 1970 UTC.

    begin_ms: when the first job is due that will be late. due_per_min: how many are due from then until
    worst_due_ms, when the job is due that will be worst_late_ms late; infinite: they are due at once. jobs:
    how many are due until then. over_ms: when everything is on time again.
    """

    begin_ms: float
    due_per_min: float
    jobs: float
    worst_due_ms: float
    worst_late_ms: float
    over_ms: float

    @property
    def worst_done_ms(self) -> float:
        return self.worst_due_ms + self.worst_late_ms


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a set of gates and a capacity do to the jobs.

    ready: the jobs that pass the gates; done: those that are done. waits: how late they become behind the
    gates; empty if the capacity is not known. gated: due jobs and waits of each type with a gate. held:
    jobs of types that are paused until somebody resumes them.
    """

    ready: Curve
    done: Curve
    waits: Sequence[Wait]
    gated: Mapping[str, tuple[Curve, Sequence[Wait]]]
    held: Mapping[str, float]

    @property
    def late_period(self) -> LatePeriod | None:
        """The worst time in which the capacity is too small; None: it is enough, or not known."""
        return find_late_period(self.ready, self.waits)

    @property
    def late_types(self) -> dict[str, LatePeriod]:
        """The worst time of each type whose own limit or pause makes its jobs late, the worst type first."""
        found = {name: find_late_period(*both) for name, both in self.gated.items()}
        late = {name: period for name, period in found.items() if period is not None}
        return dict(sorted(late.items(), key=lambda item: (-item[1].worst_late_ms, item[0])))

    @property
    def worst(self) -> LatePeriod | None:
        """The worst of all these times."""
        own = self.late_period
        found = [*self.late_types.values(), *([] if own is None else [own])]
        return max(found, key=lambda period: period.worst_late_ms, default=None)


def make_forecast(
    edges_ms: Sequence[int],
    due: Mapping[str, Sequence[float]],
    gates: Mapping[str, TypeGate],
    capacity_per_s: float | None,
) -> Forecast:
    """`due`: by type, the jobs due before edges_ms[0], then from each edge to the next. No rate may be 0."""
    free = [0.0] * len(edges_ms)
    held: dict[str, float] = {}
    gated: dict[str, tuple[Curve, Sequence[Wait]]] = {}
    let_through: list[Curve] = []
    for name, counts in due.items():
        gate = gates.get(name, TypeGate())
        if gate.is_open:
            free = [sum(both) for both in zip(free, counts, strict=True)]
        elif gate.closed_until_ms == inf:
            held[name] = sum(counts)
        else:
            curve = curve_of(edges_ms, counts[1:], counts[0])
            passed = serve(curve, _per_ms(gate.per_s), gate.closed_until_ms)
            gated[name] = curve, waits_between(curve, passed)
            let_through.append(passed)
    ready = add_curves([curve_of(edges_ms, free[1:], free[0]), *let_through])
    if capacity_per_s is None:
        return Forecast(ready, ready, (), gated, held)
    done = serve(ready, _per_ms(capacity_per_s))
    return Forecast(ready, done, waits_between(ready, done), gated, held)


def _per_ms(per_s: float | None) -> float | None:
    return None if per_s is None else per_s / 1000


def find_late_period(due: Curve, waits: Sequence[Wait]) -> LatePeriod | None:
    """The time in which jobs become the latest; None: no job is later than ON_TIME_MS."""
    periods: list[list[Wait]] = []
    for wait in waits:
        is_late = max(wait.begin_late_ms, wait.end_late_ms) > 1.0
        follows = bool(periods and periods[-1] and wait.begin_late_ms > 1.0)
        if not is_late:
            periods.append([])
        elif follows:
            periods[-1].append(wait)
        else:
            periods.append([wait])
    worst = max(filter(None, periods), key=_worst_late_ms, default=None)
    if worst is None or _worst_late_ms(worst) <= ON_TIME_MS:
        return None
    begin_ms, last = worst[0].begin_ms, worst[-1]
    late_ms, due_ms = max(
        point
        for wait in worst
        for point in (
            (wait.begin_late_ms, wait.begin_ms),
            (wait.end_late_ms, wait.end_ms),
        )
    )
    jobs = value_at(due, due_ms) - _value_before(due, begin_ms)
    minutes = (due_ms - begin_ms) / MINUTE_MS
    return LatePeriod(
        begin_ms, jobs / minutes if minutes >= 1 else inf, jobs, due_ms, late_ms,
        last.end_ms + last.end_late_ms,
    )  # fmt: skip


def _worst_late_ms(waits: Sequence[Wait]) -> float:
    return max(max(wait.begin_late_ms, wait.end_late_ms) for wait in waits)


def _value_before(curve: Curve, time_ms: float) -> float:
    """The jobs up to a time, without a step at that time."""
    before = curve[0][1]
    for (begin, low), (end, high) in pairwise(curve):
        if end >= time_ms:
            return low if end <= begin else low + (high - low) * (time_ms - begin) / (end - begin)
        before = high
    return before
