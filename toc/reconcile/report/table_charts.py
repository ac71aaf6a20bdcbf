"""The charts of the report that are drawn from the analysts' tables: what the last days and nights were like.

Reads a few columns of the newest day, a batch at a time: only sums are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from toc.reconcile.delta_tables import DAY, find_table, list_days
from toc.reconcile.report.report_texts import NAME_CHARS_MAX, clean_text, format_duration
from toc.reconcile.tables.table_checks import GAP_DAYS
from toc.reconcile.tables.table_specs import (
    BUCKETS,
    CHECKS,
    COHORTS,
    FORECAST,
    LATENESS,
    RUNS,
    VOLUME,
)
from toc.store.job_counts import BOUNDS_MS

TYPES_SHOWN = 12
COHORT_DAYS, NIGHTS_SHOWN = 7, 10
ENDS = ("scheduled", "done", "cancelled", "dead")
OUTCOMES = ("done", "cancelled", "dead", "live")
_MERGED_AT = 100_000


@dataclass(frozen=True, slots=True)
class TableChart:
    """A chart, and its figures as a table. Without bars and columns: only the table.

    bars: (label, number, text). columns: numbers. labels: (place, text), below the columns.
    limit: a line across the columns, and its name; None: there is none. texts: how many of the last columns
    of the table are no numbers.
    """

    name: str
    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    bars: Sequence[tuple[str, float, str]] = ()
    columns: Sequence[float] = ()
    labels: Sequence[tuple[int, str]] = ()
    limit: tuple[float, str] | None = None
    texts: int = 0


def read_table_charts(root: str) -> list[TableChart]:
    """The charts of the tables in a folder; none if there are no tables. Raises DELTA_ERRORS."""
    return [
        chart
        for read in (_lateness_charts, _volume_charts, _forecast_charts, _cohorts, _runs)
        for chart in read(root)
    ]


def count_failed_checks(root: str) -> int:
    """Failed checks of the last days of the table `checks`."""
    table = find_table(root, CHECKS.name)
    newest = _newest_day(table)
    if table is None or newest is None:
        return 0
    failed = (pc.field(DAY) > newest - timedelta(days=GAP_DAYS)) & ~pc.field("is_good")
    return int(table.to_pyarrow_dataset().count_rows(filter=failed))


def _newest_day(table: DeltaTable | None) -> date | None:
    days = [] if table is None else list_days(table)
    return days[-1] if days else None


def _add_up(table: DeltaTable, keys: list[str], sums: Sequence[str], wanted: Any) -> pa.Table:
    """The sums of some columns by keys, of the rows that are wanted; sorted by the keys."""
    found: list[pa.Table] = []
    columns = [*keys, *sums]
    for batch in table.to_pyarrow_dataset().to_batches(columns=columns, filter=wanted):
        found.append(_sum_by(pa.Table.from_batches([batch]), keys, sums))
        if sum(part.num_rows for part in found) > _MERGED_AT:
            found = [_sum_by(pa.concat_tables(found), keys, sums)]
    if not found:
        return pa.table({name: [] for name in columns})
    merged = _sum_by(pa.concat_tables(found), keys, sums)
    return merged.sort_by([(key, "ascending") for key in keys])


def _sum_by(table: pa.Table, keys: list[str], sums: Sequence[str]) -> pa.Table:
    summed = table.group_by(keys).aggregate([(name, "sum") for name in sums])
    return summed.rename_columns([name.removesuffix("_sum") for name in summed.column_names])


# ---- lateness


def _lateness_charts(root: str) -> Iterator[TableChart]:
    table = find_table(root, LATENESS.name)
    day = _newest_day(table)
    if table is None or day is None:
        return
    rows = _add_up(table, ["biz_type"], ["measured", *BUCKETS], pc.field(DAY) == day).to_pylist()
    rows = [row for row in rows if row["measured"]]
    if not rows:
        return
    by_type = sorted(rows, key=lambda row: (-_percentile(row, 990), str(row["biz_type"])))
    yield TableChart(
        "late-types",
        f"99 % of the jobs of a type were at most so late, {day}",
        ("type", "jobs", "50 %", "99 %"),
        [
            (_type_name(row), f"{row['measured']:,}", *(_late_text(row, n) for n in (500, 990)))
            for row in by_type
        ],
        bars=[
            (_type_name(row), _percentile(row, 990), _late_text(row, 990))
            for row in by_type[:TYPES_SHOWN]
        ],
    )
    every = {name: sum(row[name] for row in rows) for name in BUCKETS}
    names = [f"up to {_ms_text(bound)}" for bound in BOUNDS_MS] + ["later"]
    yield TableChart(
        "late-jobs",
        f"Jobs by lateness, {day}",
        ("lateness", "jobs"),
        [(name, f"{number:,}") for name, number in zip(names, every.values(), strict=True)],
        columns=list(every.values()),
        labels=[(0, "1 ms"), (6, "100 ms"), (12, "10 s"), (18, "17 min"), (21, "later")],
    )


def _type_name(row: Mapping[str, Any]) -> str:
    name = row["biz_type"]
    return "(no name)" if name is None else clean_text(name, NAME_CHARS_MAX)


def _percentile(row: Mapping[str, Any], per_mille: int) -> int:
    """The upper bound of the bucket, in ms. Above the last bound: twice that."""
    rank, jobs = (row["measured"] * per_mille + 999) // 1000, 0
    for name, bound in zip(BUCKETS, BOUNDS_MS, strict=False):
        jobs += row[name]
        if jobs >= rank:
            return bound
    return 2 * BOUNDS_MS[-1]


def _late_text(row: Mapping[str, Any], per_mille: int) -> str:
    ms = _percentile(row, per_mille)
    return f"over {_ms_text(BOUNDS_MS[-1])}" if ms > BOUNDS_MS[-1] else _ms_text(ms)


def _ms_text(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else format_duration(ms / 1000).replace(".00 s", " s")


# ---- volume


def _volume_charts(root: str) -> Iterator[TableChart]:
    table = find_table(root, VOLUME.name)
    day = _newest_day(table)
    if table is None or day is None:
        return
    found = {
        row["hour"].hour: row
        for row in _add_up(table, ["hour"], ENDS, pc.field(DAY) == day).to_pylist()
    }
    for name, title in (("scheduled", "Jobs scheduled"), ("done", "Jobs done")):
        yield TableChart(
            f"volume-{name}",
            f"{title} per hour, {day}",
            ("hour (UTC)", *ENDS),
            [
                (f"{hour:02d}:00", *(f"{row[end]:,}" for end in ENDS))
                for hour, row in sorted(found.items())
            ],
            columns=[found[hour][name] if hour in found else 0 for hour in range(24)],
            labels=[(hour, f"{hour:02d}:00") for hour in (0, 6, 12, 18)],
        )


# ---- forecast


def _forecast_charts(root: str) -> Iterator[TableChart]:
    table = find_table(root, FORECAST.name)
    day = _newest_day(table)
    if table is None or day is None:
        return
    keys, of_day = ["database", "span", "due_from"], pc.field(DAY) == day
    rows = _add_up(table, keys, ["jobs", "done_max"], of_day).to_pylist()
    for span, title, step, number, every in (
        ("minute", "Live jobs that come due per minute, in a day", timedelta(minutes=1), 1440, 360),
        ("hour", "Live jobs that come due per hour, in 30 days", timedelta(hours=1), 720, 168),
    ):
        found = [row for row in rows if row["span"] == span]
        if not found:
            continue
        jobs: dict[datetime, int] = {}
        limits: dict[int, float] = {}
        for row in found:
            jobs[row["due_from"]] = jobs.get(row["due_from"], 0) + row["jobs"]
            limits[row["database"]] = row["done_max"] or 0.0
        first = min(jobs)
        columns = [jobs.get(first + n * step, 0) for n in range(number)]
        text = "%H:%M" if span == "minute" else "%m-%d"
        largest = sorted(jobs.items(), key=lambda item: (-item[1], item[0]))[:TYPES_SHOWN]
        limit = sum(limits.values())
        yield TableChart(
            f"due-{span}",
            f"{title}, from {first:%Y-%m-%d %H:%M}",
            (f"{span} (UTC)", "jobs, the most first"),
            [(f"{moment:%Y-%m-%d %H:%M}", f"{count:,}") for moment, count in largest],
            columns=columns,
            labels=[(n, f"{first + n * step:{text}}") for n in range(0, number, every)],
            limit=(limit, "the most done lately") if limit else None,
        )


# ---- cohorts and runs: tables


def _cohorts(root: str) -> Iterator[TableChart]:
    table = find_table(root, COHORTS.name)
    day = _newest_day(table)
    if table is None or day is None:
        return
    since = pc.field(DAY) > day - timedelta(days=COHORT_DAYS)
    days: dict[date, dict[str, int]] = {}
    for row in _add_up(table, [DAY, "outcome"], ["jobs"], since).to_pylist():
        days.setdefault(row[DAY], {})[row["outcome"]] = row["jobs"]
    yield TableChart(
        "cohorts",
        "What became of the jobs of each day",
        ("created on", "jobs", *OUTCOMES),
        [
            (str(one), f"{sum(jobs.values()):,}", *(f"{jobs.get(end, 0):,}" for end in OUTCOMES))
            for one, jobs in sorted(days.items(), reverse=True)
        ],
    )


def _runs(root: str) -> Iterator[TableChart]:
    table = find_table(root, RUNS.name)
    if table is None:
        return
    days = list_days(table)[-NIGHTS_SHOWN:]
    if not days:
        return
    wanted = pc.field(DAY) >= days[0]
    columns = ["run_id", "began_at", "part", "phase", "seconds", "code"]
    rows = table.to_pyarrow_dataset().to_table(columns=columns, filter=wanted).to_pylist()
    nights: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["phase"] == "whole":
            nights.setdefault(row["run_id"], []).append(row)
    newest = sorted(nights.items(), reverse=True)[:NIGHTS_SHOWN]
    yield TableChart(
        "nights",
        "The last nightly runs",
        ("began (UTC)", "exit code", "seconds", "parts"),
        [_night_row(parts) for _, parts in newest],
        texts=1,
    )


def _night_row(parts: Sequence[Mapping[str, Any]]) -> tuple[str, str, str, str]:
    night = next((part for part in parts if part["part"] == "night"), parts[0])
    texts = [
        f"{clean_text(part['part'], 20)} {format_duration(part['seconds'])}"
        for part in parts
        if part["part"] != "night"
    ]
    began = f"{night['began_at']:%Y-%m-%d %H:%M}"
    return began, str(night["code"]), f"{night['seconds']:,.1f}", ", ".join(texts)
