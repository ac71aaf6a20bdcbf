"""The HTML report of a run: one file that needs no other file. Jinja2 is imported only here.

The verdict comes first, then the advice, then the rest. The template escapes all texts; it draws the charts
as SVG.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from toc.domain.disagreements import UNCLAIMABLE, Disagreement
from toc.domain.times import datetime_of
from toc.errors import TocError
from toc.reconcile.delta_tables import DELTA_ERRORS, describe_delta_error
from toc.reconcile.findings import Finding, ReconcileResult, RepairResult, RunVerdict
from toc.reconcile.report import report_texts
from toc.reconcile.report.chart_scale import scale_of_bars, scale_of_columns
from toc.reconcile.report.summary import (
    NO_TIME,
    REST,
    SUMMARY,
    biz_type_label,
    choose_examples,
    database_of_shard,
    earlier_run_name,
    limit_outcome_rows,
    repairs_by_finding,
)
from toc.reconcile.report.table_charts import (
    TableChart,
    count_failed_checks,
    read_table_charts,
)

GROUPS_SHOWN = 30  # types, shards or reasons in a table; all others are one line
BARS_SHOWN = 12
HOURS_AROUND = 24  # hours in the chart before the beginning of the run, and as many after it

_TITLES = {
    RunVerdict.AGREED: "agreed",
    RunVerdict.LEFT: "disagreed",
    RunVerdict.UNABLE: "incomplete",
    RunVerdict.REPAIRED: "repaired",
}


def render_html_page(
    outcome: ReconcileResult,
    summary: Mapping[str, Any],
    notes: Sequence[str],
    tables: TableFigures | None = None,
) -> str:
    """The page as HTML. `summary`: facts of this run; `notes`: on earlier reports that could not be read.

    tables: charts of the analysts' tables; None: there are no tables.
    """
    environment = Environment(
        loader=PackageLoader("toc.reconcile.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": "{:,}".format,
        "moment": report_texts.format_time,
        "duration": report_texts.format_duration,
        "many": report_texts.count_with_noun,
        "clean": report_texts.clean_text,
        "kinds": report_texts.format_kind_counts,
        "bar_scale": scale_of_bars,
        "column_scale": scale_of_columns,
    }
    text, commands = report_texts.next_steps(outcome)
    page = environment.get_template("report.html.j2").render(
        run=summary,
        outcome=outcome,
        title=_TITLES[outcome.verdict],
        advice=text,
        commands=commands,
        failures=list(_failure_rows(summary)),
        taken_up=[
            (
                row["compared"],
                report_texts.clean_text(report_texts.format_shard_ranges(row["shards"])),
            )
            for row in summary["taken_up"]
        ],
        unexplained=outcome.shards - outcome.compared - len({f.shard for f in outcome.failures}),
        kinds=list(_kind_rows(summary)),
        unclaimable=[
            row["name"] for row in _kind_rows(summary) if row["left"] and row["name"] in UNCLAIMABLE
        ],
        tables=tables,
        before=summary["before"],
        earlier=earlier_run_name(summary),
        notes=notes,
        charts=list(_chart_data(outcome, summary)) if outcome.findings else [],
        examples=_example_tables(outcome),
        reasons=limit_outcome_rows(summary["repairs"], GROUPS_SHOWN),
        counts=[(text, outcome.counts[name]) for name, text in report_texts.COUNTS.items()],
        seconds=_time_shares(outcome.seconds, report_texts.SECONDS, summary["total_seconds"]),
        work=_time_shares(outcome.work, report_texts.WORK),
    )
    return "\n".join(line for line in page.splitlines() if line.strip()) + "\n"


_TABLE_ERRORS: tuple[type[Exception], ...] = (TocError, *DELTA_ERRORS)


class TableFigures(NamedTuple):
    """What the page shows of the analysts' tables. error: why they could not be read; "": they were."""

    charts: Sequence[TableChart]
    failed_checks: int
    error: str = ""


def read_table_figures(root: str) -> TableFigures | None:
    """Reads what the page shows of the tables in a folder; None: there are none. Does not raise."""
    try:
        charts = read_table_charts(root)
        return TableFigures(charts, count_failed_checks(root)) if charts else None
    except _TABLE_ERRORS as error:
        return TableFigures((), 0, report_texts.clean_text(describe_delta_error(error)))


# ---- tables


def _failure_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, int, str]]:
    """(database, shards, number of shards, reason)"""
    rows = summary["failures"]
    for row in rows[:GROUPS_SHOWN]:
        shards = row["shards"]
        yield (
            str(row["database"]),
            report_texts.clean_text(report_texts.format_shard_ranges(shards)),
            len(shards),
            row["reason"],
        )
    rest = {shard for row in rows[GROUPS_SHOWN:] for shard in row["shards"]}
    if rest:
        yield (
            "-",
            report_texts.clean_text(report_texts.format_shard_ranges(rest)),
            len(rest),
            f"other reasons: see {SUMMARY}",
        )


def _kind_rows(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for kind in Disagreement:
        now, repaired = summary["found"].get(kind, 0), summary["repaired"].get(kind, 0)
        then = summary["before"]["found"][kind] if summary["before"] else None
        if now or then:
            yield {
                "name": kind.value,
                "words": report_texts.KINDS[kind],
                "now": now,
                "before": then,
                "repaired": repaired,
                "left": now - repaired,
                "oldest": first
                if (first := summary["oldest"].get(kind, "")) < summary["began"]
                else "",
            }


def _example_tables(outcome: ReconcileResult) -> list[dict[str, Any]]:
    repairs = repairs_by_finding(outcome)
    return [
        {
            "kind": kind.value,
            "number": outcome.found[kind],
            "rows": [_example_row(outcome, finding, repairs.get(finding)) for finding in found],
        }
        for kind, found in choose_examples(outcome).items()
    ]


def _example_row(
    outcome: ReconcileResult, finding: Finding, result: RepairResult | None
) -> dict[str, str]:
    reminder = []
    if finding.armed_ms is not None:
        reminder.append(report_texts.format_time(finding.armed_ms))
    if finding.out_ms is not None:
        reminder.append(f"out with a worker until {report_texts.format_time(finding.out_ms)}")
    repair = "-"
    if result is not None:
        repair = ("repaired: " if result.done else "not repaired: ") + report_texts.clean_text(
            result.how
        )
    return {
        # MARK_AHEAD is about a slot, not a job; and a member that is no id cannot be explained.
        "command": f"toc explain {finding.job_id}" if finding.job_id > 0 else "",
        "type": biz_type_label(finding),
        "status": report_texts.status_name(finding.status) or "-",
        "due": report_texts.format_time(finding.due_ms),
        "reminder": "; ".join(reminder) or "-",
        "slot": f"{report_texts.clean_text(finding.topic, report_texts.NAME_CHARS_MAX)} {finding.slot}",
        "shard": f"{finding.shard} (database {database_of_shard(outcome, finding.shard)})",
        "repair": repair,
    }


def _time_shares(
    seconds: Mapping[str, float], names: Mapping[str, str], total_s: float = 0.0
) -> list[tuple[str, float, float]]:
    """(name in words, seconds, percent of the total), in the order of the names."""
    total_s = max(total_s, sum(seconds.values())) or 1.0
    return [
        (text, seconds[name], 100 * seconds[name] / total_s)
        for name, text in names.items()
        if name in seconds
    ]


# ---- charts


def _chart_data(outcome: ReconcileResult, summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The data of each chart. `rows` under `head`: figures as a table; `bars` or `columns`: the drawing."""
    yield {
        "name": "by-type",
        "title": "Disagreements by type",
        "head": "type",
        "rows": _merge_remaining_groups(summary["by_type"]),
        "bars": [
            (name, number, None)
            for name, number in _merge_remaining_groups(summary["by_type"], BARS_SHOWN)
        ],
    }
    shards = max(outcome.shards, *(int(shard) + 1 for shard in summary["by_shard"]))
    yield {
        "name": "by-shard",
        "title": "Disagreements by shard",
        "head": "shard",
        "rows": _merge_remaining_groups(summary["by_shard"]),
        "columns": [summary["by_shard"].get(str(shard), 0) for shard in range(shards)],
        "labels": [(0, "0"), (shards - 1, str(shards - 1))],
    }
    labels, numbers = hour_counts_around(summary["by_hour"], outcome.began_ms)
    by_size = sorted(summary["by_hour"].items(), key=lambda item: (-item[1], item[0]))
    yield {
        "name": "by-hour",
        "title": "Disagreements by hour of their due time, "
        f"{HOURS_AROUND} hours before and after the run",
        "head": "hour (UTC)",
        "rows": sorted(
            _merge_remaining_groups(dict(by_size)), key=lambda row: (row[0].startswith("("), row[0])
        ),
        "columns": numbers,
        "labels": [(place, label) for place, label in enumerate(labels) if label],
    }


def _merge_remaining_groups(
    counts: Mapping[str, int], limit: int = GROUPS_SHOWN
) -> list[tuple[str, int]]:
    """The first groups; all remaining groups as one."""
    rows = list(counts.items())
    if len(rows) <= limit:
        return rows
    rest = rows[limit - 1 :]
    return [*rows[: limit - 1], (f"({len(rest):,} others)", sum(number for _, number in rest))]


def hour_counts_around(by_hour: Mapping[str, int], began_ms: int) -> tuple[list[str], list[int]]:
    """Labels and counts of the hours around the beginning of the run; the first and last: all other hours."""
    middle = datetime_of(began_ms).replace(minute=0, second=0, microsecond=0)
    window = [middle + timedelta(hours=h) for h in range(-HOURS_AROUND, HOURS_AROUND + 1)]
    keys = [f"{hour:%Y-%m-%dT%H:%MZ}" for hour in window]
    dated = {key: number for key, number in by_hour.items() if key not in (NO_TIME, REST)}
    labels = [_hour_label(hour) for hour in window]
    labels[:4] = labels[-4:] = [""] * 4  # room for the labels of the ends
    earlier = sum(number for key, number in dated.items() if key < keys[0])
    later = sum(number for key, number in dated.items() if key > keys[-1])
    hour_counts = [dated.get(key, 0) for key in keys]
    return ["earlier", "", *labels, "", "later"], [earlier, 0, *hour_counts, 0, later]


def _hour_label(hour: datetime) -> str:
    """The date at midnight, the hour at noon."""
    return f"{hour:%m-%d}" if hour.hour == 0 else "12:00" if hour.hour == 12 else ""
