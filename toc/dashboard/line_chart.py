"""A chart of lines: what charts.js draws, and the names of the lines above it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line. style: its class in app.css, which has the colour and the dashes. values: None: a gap."""

    style: str
    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over times, in s since 1970; one time more than values: the end of the last step.

    marks: (time in s, text). is_logarithmic: the values are seconds, on a logarithmic scale.
    """

    times_s: Sequence[float]
    lines: Sequence[ChartLine]
    marks: Sequence[tuple[float, str]] = ()
    is_stepped: bool = False
    is_logarithmic: bool = False

    @property
    def data(self) -> str:
        """The chart as JSON, for charts.js."""
        return json.dumps(
            {
                "times": self.times_s,
                "series": [{"name": line.name, "values": line.values} for line in self.lines],
                "marks": [{"at": at_s, "text": text} for at_s, text in self.marks],
                "steps": self.is_stepped,
                "scale": "seconds" if self.is_logarithmic else "linear",
            },
            ensure_ascii=False,
        )
