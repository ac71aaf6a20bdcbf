"""A queue of so many jobs that they count as a fluid: what comes, what can be done, and how late it will be.

A curve is a list of points (time in ms, jobs in all up to then), which rise or stay; between two points it is
a straight line, and two points of the same time are a step. All is exact up to rounding.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

Curve = list[tuple[float, float]]
ROUNDING_JOBS = 0.001  # a smaller part of a job is an error of rounding


class Wait(NamedTuple):
    """Jobs due from begin_ms to end_ms: the first of them is begin_late_ms late, the last end_late_ms."""

    begin_ms: float
    end_ms: float
    begin_late_ms: float
    end_late_ms: float


def curve_of(edges_ms: Sequence[float], counts: Sequence[float], before: float = 0.0) -> Curve:
    """The jobs that are due: `before` at once, then counts[i] evenly from edges_ms[i] to edges_ms[i + 1]."""
    total = before
    curve: Curve = [(edges_ms[0], 0.0)]
    if before:
        curve.append((edges_ms[0], before))
    for end, count in zip(edges_ms[1:], counts, strict=True):
        total += count
        curve.append((end, total))
    return curve


def add_curves(curves: Iterable[Curve]) -> Curve:
    """The sum. After its last point a curve stays as it is."""
    steps: dict[float, float] = {}
    slopes: dict[float, float] = {}
    for curve in curves:
        for (begin, low), (end, high) in pairwise(curve):
            if end > begin:
                slope = (high - low) / (end - begin)
                slopes[begin] = slopes.get(begin, 0.0) + slope
                slopes[end] = slopes.get(end, 0.0) - slope
            else:
                steps[end] = steps.get(end, 0.0) + high - low
        steps.setdefault(curve[0][0], 0.0)
    total = slope = last = 0.0
    summed: Curve = []
    for time in sorted(steps.keys() | slopes.keys()):
        if summed:
            total += max(0.0, slope) * (time - last)
        summed.append((time, total))
        if steps.get(time):
            total += steps[time]
            summed.append((time, total))
        slope += slopes.get(time, 0.0)
        last = time
    return summed


def serve(due: Curve, per_ms: float | None, closed_until_ms: float = 0.0) -> Curve:
    """The jobs that are done, first due first. per_ms: jobs a ms at most, above 0; None: any number.

    Nothing is done before closed_until_ms. The curve goes on until all is done.
    """
    begin = due[0][0]
    done: Curve = [(begin, 0.0)]
    if closed_until_ms > begin:
        done.append((closed_until_ms, 0.0))
        due = _hold_back(due, closed_until_ms)
    if per_ms is None:
        return _without_repeats([*done, *due])
    for (time, before), (end, after) in pairwise(due):
        waiting = before - done[-1][1]
        if end <= time:
            continue
        come = (after - before) / (end - time)
        if come <= per_ms and waiting <= 0:
            done.append((end, after))
            continue
        empty = time + waiting / (per_ms - come) if come < per_ms else end
        if empty < end:
            # max: rounding must not make the curve fall
            done += [(empty, max(done[-1][1], before + come * (empty - time))), (end, after)]
        else:
            done.append((end, min(after, done[-1][1] + per_ms * (end - time))))
    last, total = due[-1]
    if total > done[-1][1]:
        done.append((last + (total - done[-1][1]) / per_ms, total))
    return _without_repeats(done)


def _hold_back(due: Curve, until_ms: float) -> Curve:
    """The curve with all that is due before `until_ms` due at that time."""
    level = value_at(due, until_ms)
    rest = [point for point in due if point[0] > until_ms]
    return [(until_ms, 0.0), (until_ms, level), *rest]


def _without_repeats(curve: Curve) -> Curve:
    kept: Curve = []
    for point in curve:
        if not kept or point != kept[-1]:
            kept.append(point)
    return kept


def value_at(curve: Curve, time_ms: float) -> float:
    """The jobs up to a time, with a step at that time."""
    place = bisect_right(curve, (time_ms, float("inf")))
    if place == 0:
        return 0.0
    begin, low = curve[place - 1]
    if place == len(curve):
        return low
    end, high = curve[place]
    return low + (high - low) * (time_ms - begin) / (end - begin)


def counts_of(curve: Curve, edges_ms: Sequence[float]) -> list[float]:
    """The jobs after each edge, up to and with the next one."""
    values = [value_at(curve, edge) for edge in edges_ms]
    return [after - before for before, after in pairwise(values)]


def waits_between(due: Curve, done: Curve) -> list[Wait]:
    """How late jobs are done that are done in the order in which they are due; in that order.

    Both curves must reach the same total.
    """
    total = min(due[-1][1], done[-1][1])
    levels = sorted({level for _, level in (*due, *done) if 0.0 < level < total} | {0.0, total})
    due_at, done_at = _Inverse(due), _Inverse(done)
    waits = []
    for low, high in pairwise(levels):
        if high - low < ROUNDING_JOBS:
            continue
        begin, end = due_at.after(low), due_at.before(high)
        begin_late, end_late = done_at.after(low) - begin, done_at.before(high) - end
        waits.append(Wait(begin, max(begin, end), max(0.0, begin_late), max(0.0, end_late)))
    return waits


class _Inverse:
    """The time at which a curve reaches a level."""

    def __init__(self, curve: Curve) -> None:
        self._times = [time for time, _ in curve]
        self._levels = [level for _, level in curve]

    def before(self, level: float) -> float:
        """The first time at which the curve has reached the level: of the job just below it."""
        return self._time_at(level, bisect_left(self._levels, level))

    def after(self, level: float) -> float:
        """The last time at which the curve has not passed the level: of the job just above it."""
        return self._time_at(level, bisect_right(self._levels, level))

    def _time_at(self, level: float, place: int) -> float:
        if place == 0:
            return self._times[0]
        if place == len(self._levels):
            return self._times[-1]
        low, high = self._levels[place - 1], self._levels[place]
        begin, end = self._times[place - 1], self._times[place]
        return begin + (end - begin) * (level - low) / (high - low)


def most_late(waits: Iterable[Wait], begin_ms: float, end_ms: float) -> float:
    """The lateness of the latest job that is due from begin_ms to end_ms; 0 if none is due."""
    latest = 0.0
    for wait in waits:
        is_before = wait.end_ms <= begin_ms and wait.begin_ms < begin_ms
        if is_before or wait.begin_ms >= end_ms:
            continue
        for time in (max(begin_ms, wait.begin_ms), min(end_ms, wait.end_ms)):
            latest = max(latest, _late_at(wait, time))
    return latest


def _late_at(wait: Wait, time_ms: float) -> float:
    length = wait.end_ms - wait.begin_ms
    if length <= 0:
        return max(wait.begin_late_ms, wait.end_late_ms)
    share = (time_ms - wait.begin_ms) / length
    return wait.begin_late_ms + share * (wait.end_late_ms - wait.begin_late_ms)
