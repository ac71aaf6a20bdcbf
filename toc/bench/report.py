"""What was measured, as a table for people and as JSON for the next comparison."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from toc.trial.statistics import Spread, spread

_RELATIONS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


@dataclass(frozen=True, slots=True)
class Target:
    """A wish for the median: of the ratio, or of toc's own figure."""

    of: Literal["ratio", "toc"]
    relation: Literal[">=", "<=", "<"]
    value: float

    def met_by(self, figure: Figure) -> bool | None:
        """None: there is nothing to compare with."""
        measured = figure.ratio if self.of == "ratio" else figure.toc
        if measured is None:
            return None
        return bool(_RELATIONS[self.relation](measured.middle, self.value))

    def __str__(self) -> str:
        return f"{self.of} {self.relation} {self.value:,g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured thing. `ratio` is toc over floor, round by round, and has no unit."""

    case: str
    what: str
    unit: str
    toc: Spread
    floor: Spread | None = None
    ratio: Spread | None = None
    targets: tuple[Target, ...] = ()


@dataclass(frozen=True, slots=True)
class BenchCheck:
    """Something that must hold however slow the machine is."""

    case: str
    what: str
    holds: bool


@dataclass(slots=True)
class BenchReport:
    """Everything of one run."""

    about: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    checks: list[BenchCheck] = field(default_factory=list)
    pictures: dict[str, list[str]] = field(default_factory=dict)  # histograms, by title
    notes: list[str] = field(default_factory=list)
    samples: dict[str, list[float]] = field(
        default_factory=dict
    )  # what they are of, in ms, to plot

    @property
    def broken(self) -> list[BenchCheck]:
        return [check for check in self.checks if not check.holds]

    def add_rounds(
        self,
        case: str,
        what: str,
        unit: str,
        rounds: Sequence[tuple[float | None, float]],
        *targets: Target,
    ) -> None:
        """Rounds of (floor, toc); floor None where there is none."""
        pairs = [(floor, toc) for floor, toc in rounds if floor is not None]
        self.figures.append(
            Figure(
                case,
                what,
                unit,
                spread([toc for _, toc in rounds]),
                spread([floor for floor, _ in pairs]) if pairs else None,
                spread([toc / floor for floor, toc in pairs if floor])
                if any(f for f, _ in pairs)
                else None,
                targets,
            )
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data: spreads are [low, median, high]."""
        figures = [
            asdict(figure)
            | {
                "targets": [
                    {"text": str(target), "met": target.met_by(figure)} for target in figure.targets
                ]
            }
            for figure in self.figures
        ]
        return {
            "about": self.about,
            "figures": figures,
            "checks": [asdict(check) for check in self.checks],
            "histograms": self.pictures,
            "notes": self.notes,
        }

    def show(self, console: Console) -> None:
        """Prints the table, the histograms and the checks."""
        table = Table(title="toc beside the bare drivers", caption=_CAPTION)
        for name in ("case", "what", "unit", "floor", "toc", "ratio", "target"):
            table.add_column(
                name, justify="right" if name in ("floor", "toc", "ratio") else "left", no_wrap=True
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
                _spread(figure.floor),
                _spread(figure.toc),
                _spread(figure.ratio),
                "\n".join(_target(target, figure) for target in figure.targets),
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
_CAPTION = "median (low to high of all rounds); ratio: toc / floor within a round"


def _spread(value: Spread | None) -> str:
    if value is None:
        return "-"
    if value.low == value.high:
        return _number(value.middle)
    return f"{_number(value.middle)} ({_number(value.low)} to {_number(value.high)})"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < _WHOLE else f"{value:,.0f}"


def _target(target: Target, figure: Figure) -> str:
    met = target.met_by(figure)
    mark = "" if met is None else " [green]met[/]" if met else " [yellow]missed[/]"
    return f"{target}{mark}"
