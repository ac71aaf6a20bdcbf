"""Percentiles, spreads and text pictures of measured values. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

LATENESS_EDGES_MS = (1, 2, 5, 10, 20, 50, 100, 250, 500, 1000, 5000)
"""Upper edges of the histogram of lateness; values above the last one have a row of their own."""

_EIGHTHS = " ▁▂▃▄▅▆▇█"


class Spread(NamedTuple):
    """The range of several measurements."""

    low: float
    middle: float  # the median
    high: float


def compute_spread(values: Sequence[float]) -> Spread:
    """Raises ValueError for no values."""
    if not values:
        raise ValueError("a spread needs at least one value")
    return Spread(min(values), median(values), max(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest measured value that `percent` of all values do not exceed (nearest rank)."""
    if not values:
        raise ValueError("a percentile needs at least one value")
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def count_by_bucket(values: Sequence[float], edges: Sequence[float]) -> list[int]:
    """How many values are at most the first edge, the second, …, and above the last."""
    found = [0] * (len(edges) + 1)
    for value in values:
        found[bisect_left(edges, value)] += 1
    return found


def draw_histogram(
    values: Sequence[float],
    edges: Sequence[float] = LATENESS_EDGES_MS,
    unit: str = "ms",
    width: int = 40,
) -> list[str]:
    """One line of text per bucket, from the first to the last bucket that is not empty."""
    return draw_bars(count_by_bucket(values, edges), edges, unit, width)


def draw_bars(
    found: Sequence[int],
    edges: Sequence[float] = LATENESS_EDGES_MS,
    unit: str = "ms",
    width: int = 40,
) -> list[str]:
    """One line of text per bucket: `found` has a count per edge, then one above the last edge."""
    held = [position for position, n in enumerate(found) if n]
    if not held:
        return []
    lines = []
    for position in range(held[0], held[-1] + 1):
        n = found[position]
        last = position == len(edges)
        label = f"> {edges[-1]:g} {unit}" if last else f"<= {edges[position]:g} {unit}"
        bar = "█" * math.ceil(n / max(found) * width)  # one job in a million is still to be seen
        lines.append(f"{label:>12} {n:>8,} {bar}".rstrip())
    return lines


def draw_sparkline(values: Sequence[float]) -> str:
    """One character per value; the largest value has the full height."""
    top = max(values, default=0)
    if top <= 0:
        return " " * len(values)
    return "".join(_EIGHTHS[math.ceil(max(value, 0) / top * 8)] for value in values)
