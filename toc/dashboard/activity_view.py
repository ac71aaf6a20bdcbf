"""What the page Now tells of the last hour: rates, lateness by stage, a table by type, and two charts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from toc.dashboard.line_chart import ChartLine, LineChart
from toc.dashboard.texts import Texts
from toc.domain.bucket_quantile import quantile_of_buckets
from toc.domain.pauses import ALL, PauseInfo, Phase, biz_type_of_target
from toc.runtime.metrics import LATENESS_BUCKETS_S
from toc.timer.activity import MINUTE_MS, MinuteActivity, TypeActivity, sum_stage, sum_types

HISTORY_MINUTES = 61  # an hour, and the minute that is running
RATE_MINUTES = 5
TABLE_MINUTES = 10
TYPES_SHOWN_MAX = 100
MARKS_MAX = 30
STAGES = (
    ("lateness", "stage_lateness"),
    ("timer", "stage_timer"),
    ("database", "stage_database"),
    ("queue", "stage_queue"),
    ("handler", "stage_handler"),
)


@dataclass(frozen=True, slots=True)
class Rates:
    """Jobs a second."""

    scheduled: float
    ended: float
    failed: float
    dead: float
    cancelled: float


@dataclass(frozen=True, slots=True)
class TypeRates:
    """A type in the last minutes; dead: its jobs that died in the hour."""

    name: str
    rates: Rates
    dead: int
    is_paused: bool


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage in the last minutes. text: the name of its text. p50_s, p99_s: None: no job passed it.

    jobs: of all types and tenants; None: not for this person.
    """

    text: str
    jobs: int | None
    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class MinuteRow:
    """A minute of the charts. rates None: nothing is known of it."""

    start_ms: int
    rates: Rates | None
    p50_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a time, in words."""

    at_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class ActivityView:
    """last, recent: the rates of the last full minute, and of the last RATE_MINUTES; None: not known."""

    last: Rates | None
    recent: Rates | None
    stages: Sequence[StageRow]
    types: Sequence[TypeRates]
    minutes: Sequence[MinuteRow]
    marks: Sequence[Mark]
    rates_chart: LineChart
    lateness_chart: LineChart

    @property
    def newest_minutes(self) -> Sequence[MinuteRow]:
        """For the tables, the newest first."""
        return self.minutes[: -TABLE_MINUTES - 1 : -1]


def make_view(
    activity: Sequence[MinuteActivity],
    pauses: Sequence[PauseInfo],
    may_read: Callable[[str | None], bool],
    t: Texts,
) -> ActivityView:
    """activity: the last minutes, of which the last one is running. may_read(None): all types."""
    full = [_only_readable(each, may_read) for each in activity[:-1]]
    recent = [each for each in full[-RATE_MINUTES:] if each.reports]
    rows = [_minute_row(each) for each in full]
    marks = list(_make_marks(full, pauses, may_read, t))[-MARKS_MAX:]
    times_s = [(row.start_ms + MINUTE_MS // 2) / 1000 for row in rows]
    marks_s = [(mark.at_ms / 1000, mark.text) for mark in marks]
    rates = [row.rates for row in rows]
    return ActivityView(
        last=_rates(full[-1:]),
        recent=_rates(recent),
        stages=[_stage_row(recent, stage, text, may_read) for stage, text in STAGES],
        types=_type_rows(full, recent, pauses, may_read),
        minutes=rows,
        marks=marks,
        rates_chart=LineChart(
            times_s,
            [
                _rates_line("s1", t["per_s_in"], rates, lambda it: it.scheduled),
                _rates_line("s2", t["per_s_out"], rates, lambda it: it.ended),
                _rates_line("s3", t["per_s_cancelled"], rates, lambda it: it.cancelled),
            ],
            marks_s,
        ),
        lateness_chart=LineChart(
            times_s,
            [
                ChartLine("s1", "p50", [_of_bounds(row.p50_s) for row in rows]),
                ChartLine("s2", "p99", [_of_bounds(row.p99_s) for row in rows]),
            ],
            marks_s,
            is_logarithmic=True,
        ),
    )  # fmt: skip


def _only_readable(
    minute: MinuteActivity, may_read: Callable[[str | None], bool]
) -> MinuteActivity:
    """Without the types that the person may not read; those without a name are of all types."""
    types = {name: jobs for name, jobs in minute.types.items() if may_read(name or None)}
    return MinuteActivity(minute.minute, minute.reports, types, minute.stages, minute.marks)


def _rates(minutes: Sequence[MinuteActivity]) -> Rates | None:
    """The rates of all types, over the minutes of which something is known."""
    known = [each for each in minutes if each.reports]
    if not known:
        return None
    return _rates_of([jobs for each in known for jobs in each.types.values()], len(known))


def _rates_of(counted: Sequence[TypeActivity], minutes: int) -> Rates:
    seconds = 60 * minutes
    return Rates(
        sum([jobs.scheduled for jobs in counted]) / seconds,
        sum([jobs.ended for jobs in counted]) / seconds,
        sum([jobs.failed for jobs in counted]) / seconds,
        sum([jobs.dead for jobs in counted]) / seconds,
        sum([jobs.cancelled for jobs in counted]) / seconds,
    )


def _quantiles(
    minutes: Sequence[MinuteActivity], stage: str
) -> tuple[int, float | None, float | None]:
    counts = sum_stage(minutes, stage)
    p50_s, p99_s = (quantile_of_buckets(LATENESS_BUCKETS_S, counts, share) for share in (0.5, 0.99))
    return sum(counts), p50_s, p99_s


def _stage_row(
    minutes: Sequence[MinuteActivity],
    stage: str,
    text: str,
    may_read: Callable[[str | None], bool],
) -> StageRow:
    jobs, p50_s, p99_s = _quantiles(minutes, stage)
    return StageRow(text, jobs if may_read(None) else None, p50_s, p99_s)


def _minute_row(minute: MinuteActivity) -> MinuteRow:
    _, p50_s, p99_s = _quantiles([minute], "lateness")
    return MinuteRow(minute.start_ms, _rates([minute]), p50_s, p99_s)


def _type_rows(
    full: Sequence[MinuteActivity],
    recent: Sequence[MinuteActivity],
    pauses: Sequence[PauseInfo],
    may_read: Callable[[str | None], bool],
) -> list[TypeRates]:
    """The types with most jobs in the hour, and those that are paused."""
    hour, lately, nothing = sum_types(full), sum_types(recent), TypeActivity()
    paused_types = {
        name
        for pause in pauses
        if pause.state == Phase.PAUSED.value
        and (name := biz_type_of_target(pause.target)) is not None
        and may_read(name)
    }
    all_paused = any(it.target == ALL and it.state == Phase.PAUSED.value for it in pauses)
    names = sorted(
        {*hour, *paused_types} - {""},
        key=lambda name: (
            name not in paused_types,
            -hour.get(name, nothing).scheduled - hour.get(name, nothing).ended,
            name,
        ),
    )
    return [
        TypeRates(
            name,
            _rates_of([lately.get(name, nothing)], max(1, len(recent))),
            hour.get(name, nothing).dead,
            all_paused or name in paused_types,
        )
        for name in names[:TYPES_SHOWN_MAX]
    ]


def _make_marks(
    full: Sequence[MinuteActivity],
    pauses: Sequence[PauseInfo],
    may_read: Callable[[str | None], bool],
    t: Texts,
) -> Iterator[Mark]:
    """What happened in these minutes, in order. Several nodes report the same: the first one counts."""
    found: list[Mark] = []
    before: list[str] = []
    words = {"start": t["mark_start"], "away": t["mark_away"]}
    pause_word = t["mark_pause"]
    for minute in full:
        for mark in minute.marks:
            kind, _, rest = mark.partition(":")
            if kind in words and mark not in before:
                found.append(Mark(minute.start_ms, f"{words[kind]} {rest}"))
        before = minute.marks
    since_ms = full[0].start_ms if full else 0
    for pause in pauses:
        name = biz_type_of_target(pause.target)
        if pause.from_ms >= since_ms and may_read(name):
            found.append(Mark(pause.from_ms, f"{pause_word} {name or pause.target}"))
    yield from sorted(found, key=lambda mark: mark.at_ms)


def _rates_line(
    style: str, name: str, rates: Sequence[Rates | None], pick: Callable[[Rates], float]
) -> ChartLine:
    return ChartLine(style, name, [None if it is None else round(pick(it), 3) for it in rates])


def _of_bounds(seconds: float | None) -> float | None:
    """For a chart: a time above all bounds is drawn at the last bound."""
    return None if seconds is None else round(min(seconds, LATENESS_BUCKETS_S[-1]), 6)
