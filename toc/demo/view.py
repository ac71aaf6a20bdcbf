"""What a person sees: a live panel in a terminal, plain lines elsewhere, the summary at the end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from toc.demo.audit import Verdict
from toc.demo.journal import CancelAnswered, Ended, Entry, MoveAnswered, Scheduled, Started
from toc.demo.story import ABOUT, MAX_ATTEMPTS
from toc.domain.job import Status
from toc.trial.figures import histogram, percentile, sparkline

RECENT = 500  # starts that "now" looks at
SECONDS_SHOWN = 60
PROBLEMS_SHOWN = 20
BROKEN = "BROKEN: toc did not keep its promises"
HELD = "Every promise held: nothing lost, early, double, or fired after a cancel"


@dataclass(slots=True)
class Tally:
    """Running figures from the journals, for the view only: the audit does not look at them."""

    started_ms: float
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

    def add(self, entries: Iterable[Entry]) -> None:
        for entry in sorted(entries, key=lambda entry: entry.at_ms):
            match entry:
                case Scheduled():
                    self.scheduled[entry.biz_type] += 1
                    self.action_ms[entry.job_id] = entry.action_ms
                    self.types[entry.job_id] = entry.biz_type
                case CancelAnswered():
                    self.cancelled += entry.answer == "cancelled"
                case MoveAnswered():
                    if entry.answer == "rescheduled":
                        self.moved += 1
                        self.action_ms[entry.job_id] = entry.action_ms
                case Started():
                    self._start(entry)
                case Ended():
                    biz_type = self.types.get(entry.job_id, "")
                    if not entry.failed:
                        self.done[biz_type] += 1
                    elif entry.attempt >= MAX_ATTEMPTS.get(biz_type, entry.attempt + 1):
                        self.dead += 1

    def _start(self, entry: Started) -> None:
        self.starts += 1
        self.by_second[int((entry.at_ms - self.started_ms) // 1000)] += 1
        if entry.attempt > 1:
            self.retries += 1
        elif entry.job_id in self.action_ms:
            self.recent_ms.append(entry.at_ms - self.action_ms[entry.job_id])

    @property
    def lateness(self) -> str:
        if not self.recent_ms:
            return "-"
        return _lateness(self.recent_ms)

    def facts(self) -> list[tuple[str, str]]:
        """The figures of the moment, by name."""
        return [
            ("scheduled", f"{self.scheduled.total():,}"),
            ("paid in time (cancelled)", f"{self.cancelled:,}"),
            ("more time (rescheduled)", f"{self.moved:,}"),
            ("handler starts", f"{self.starts:,}"),
            ("of these retries", f"{self.retries:,}"),
            ("done", f"{self.done.total():,}"),
            ("dead", f"{self.dead:,}"),
            ("lateness now", self.lateness),
        ]

    def line(self, passed_s: float) -> str:
        """All of it on one line, where there is no terminal."""
        return f"{passed_s:4.0f} s  " + ", ".join(f"{name} {value}" for name, value in self.facts())


def panel(tally: Tally, passed_s: float, total_s: float) -> RenderableType:
    """The live view of one moment."""
    types = Table.grid(padding=(0, 2))
    for biz_type, about in ABOUT.items():
        types.add_row(
            Text(biz_type, style="bold"),
            f"{tally.scheduled[biz_type]:,}",
            f"done {tally.done[biz_type]:,}",
            Text(about, style="dim"),
        )
    facts = Table.grid(padding=(0, 2))
    for name, value in tally.facts():
        facts.add_row(name, Text(value, style="bold"))
    last = int(passed_s)
    seconds = [tally.by_second[second] for second in range(max(0, last - SECONDS_SHOWN), last)]
    starts = Text(f"starts per second  {sparkline(seconds)}", style="cyan")
    parts: list[RenderableType] = [types, "", facts, "", starts]
    if tally.recent_ms:
        parts += ["", Text("\n".join(histogram(list(tally.recent_ms))), style="green")]
    title = f"a shop's timeouts: {min(passed_s, total_s):.0f} of {total_s:.0f} s"
    return Panel(Group(*parts), title=title, border_style="blue")


def _lateness(late_ms: Sequence[float]) -> str:
    return f"p50 {percentile(late_ms, 50):.1f} ms, p99 {percentile(late_ms, 99):.1f} ms"


def summary(verdict: Verdict) -> list[str]:
    """The audit as text; the last line is the verdict."""
    status = verdict.by_status
    late = verdict.late_ms
    facts: list[tuple[str, int, str]] = [
        ("scheduled", verdict.scheduled, "schedule() had returned"),
        ("handler starts", verdict.starts, "from the worker's journal"),
        ("retries", verdict.retries, "starts after a failed attempt"),
        ("rescheduled", verdict.moved, "buyers who asked for more time"),
        ("done", status[Status.DONE], "rows with status 2"),
        ("cancelled", status[Status.CANCELLED], "rows with status 3: paid in time"),
        ("dead", status[Status.DEAD], "rows with status 4: attempts used up, with a dead letter"),
        ("paid too late", verdict.paid_too_late, "cancel() said that the handler was faster"),
    ]
    promises: list[tuple[str, int, str]] = [
        ("lost", len(verdict.lost), "scheduled, and not ended as done, cancelled or dead"),
        ("early", len(verdict.early), "started before the action_time in force"),
        (
            "fired after cancel",
            len(verdict.after_cancel),
            'started after cancel() had answered "cancelled"',
        ),
        ("duplicates", len(verdict.duplicates), "started again without a failure before"),
        ("wrong endings", len(verdict.wrong), "answers, journals and rows that disagree"),
    ]
    lines = ["What happened (by both journals, and by the databases' rows at the end)"]
    lines += [f"  {name:<20} {n:>7,}  {meaning}" for name, n, meaning in facts]
    lines += ["", "What must not happen"]
    lines += [f"  {name:<20} {n:>7,}  {meaning}" for name, n, meaning in promises]
    if late:
        extremes = f"max {max(late):.1f} ms, min {min(late):.1f} ms"
        lines += [
            "",
            f"Lateness of first starts: {_lateness(late)}, {extremes}",
            *histogram(late),
        ]
    problems = verdict.problems
    lines += ["", *problems[:PROBLEMS_SHOWN]]
    if len(problems) > PROBLEMS_SHOWN:
        lines.append(f"… and {len(problems) - PROBLEMS_SHOWN:,} more")
    lines.append(BROKEN if problems else HELD)
    return lines


def show(verdict: Verdict, console: Console) -> None:
    """Prints the summary; the verdict in its colour."""
    *lines, last = summary(verdict)
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    style = "bold green" if verdict.holds else "bold red"
    console.print(last, style=style, highlight=False, markup=False, soft_wrap=True)
