"""The display: a live panel in a terminal, plain lines elsewhere, the summary at the end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from toc.bench.statistics import (
    LATENESS_EDGES_MS,
    draw_bars,
    draw_histogram,
    draw_sparkline,
    percentile,
)
from toc.demo.orders import ABOUT, MAX_ATTEMPTS
from toc.testing.history import (
    CancelAnswered,
    Ended,
    Entry,
    Fault,
    RescheduleAnswered,
    Row,
    Scheduled,
    Started,
)
from toc.testing.report import MEANING, Kind, Lateness, Report

RECENT = 500  # "lateness now" is that of the last so many starts
SECONDS_SHOWN = 60
PROBLEMS_SHOWN = 20
BROKEN = "BROKEN: toc did not keep its promises"
HELD = "Every promise held: nothing lost, early, double, or fired after a cancel"


@dataclass(slots=True)
class DemoTally:
    """Running figures from the journals, for the view only: the check does not use them."""

    started_ms: float
    address: str = ""  # of the pages
    scheduled: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    moved: int = 0
    done: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    retries: int = 0
    dead: int = 0
    action_ms: dict[int, int] = field(default_factory=dict)
    types: dict[int, str] = field(default_factory=dict)
    recent_ms: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    by_second: Counter[int] = field(default_factory=Counter)

    def count_entries(self, entries: Iterable[Entry]) -> None:
        happened = (entry for entry in entries if not isinstance(entry, Fault | Row))
        for entry in sorted(happened, key=lambda entry: entry.at_ms):
            match entry:
                case Scheduled():
                    self.scheduled[entry.biz_type] += 1
                    self.action_ms[entry.job_id] = entry.action_ms
                    self.types[entry.job_id] = entry.biz_type
                case CancelAnswered():
                    self.cancelled += entry.answer == "cancelled"
                case RescheduleAnswered():
                    if entry.answer == "rescheduled":
                        self.moved += 1
                        self.action_ms[entry.job_id] = entry.action_ms
                case Started():
                    self._count_start(entry)
                case Ended():
                    biz_type = self.types.get(entry.job_id, "")
                    if not entry.failed:
                        self.done[biz_type] += 1
                    elif entry.attempt >= MAX_ATTEMPTS.get(biz_type, entry.attempt + 1):
                        self.dead += 1

    def _count_start(self, entry: Started) -> None:
        self.starts += 1
        self.by_second[int((entry.at_ms - self.started_ms) // 1000)] += 1
        if entry.attempt > 1:
            self.retries += 1
        elif entry.job_id in self.action_ms:
            self.recent_ms.append(entry.at_ms - self.action_ms[entry.job_id])

    @property
    def lateness_text(self) -> str:
        if not self.recent_ms:
            return "-"
        return _lateness_percentiles(self.recent_ms)

    def named_figures(self) -> list[tuple[str, str]]:
        """The figures of the moment, by name."""
        return [
            ("scheduled", f"{self.scheduled.total():,}"),
            ("paid in time (cancelled)", f"{self.cancelled:,}"),
            ("more time (rescheduled)", f"{self.moved:,}"),
            ("handler starts", f"{self.starts:,}"),
            ("of these retries", f"{self.retries:,}"),
            ("done", f"{self.done.total():,}"),
            ("dead", f"{self.dead:,}"),
            ("lateness now", self.lateness_text),
        ]

    def as_one_line(self, passed_s: float) -> str:
        """The figures on one line, for output that is no terminal."""
        return f"{passed_s:4.0f} s  " + ", ".join(
            f"{name} {value}" for name, value in self.named_figures()
        )


def make_live_panel(tally: DemoTally, passed_s: float, total_s: float) -> RenderableType:
    """The live view of this moment, as a panel."""
    browser = Text(f"in a browser  {tally.address}", style="bold")
    types = Table.grid(padding=(0, 2))
    for biz_type, about in ABOUT.items():
        types.add_row(
            Text(biz_type, style="bold"),
            f"{tally.scheduled[biz_type]:,}",
            f"done {tally.done[biz_type]:,}",
            Text(about, style="dim"),
        )
    facts = Table.grid(padding=(0, 2))
    for name, value in tally.named_figures():
        facts.add_row(name, Text(value, style="bold"))
    last = int(passed_s)
    seconds = [tally.by_second[second] for second in range(max(0, last - SECONDS_SHOWN), last)]
    starts = Text(f"starts per second  {draw_sparkline(seconds)}", style="cyan")
    parts: list[RenderableType] = [browser, "", types, "", facts, "", starts]
    if tally.recent_ms:
        parts += ["", Text("\n".join(draw_histogram(list(tally.recent_ms))), style="green")]
    title = f"a shop's timeouts: {min(passed_s, total_s):.0f} of {total_s:.0f} s"
    return Panel(Group(*parts), title=title, border_style="blue")


def _lateness_percentiles(late_ms: Sequence[float]) -> str:
    return f"p50 {percentile(late_ms, 50):.1f} ms, p99 {percentile(late_ms, 99):.1f} ms"


def summarize_check(report: Report) -> list[str]:
    """The check as text; the last line is the verdict."""
    status, late, broken = report.by_status, report.lateness, report.problems_by_kind
    facts: list[tuple[str, int, str]] = [
        ("scheduled", report.scheduled, "schedule() had returned"),
        ("handler starts", report.starts, "from the worker's journal"),
        ("retries", report.retries, "starts after a failed attempt"),
        ("rescheduled", report.rescheduled, "buyers who asked for more time"),
        ("done", status["done"], "rows with status 2"),
        ("cancelled", status["cancelled"], "rows with status 3: paid in time"),
        ("dead", status["dead"], "rows with status 4: attempts used up, with a dead letter"),
        ("paid too late", report.cancelled_too_late, "cancel() said that the handler was faster"),
    ]
    promises: list[tuple[str, int, str]] = [
        ("lost", broken[Kind.LOST], MEANING[Kind.LOST]),
        ("early", broken[Kind.EARLY], MEANING[Kind.EARLY]),
        ("at the old time", broken[Kind.OLD_TIME], MEANING[Kind.OLD_TIME]),
        ("fired after cancel", broken[Kind.AFTER_CANCEL], MEANING[Kind.AFTER_CANCEL]),
        ("duplicates", report.duplicates.total(), "started again without a failure before"),
        ("stale writes", broken[Kind.STALE], MEANING[Kind.STALE]),
        ("wrong endings", broken[Kind.WRONG], MEANING[Kind.WRONG]),
    ]
    lines = ["What happened (by both journals, and by the databases' rows at the end)"]
    lines += [f"  {name:<20} {n:>7,}  {meaning}" for name, n, meaning in facts]
    lines += ["", "What must not happen"]
    lines += [f"  {name:<20} {n:>7,}  {meaning}" for name, n, meaning in promises]
    if late.count:
        lines += [
            "",
            f"Lateness of first starts: {_lateness_spread(late)}",
            *draw_bars(late.counts(LATENESS_EDGES_MS)),
        ]
    lines += ["", *(str(problem) for problem in report.problems[:PROBLEMS_SHOWN])]
    more = broken.total() - PROBLEMS_SHOWN
    if more > 0:
        lines.append(f"… and {more:,} more")
    lines.append(HELD if report.holds else BROKEN)
    return lines


def _lateness_spread(late: Lateness) -> str:
    percentiles = f"p50 {late.percentile(50):.1f} ms, p99 {late.percentile(99):.1f} ms"
    return f"{percentiles}, max {late.max_ms:.1f} ms, min {late.min_ms:.1f} ms"


def print_summary(report: Report, console: Console) -> None:
    """Prints the summary; the verdict in its colour."""
    *lines, last = summarize_check(report)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    style = "bold green" if report.holds else "bold red"
    console.print(last, style=style, highlight=False, markup=False, soft_wrap=True)
