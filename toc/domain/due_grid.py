"""The slices of time of a forecast: minutes for the next hour, hours for a day, days for a month.

Edges are whole minutes, hours and days (UTC), so grids that begin at different minutes fit into each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
DAYS = 30


@dataclass(frozen=True, slots=True)
class DueGrid:
    """Slices [edges_ms[i - 1], edges_ms[i]), numbered from 1. Slice 0 has everything before the first.

    Before hours_ms a slice is a minute, before days_ms an hour, then a day. Times in ms since 1970 UTC.
    """

    edges_ms: tuple[int, ...]
    hours_ms: int
    days_ms: int

    @property
    def begin_ms(self) -> int:
        return self.edges_ms[0]

    @property
    def end_ms(self) -> int:
        return self.edges_ms[-1]

    def slice_of(self, due_ms: int) -> int:
        """The number of the slice that has this time, which lies before the end."""
        return bisect_right(self.edges_ms, due_ms)

    def region_of(self, slice_no: int) -> int:
        """0: before the grid; 1: minutes; 2: hours; 3: days."""
        if slice_no == 0:
            return 0
        begin_ms = self.edges_ms[slice_no - 1]
        return 1 + (begin_ms >= self.hours_ms) + (begin_ms >= self.days_ms)

    def moved(self, counts: Sequence[float], to: DueGrid) -> list[float]:
        """Counts of these slices on another grid. What is due between the two beginnings is left out."""
        if to == self:
            return list(counts)
        return [counts[0], *move_counts(self.edges_ms, counts[1:], to.edges_ms)]


REGIONS = 4


def make_grid(now_ms: int) -> DueGrid:
    """The grid from the last whole minute on: at least 60 minutes, 24 hours, 30 days; at most 200 slices."""
    begin_ms = now_ms - now_ms % MINUTE_MS
    hours_ms = _round_up(begin_ms + HOUR_MS, HOUR_MS)
    days_ms = max(hours_ms, _round_up(begin_ms + DAY_MS, DAY_MS))
    end_ms = _round_up(begin_ms + DAYS * DAY_MS, DAY_MS)
    edges = (
        *range(begin_ms, hours_ms, MINUTE_MS), *range(hours_ms, days_ms, HOUR_MS),
        *range(days_ms, end_ms + 1, DAY_MS),
    )  # fmt: skip
    return DueGrid(edges, hours_ms, days_ms)


def _round_up(ms: int, unit_ms: int) -> int:
    return -(-ms // unit_ms) * unit_ms


def move_counts(
    edges_ms: Sequence[int], counts: Sequence[float], wanted_ms: Sequence[int]
) -> list[float]:
    """The counts of slices between other edges. Within a slice the jobs count as evenly spread.

    What lies before the first or after the last wanted edge is left out.
    """
    moved = [0.0] * (len(wanted_ms) - 1)
    at = 0
    for (begin, end), count in zip(pairwise(edges_ms), counts, strict=True):
        if begin >= wanted_ms[-1]:
            break
        if not count:
            continue
        while at < len(moved) and wanted_ms[at + 1] <= begin:
            at += 1
        place = at
        while place < len(moved) and wanted_ms[place] < end:
            shared = min(end, wanted_ms[place + 1]) - max(begin, wanted_ms[place])
            if shared > 0:
                moved[place] += count * shared / (end - begin)
            place += 1
    return moved
