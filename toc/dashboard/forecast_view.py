"""What the page Forecast shows: rows of a table, lines of a chart, and the types."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from toc.dashboard.due_outlook import DueOutlook
from toc.dashboard.forecast_question import Question
from toc.dashboard.line_chart import ChartLine, LineChart
from toc.dashboard.texts import Texts
from toc.domain.due_grid import DAY_MS, HOUR_MS, MINUTE_MS, DueGrid, move_counts
from toc.domain.fluid_queue import Wait, counts_of, most_late
from toc.domain.forecast import Forecast, TypeGate, make_forecast

LINES_MAX = 4  # types with a column of their own
TYPES_MAX = 50
VIEWS_MAX = 100
_SPANS_MS = {"hour": (MINUTE_MS, HOUR_MS), "day": (HOUR_MS, DAY_MS), "month": (DAY_MS, 30 * DAY_MS)}


@dataclass(frozen=True, slots=True)
class ForecastRow:
    """A time of the chart. due, by_type, done: jobs in it. can: jobs that can be done in it; None: not known.

    late_ms: of the latest job that is due in it; None: not known. what_if_…: after the change that was asked.
    """

    begin_ms: int
    due: float
    by_type: Sequence[float]
    can: float | None
    done: float
    late_ms: float | None
    what_if_done: float | None
    what_if_late_ms: float | None


@dataclass(frozen=True, slots=True)
class ForecastTypeRow:
    """A type: jobs that are due now, in the next hour, day and month. late_ms: by its own limit or pause."""

    name: str
    overdue: float
    hour: float
    day: float
    month: float
    gate: TypeGate
    late_ms: float


@dataclass(frozen=True, slots=True)
class ForecastView:
    """The page's figures. columns: the types that have their own. edges_ms: of the rows.

    overdue: jobs that were due before the first row. more_types: how many types are not in the list.
    """

    rows: Sequence[ForecastRow]
    columns: Sequence[str]
    types: Sequence[ForecastTypeRow]
    more_types: int
    overdue: float
    edges_ms: Sequence[int]
    now: Forecast
    what_if: Forecast | None
    what_if_gates: Mapping[str, TypeGate]

    @property
    def most_due(self) -> float:
        return max((row.due for row in self.rows), default=0.0)

    def jobs_chart(self, t: Texts) -> LineChart:
        """The jobs that are due, those that are done, and those that can be done, in each row."""
        rows = self.rows
        lines = [ChartLine("due", t["forecast_due"], [_rounded(row.due) for row in rows])]
        lines += [
            ChartLine(f"type{place}", name, [_rounded(row.by_type[place]) for row in rows])
            for place, name in enumerate(self.columns)
        ]
        lines.append(ChartLine("done", t["forecast_done"], [_rounded(row.done) for row in rows]))
        if rows and rows[0].can is not None:
            lines.append(ChartLine("can", t["forecast_can"], [_rounded(row.can) for row in rows]))
        if self.what_if is not None:
            values = [_rounded(row.what_if_done) for row in rows]
            lines.append(ChartLine("what-if", t["forecast_what_if"], values))
        return LineChart(self._edges_s, lines, is_stepped=True)

    def lateness_chart(self, t: Texts) -> LineChart | None:
        """How late the jobs of each row are, in minutes; None: not known."""
        late = [_minutes(row.late_ms) for row in self.rows]
        lines = [ChartLine("late", t["forecast_late_min"], late)]
        if self.what_if is not None:
            late = [_minutes(row.what_if_late_ms) for row in self.rows]
            lines.append(ChartLine("what-if", t["forecast_what_if"], late))
        is_known = any(value is not None for line in lines for value in line.values)
        return LineChart(self._edges_s, lines) if is_known else None

    @property
    def _edges_s(self) -> list[float]:
        return [edge / 1000 for edge in self.edges_ms]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def _minutes(late_ms: float | None) -> float | None:
    return None if late_ms is None else round(late_ms / MINUTE_MS, 2)


def make_view(
    outlook: DueOutlook,
    due: Mapping[str, Sequence[float]],
    gates: Mapping[str, TypeGate],
    question: Question,
    capacity_per_s: float | None,
) -> ForecastView:
    """The figures for what is asked. `due`: by type, as DueOutlook.by_owner."""
    edges = outlook.grid.edges_ms
    now = make_forecast(edges, due, gates, capacity_per_s)
    what_if, changed = None, gates
    if question.has_what_if and question.type is not None:
        changed = {**gates, question.type: _changed_gate(gates, question)}
        what_if = make_forecast(edges, due, changed, capacity_per_s)
    wanted = view_edges(outlook.grid, question.span)
    in_span = {name: move_counts(edges, counts[1:], wanted) for name, counts in due.items()}
    largest = sorted(in_span, key=lambda name: (-sum(in_span[name]), name))
    if question.type is not None and question.type in in_span:
        largest = [question.type, *(name for name in largest if name != question.type)]
    columns = largest[:LINES_MAX]
    done = counts_of(now.done, wanted)
    late = _late_by_row(now, question.type, wanted)
    what_if_done = counts_of(what_if.done, wanted) if what_if is not None else None
    what_if_late = _late_by_row(what_if, question.type, wanted) if what_if is not None else None
    rows = [
        ForecastRow(
            begin_ms,
            sum(counts[place] for counts in in_span.values()),
            [in_span[name][place] for name in columns],
            None if capacity_per_s is None else capacity_per_s * (end_ms - begin_ms) / 1000,
            done[place],
            late[place],
            None if what_if_done is None else what_if_done[place],
            None if what_if_late is None else what_if_late[place],
        )
        for place, (begin_ms, end_ms) in enumerate(pairwise(wanted))
    ]
    types = _rows_of_types(outlook.grid, due, gates, now)
    overdue = sum(counts[0] for counts in due.values())
    return ForecastView(
        rows, columns, types[:TYPES_MAX], max(0, len(types) - TYPES_MAX), overdue, wanted, now,
        what_if, changed,
    )  # fmt: skip


def _changed_gate(gates: Mapping[str, TypeGate], question: Question) -> TypeGate:
    gate = gates.get(str(question.type), TypeGate())
    if question.per_s is not None:
        gate = replace(gate, per_s=question.per_s)
    if question.pause_until_ms is not None:
        gate = replace(gate, closed_until_ms=float(question.pause_until_ms))
    return gate


def view_edges(grid: DueGrid, span: str) -> list[int]:
    """The edges of the rows: from now on, then whole minutes, hours or days."""
    unit_ms, length_ms = _SPANS_MS[span]
    first_ms = grid.begin_ms - grid.begin_ms % unit_ms + unit_ms
    rest = range(first_ms, grid.begin_ms + length_ms + 1, unit_ms)
    return [grid.begin_ms, *rest]


def _late_by_row(
    forecast: Forecast, type_name: str | None, edges_ms: Sequence[int]
) -> list[float | None]:
    """How late the latest job of each row is: behind the capacity, and behind the limits of the type."""
    parts: list[Sequence[Wait]] = [forecast.waits] if forecast.waits else []
    if type_name in forecast.gated:
        parts.append(forecast.gated[str(type_name)][1])
    if not parts:
        return [None] * (len(edges_ms) - 1)
    return [
        max(most_late(waits, begin_ms, end_ms) for waits in parts)
        for begin_ms, end_ms in pairwise(edges_ms)
    ]


def _rows_of_types(
    grid: DueGrid,
    due: Mapping[str, Sequence[float]],
    gates: Mapping[str, TypeGate],
    forecast: Forecast,
) -> list[ForecastTypeRow]:
    late = forecast.late_types
    ends = [grid.begin_ms + length_ms for _, length_ms in _SPANS_MS.values()]
    rows = []
    for name, counts in due.items():
        hour, day, month = (
            move_counts(grid.edges_ms, counts[1:], (grid.begin_ms, end_ms))[0] for end_ms in ends
        )
        late_ms = late[name].worst_late_ms if name in late else 0.0
        gate = gates.get(name, TypeGate())
        rows.append(ForecastTypeRow(name, counts[0], hour, day, month, gate, late_ms))
    return sorted(rows, key=lambda row: (-row.late_ms, -row.month - row.overdue, row.name))


class ForecastViews:
    """The views of the newest outlook: viewers who ask the same get the same one. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outlook: DueOutlook | None = None
        self._views: dict[Hashable, ForecastView] = {}

    def get(
        self, outlook: DueOutlook, key: Hashable, make: Callable[[], ForecastView]
    ) -> ForecastView:
        """The view of a key, which says all that it depends on except the outlook."""
        with self._lock:
            if self._outlook is not outlook or len(self._views) >= VIEWS_MAX:
                self._outlook, self._views = outlook, {}
            found = self._views.get(key)
        if found is None:
            found = make()
            with self._lock:
                if self._outlook is outlook:
                    self._views[key] = found
        return found
