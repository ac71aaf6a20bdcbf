"""The page of a run: one HTML file that needs nothing else. Where Jinja2 is imported.

It is read at night and on phones: the verdict first, then what to do, then the rest. All texts of
others are escaped by the template; only the charts, made here, are set in as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from toc.domain.disagreements import Disagreement
from toc.domain.times import datetime_of
from toc.reconcile.findings import Finding, ReconcileResult, RepairResult, RunVerdict
from toc.reconcile.report import charts, words
from toc.reconcile.report.summary import (
    NO_TIME,
    REST,
    SUMMARY,
    Before,
    database_of,
    earlier_name,
    examples,
    failures,
    mended_of,
    reasons,
    repaired_by_kind,
    total_s,
    type_of,
)

GROUPS_SHOWN = 30  # types, shards, reasons; the rest is one line
HOURS_AROUND = 24  # of the chart, before and after the beginning

_TITLES = {
    RunVerdict.AGREED: "agreed",
    RunVerdict.LEFT: "disagreed",
    RunVerdict.UNABLE: "incomplete",
    RunVerdict.REPAIRED: "repaired",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """`svg` is safe to be set in; `rows` say the same as a table under `heads`."""

    title: str
    svg: Markup
    heads: tuple[str, str]
    rows: Sequence[tuple[str, int]]


def render(
    outcome: ReconcileResult,
    summary: Mapping[str, Any],
    before: Before | None,
    notes: Sequence[str],
) -> str:
    """The page. `summary`: of this run; `notes`: about earlier reports that could not be used."""
    environment = Environment(
        loader=PackageLoader("toc.reconcile.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": "{:,}".format,
        "moment": words.moment,
        "duration": words.duration,
        "many": words.count_words,
    }
    text, commands = words.advice(outcome)
    earlier = earlier_name(outcome.began_ms, before)
    parts = {
        "outcome": outcome,
        "verdict": outcome.verdict.name.lower(),
        "verdict_title": _TITLES[outcome.verdict],
        "headline": words.headline(outcome),
        "advice": text,
        "commands": commands,
        "namespace": words.clean(outcome.namespace),
        "engine": words.clean(outcome.engine),
        "failures": list(_failure_rows(outcome)),
        "broken_off": words.clean(outcome.broken_off),
        "unexplained": outcome.shards
        - outcome.compared
        - len({failure.shard for failure in outcome.failures}),
        "found": outcome.found.total(),
        "kept": len(outcome.findings),
        "kinds": list(_kind_rows(outcome, before)),
        "before": before,
        "earlier": earlier,
        "notes": notes,
        "kind_chart": _kind_chart(outcome, before, earlier),
        "charts": list(_charts(outcome, summary)),
        "examples": _example_tables(outcome),
        "reasons": _reason_rows(outcome),
        "counts": _count_rows(outcome),
        "seconds": _parts(outcome.seconds, words.SECONDS, total_s(outcome)),
        "work": _parts(outcome.work, words.WORK),
        "total_s": total_s(outcome),
        "rows_per_s": summary["rows_per_second"],
    }
    page = environment.get_template("report.html.j2").render(parts)
    return "\n".join(line for line in page.splitlines() if line.strip()) + "\n"


# ---- tables


def _failure_rows(outcome: ReconcileResult) -> Iterator[tuple[str, str, int, str]]:
    """(database, shards, how many, reason)"""
    grouped = list(failures(outcome).items())
    for (database, reason), shards in grouped[:GROUPS_SHOWN]:
        yield str(database), _shortened(shards), len(shards), reason
    rest = {shard for _, shards in grouped[GROUPS_SHOWN:] for shard in shards}
    if rest:
        yield "-", _shortened(rest), len(rest), f"other reasons: see {SUMMARY}"


def _shortened(shards: Iterable[int]) -> str:
    return words.clean(words.ranges(shards))


def _kind_rows(outcome: ReconcileResult, before: Before | None) -> Iterator[dict[str, Any]]:
    repaired = repaired_by_kind(outcome)
    for kind in Disagreement:
        then = None if before is None else before.found[kind.value]
        if outcome.found[kind] or then:
            yield {
                "name": kind.value,
                "words": words.KINDS[kind],
                "now": outcome.found[kind],
                "before": then,
                "repaired": repaired[kind],
                "left": outcome.found[kind] - repaired[kind],
            }


def _reason_rows(outcome: ReconcileResult) -> list[dict[str, Any]]:
    grouped = list(reasons(outcome).items())
    rows = [
        {"done": done, "how": how, "number": kinds.total(), "kinds": words.kinds_text(kinds)}
        for (done, how), kinds in grouped[:GROUPS_SHOWN]
    ]
    for done in (True, False):
        rest: Counter[Disagreement] = Counter()
        for (is_done, _), kinds in grouped[GROUPS_SHOWN:]:
            if is_done is done:
                rest += kinds
        if rest:
            how = f"other reasons: see {SUMMARY}"
            text = words.kinds_text(rest)
            rows.append({"done": done, "how": how, "number": rest.total(), "kinds": text})
    return rows


def _example_tables(outcome: ReconcileResult) -> list[dict[str, Any]]:
    mended = mended_of(outcome)
    return [
        {
            "kind": kind.value,
            "number": outcome.found[kind],
            "rows": [_example(outcome, finding, mended.get(finding)) for finding in found],
        }
        for kind, found in examples(outcome).items()
    ]


def _example(
    outcome: ReconcileResult, finding: Finding, mend: RepairResult | None
) -> dict[str, str]:
    reminder = []
    if finding.armed_ms is not None:
        reminder.append(words.moment(finding.armed_ms))
    if finding.out_ms is not None:
        reminder.append(f"out with a worker until {words.moment(finding.out_ms)}")
    repair = ""
    if mend is not None:
        repair = ("repaired: " if mend.done else "not repaired: ") + words.clean(mend.how)
    return {
        # MARK_AHEAD is of a slot, not of a job; and what is no id cannot be explained.
        "command": f"toc explain {finding.job_id}" if finding.job_id > 0 else "",
        "type": type_of(finding),
        "status": words.status_name(finding.status) or "-",
        "due": words.moment(finding.due_ms),
        "reminder": "; ".join(reminder) or "-",
        "slot": f"{words.clean(finding.topic, words.NAME_CHARS_MAX)} {finding.slot}",
        "shard": f"{finding.shard} (database {database_of(outcome, finding.shard)})",
        "repair": repair or "-",
    }


def _count_rows(outcome: ReconcileResult) -> list[tuple[str, int]]:
    unknown = {
        name: words.clean(name) for name in sorted(outcome.counts) if name not in words.COUNTS
    }
    return [(text, outcome.counts[name]) for name, text in (words.COUNTS | unknown).items()]


def _parts(
    seconds: Mapping[str, float], names: Mapping[str, str], whole_s: float = 0.0
) -> list[tuple[str, float, float]]:
    """(what, seconds, percent of the whole), in the order of the names."""
    whole_s = max(whole_s, sum(seconds.values())) or 1.0
    known = [name for name in names if name in seconds]
    ordered = known + sorted(seconds.keys() - names.keys())
    return [
        (names.get(name) or words.clean(name), seconds[name], 100 * seconds[name] / whole_s)
        for name in ordered
    ]


# ---- charts


def _kind_chart(outcome: ReconcileResult, before: Before | None, earlier: str) -> Markup | None:
    kinds = list(_kind_rows(outcome, before))
    if not kinds:
        return None
    return Markup(  # noqa: S704 - made of escaped texts
        charts.bar_chart(
            "by-kind",
            "Disagreements by kind",
            [row["name"] for row in kinds],
            [row["now"] for row in kinds],
            None if before is None else [row["before"] for row in kinds],
            ("this run", earlier),
        )
    )


def _charts(outcome: ReconcileResult, summary: Mapping[str, Any]) -> Iterator[Chart]:
    if not outcome.findings:
        return
    types = _folded(summary["by_type"], 12)
    names, numbers = [name for name, _ in types], [number for _, number in types]
    title = "Disagreements by type"
    svg = charts.bar_chart("by-type", title, names, numbers)
    yield _chart(title, svg, "type", _folded(summary["by_type"]))

    by_shard = Counter(finding.shard for finding in outcome.findings)
    counts = [by_shard[shard] for shard in range(max(outcome.shards, max(by_shard) + 1))]
    title = "Disagreements by shard"
    svg = charts.shard_chart("by-shard", title, counts)
    yield _chart(title, svg, "shard", _folded(summary["by_shard"]))

    title = (
        f"Disagreements by hour of their due time, {HOURS_AROUND} hours before and after the run"
    )
    svg = charts.hour_chart("by-hour", title, *around(summary["by_hour"], outcome.began_ms))
    by_size = dict(sorted(summary["by_hour"].items(), key=lambda item: (-item[1], item[0])))
    rows = dict(_folded(by_size))
    in_order = sorted(rows.items(), key=lambda row: (row[0].startswith("("), row[0]))
    yield _chart(title, svg, "hour (UTC)", in_order)


def _chart(title: str, svg: str, head: str, rows: Sequence[tuple[str, int]]) -> Chart:
    return Chart(title, Markup(svg), (head, "disagreements"), rows)  # noqa: S704 - as above


def _folded(counts: Mapping[str, int], limit: int = GROUPS_SHOWN) -> list[tuple[str, int]]:
    """The first groups, and the others as one."""
    rows = list(counts.items())
    if len(rows) <= limit:
        return rows
    rest = rows[limit - 1 :]
    return [*rows[: limit - 1], (f"({len(rest):,} others)", sum(number for _, number in rest))]


def around(by_hour: Mapping[str, int], began_ms: int) -> tuple[list[str], list[int]]:
    """Labels and figures of the chart: hours around the beginning, what is before, what is after."""
    middle = datetime_of(began_ms).replace(minute=0, second=0, microsecond=0)
    window = [middle + timedelta(hours=h) for h in range(-HOURS_AROUND, HOURS_AROUND + 1)]
    keys = [f"{hour:%Y-%m-%dT%H:%MZ}" for hour in window]
    dated = {key: number for key, number in by_hour.items() if key not in (NO_TIME, REST)}
    labels = [_hour_label(hour) for hour in window]
    labels[:4] = labels[-4:] = [""] * 4  # room for those of the ends
    earlier = sum(number for key, number in dated.items() if key < keys[0])
    later = sum(number for key, number in dated.items() if key > keys[-1])
    hour_counts = [dated.get(key, 0) for key in keys]
    return ["earlier", "", *labels, "", "later"], [earlier, 0, *hour_counts, 0, later]


def _hour_label(hour: datetime) -> str:
    """Every midnight its date, every noon its hour."""
    return f"{hour:%m-%d}" if hour.hour == 0 else "12:00" if hour.hour == 12 else ""
