"""The scale of a chart: linear, or logarithmic where one bar would hide the others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

HIDDEN = 50
"""A linear scale hides a bar if the largest one is more than so many times as long."""


@dataclass(frozen=True, slots=True)
class ChartScale:
    """Maps numbers from 0 to `largest` to a part of the height or width, from 0 to 1."""

    largest: float
    is_log: bool

    def part(self, number: float) -> float:
        if self.is_log:
            return math.log1p(number) / math.log1p(self.largest)
        return number / self.largest

    @property
    def middle(self) -> float:
        """The number at the middle of the scale."""
        return math.expm1(math.log1p(self.largest) / 2) if self.is_log else self.largest / 2


def scale_of_bars(numbers: Iterable[float]) -> ChartScale:
    """The scale for a few bars, of which each must be seen; at least up to 1."""
    drawn = [number for number in numbers if number > 0]
    largest = max([1, *drawn])
    return ChartScale(largest, len(drawn) > 1 and largest > HIDDEN * min(drawn))


def scale_of_columns(numbers: Iterable[float]) -> ChartScale:
    """The scale for many columns, of which the usual one must be seen; at least up to 1."""
    drawn = [number for number in numbers if number > 0]
    largest = max([1, *drawn])
    return ChartScale(largest, len(drawn) > 1 and largest > HIDDEN * median(drawn))
