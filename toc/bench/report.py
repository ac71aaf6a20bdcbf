"""The figures of a run, as a table for people and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from toc.bench.statistics import Spread, compute_spread


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value. `baseline`: what it is compared with; `ratio`: toc / baseline in each round."""

    case: str
    what: str
    unit: str
    toc: Spread
    baseline: Spread | None = None
    ratio: Spread | None = None


@dataclass(frozen=True, slots=True)
class BenchCheck:
    """A condition that must hold however slow the machine is."""

    case: str
    what: str
    holds: bool


@dataclass(slots=True)
class BenchReport:
    """All that one run measured. `about`: servers, machine and options."""

    about: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    checks: list[BenchCheck] = field(default_factory=list)
    pictures: dict[str, list[str]] = field(default_factory=dict)  # histograms, by title
    notes: list[str] = field(default_factory=list)
    samples: dict[str, list[float]] = field(default_factory=dict)  # lateness in ms, by title

    @property
    def failed_checks(self) -> list[BenchCheck]:
        return [check for check in self.checks if not check.holds]

    def add_measurement(
        self,
        case: str,
        what: str,
        unit: str,
        rounds: Sequence[tuple[float | None, float]],
    ) -> None:
        """Adds a figure from its rounds of (baseline, toc). baseline: None if there is none."""
        pairs = [(baseline, toc) for baseline, toc in rounds if baseline is not None]
        self.figures.append(
            Figure(
                case,
                what,
                unit,
                compute_spread([toc for _, toc in rounds]),
                compute_spread([baseline for baseline, _ in pairs]) if pairs else None,
                compute_spread([toc / baseline for baseline, toc in pairs if baseline])
                if any(f for f, _ in pairs)
                else None,
            )
        )

    def median(self, case: str, what: str) -> float | None:
        """The median of toc's own values of a figure; None: it was not measured."""
        found = (f.toc.middle for f in self.figures if (f.case, f.what) == (case, what))
        return next(found, None)

    def as_json(self) -> dict[str, Any]:
        """Plain data: spreads are [low, median, high]."""
        return {
            "about": self.about,
            "figures": [asdict(figure) for figure in self.figures],
            "checks": [asdict(check) for check in self.checks],
            "histograms": self.pictures,
            "notes": self.notes,
        }

    def print_to_console(self, console: Console) -> None:
        """Prints the table, the histograms and the checks."""
        table = Table(title="toc bench", caption=_CAPTION)
        for name in ("case", "what", "unit", "baseline", "toc", "ratio"):
            table.add_column(
                name,
                justify="right" if name in ("baseline", "toc", "ratio") else "left",
                no_wrap=True,
            )
        previous = ""
        for figure in self.figures:
            if figure.case != previous and previous:
                table.add_section()
            shown_case = figure.case if figure.case != previous else ""
            previous = figure.case
            table.add_row(
                shown_case,
                figure.what,
                figure.unit,
                _format_spread(figure.baseline),
                _format_spread(figure.toc),
                _format_spread(figure.ratio),
            )
        console.print(table)
        for title, lines in self.pictures.items():
            console.print(f"\n{title}", style="bold")
            for line in lines:
                console.print(line, highlight=False, markup=False)
        console.print()
        for note in self.notes:
            console.print(note, highlight=False, markup=False)
        for check, times in Counter(self.checks).items():
            verdict = Text(
                "holds  " if check.holds else "BROKEN ", "green" if check.holds else "red"
            )
            often = f", {times} times" if times > 1 else ""
            console.print(verdict + Text(f"{check.case}: {check.what}{often}"))


_WHOLE = 1000  # from here on a figure has no fraction worth printing
_CAPTION = "median (low to high of all rounds); baseline: measured in turns with toc; ratio: toc / baseline"


def _format_spread(value: Spread | None) -> str:
    if value is None:
        return "-"
    if value.low == value.high:
        return _format_number(value.middle)
    return f"{_format_number(value.middle)} ({_format_number(value.low)} to {_format_number(value.high)})"


def _format_number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < _WHOLE else f"{value:,.0f}"
