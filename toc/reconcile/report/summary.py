"""A run in figures: what summary.json holds, and what the next run's report reads of it."""

from __future__ import annotations

import errno
import heapq
import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from toc.domain.disagreements import Disagreement
from toc.domain.times import EPOCH, MS_MAX, ceil_ms, datetime_of
from toc.reconcile.findings import Finding, ReconcileResult, RepairResult, RunVerdict
from toc.reconcile.report.words import NAME_CHARS_MAX, clean, headline, iso, why_left

SUMMARY = "summary.json"
SCHEMA = "toc.reconcile.report"
VERSION = 1

EXAMPLES = 10  # of each kind
GROUPS_MAX = 1000  # types, hours and reasons told apart; the rest is one group
REST = "(other)"
NO_TIME = "(no time)"
_BYTES_MAX = 8_000_000  # of a summary that is read: ours are far below
_HOUR_MS = 3_600_000
_COUNT_END = 2**63


@dataclass(frozen=True, slots=True)
class Before:
    """What an earlier report says. `report`: its folder's name; `began`: in UTC."""

    report: str
    began: datetime
    verdict: str
    compared: int
    shards: int
    found: Mapping[str, int]


class BrokenSummary(Exception):
    """A summary that cannot be read; the text says why."""


def earlier_name(began_ms: int, before: Before | None) -> str:
    """What to call the run before: "yesterday" only where it was."""
    if before is None:
        return ""
    days = datetime_of(began_ms).date() - before.began.date()
    return "yesterday" if days == timedelta(days=1) else "the run before"


def mended_of(outcome: ReconcileResult) -> dict[Finding, RepairResult]:
    """What repair did, by finding."""
    return {mend.finding: mend for mend in outcome.repairs}


def repaired_by_kind(outcome: ReconcileResult) -> Counter[Disagreement]:
    return Counter(mend.finding.kind for mend in outcome.repairs if mend.done)


def type_of(finding: Finding) -> str:
    """For people, and as a key; a real name has no brackets."""
    if finding.biz_type is not None:
        return clean(finding.biz_type, NAME_CHARS_MAX) or "(no name)"
    return "(of a slot)" if finding.kind is Disagreement.MARK_AHEAD else "(no row)"


def hour_of(finding: Finding) -> str:
    """The hour of its due_time, else of its reminder: 2026-11-21T03:00Z."""
    ms = finding.armed_ms if finding.due_ms is None else finding.due_ms
    if ms is None:
        return NO_TIME
    if not 0 <= ms <= MS_MAX:
        return REST
    return f"{datetime_of(ms // _HOUR_MS * _HOUR_MS):%Y-%m-%dT%H:%MZ}"


def reasons(outcome: ReconcileResult) -> dict[tuple[bool, str], Counter[Disagreement]]:
    """(whether it is repaired, how or why not) -> findings by kind; those never tried too.

    Repaired first, then the largest first.
    """
    grouped: dict[tuple[bool, str], Counter[Disagreement]] = {}
    for mend in outcome.repairs:
        kinds = grouped.setdefault((mend.done, clean(mend.how)), Counter())
        kinds[mend.finding.kind] += 1
    tried = Counter(mend.finding.kind for mend in outcome.repairs)
    untried = outcome.found - tried
    if untried:
        grouped.setdefault((False, why_left(outcome)), Counter()).update(untried)
    return dict(sorted(grouped.items(), key=lambda x: (not x[0][0], -x[1].total(), x[0][1])))


def failures(outcome: ReconcileResult) -> dict[tuple[int, str], set[int]]:
    """(database, reason) -> shards that were not compared; those of most first."""
    grouped: dict[tuple[int, str], set[int]] = {}
    for failure in outcome.failures:
        key = database_of(outcome, failure.shard), clean(failure.text)
        grouped.setdefault(key, set()).add(failure.shard)
    return dict(sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0])))


def database_of(outcome: ReconcileResult, shard: int) -> int:
    return shard // max(1, outcome.shards // max(1, outcome.databases))


def examples(outcome: ReconcileResult) -> dict[Disagreement, list[Finding]]:
    """A few of each kind: what is not repaired first, then by time."""
    mended = mended_of(outcome)
    by_kind: dict[Disagreement, list[Finding]] = {}
    for finding in outcome.findings:
        by_kind.setdefault(finding.kind, []).append(finding)

    def order(finding: Finding) -> tuple[bool, int, int, str, int]:
        mend = mended.get(finding)
        at = finding.armed_ms if finding.due_ms is None else finding.due_ms
        is_done = mend is not None and mend.done
        return is_done, at or 0, finding.job_id, finding.topic, finding.slot

    return {
        kind: heapq.nsmallest(EXAMPLES, by_kind[kind], key=order)
        for kind in Disagreement
        if kind in by_kind
    }


def total_s(outcome: ReconcileResult) -> float:
    """From beginning to end; before the end is known, what the parts took."""
    if outcome.ended_ms > outcome.began_ms:
        return (outcome.ended_ms - outcome.began_ms) / 1000
    return sum(outcome.seconds.values())


def rows_per_s(outcome: ReconcileResult) -> int | None:
    """Live rows over the seconds of the compare; None where nothing was measured."""
    seconds = outcome.seconds.get("compare", 0.0)
    return round(outcome.counts["rows"] / seconds) if seconds > 0 else None


def summary_of(outcome: ReconcileResult, before: Before | None = None) -> dict[str, Any]:
    """What summary.json holds: plain data, ids as texts, times as ISO 8601 in UTC."""
    repaired = repaired_by_kind(outcome)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "verdict": outcome.verdict.name.lower(),
        "text": headline(outcome),
        "began": iso(outcome.began_ms),
        "ended": iso(outcome.ended_ms) if outcome.ended_ms else None,
        "namespace": outcome.namespace,
        "engine": clean(outcome.engine),
        "repairing": outcome.repairing,
        "databases": outcome.databases,
        "shards": outcome.shards,
        "compared": outcome.compared,
        "counts": dict(sorted(outcome.counts.items())),
        "found": by_kind(outcome.found),
        "found_total": outcome.found.total(),
        "kept": len(outcome.findings),
        "by_type": _bounded(Counter(map(type_of, outcome.findings))),
        "by_shard": _bounded(Counter(str(f.shard) for f in outcome.findings), 1 << 20),
        "by_hour": dict(sorted(_bounded(Counter(map(hour_of, outcome.findings))).items())),
        "repaired": by_kind(repaired),
        "repaired_total": repaired.total(),
        "repairs": [
            {"repaired": done, "how": how, "number": kinds.total(), "kinds": by_kind(kinds)}
            for (done, how), kinds in islice(reasons(outcome).items(), GROUPS_MAX)
        ],
        "broken_off": clean(outcome.broken_off),
        "failures": [
            {"database": database, "shards": sorted(shards), "reason": reason}
            for (database, reason), shards in failures(outcome).items()
        ],
        "examples": {
            kind.value: [str(finding.job_id) for finding in found if finding.job_id]
            for kind, found in examples(outcome).items()
        },
        "seconds": {name: round(seconds, 3) for name, seconds in outcome.seconds.items()},
        "work": {name: round(seconds, 3) for name, seconds in outcome.work.items()},
        "total_seconds": round(total_s(outcome), 3),
        "rows_per_second": rows_per_s(outcome),
        "before": None
        if before is None
        else {
            "report": before.report,
            "began": iso(ceil_ms(before.began - EPOCH)),
            "verdict": before.verdict,
            "compared": before.compared,
            "shards": before.shards,
            "found": dict(before.found),
        },
    }


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a report, of whatever version. Raises BrokenSummary unless it has our mark."""
    try:
        with open(folder / SUMMARY, "rb", opener=_open_to_read) as file:
            text = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise BrokenSummary(f"cannot be read: {error.strerror}") from error
    if len(text) > _BYTES_MAX:
        raise BrokenSummary("is too long")
    try:
        summary = json.loads(text)
    except (ValueError, RecursionError):
        raise BrokenSummary("is no JSON") from None
    if not isinstance(summary, dict) or summary.get("schema") != SCHEMA:
        raise BrokenSummary("is none of a report")
    return summary


_NO_FILE = "it is no regular file"


def _open_to_read(path: str, flags: int) -> int:
    """Waits for nobody who should write a pipe, and follows no link. Raises OSError."""
    try:
        number = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OSError(errno.ELOOP, _NO_FILE, path) from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, _NO_FILE, path)
    return number


def before_of(name: str, summary: Mapping[str, Any]) -> Before:
    """What counts of an earlier summary. Raises BrokenSummary."""
    if summary.get("version") != VERSION:
        raise BrokenSummary(f"has version {clean(str(summary.get('version')), 20)}, not {VERSION}")
    return _before(name, summary)


def before_told(summary: Mapping[str, Any]) -> Before | None:
    """What a summary says about the report before it. Raises BrokenSummary."""
    before = summary.get("before")
    return _before(str(before.get("report")), before) if isinstance(before, dict) else None


def _before(name: str, summary: Mapping[str, Any]) -> Before:
    try:
        verdict = RunVerdict[str(summary["verdict"]).upper()].name.lower()
        found = {kind.value: _count(summary["found"].get(kind.value, 0)) for kind in Disagreement}
        compared, shards = _count(summary["compared"]), _count(summary["shards"])
        return Before(name, _utc(summary["began"]), verdict, compared, shards, found)
    except (KeyError, AttributeError, TypeError, ValueError, OverflowError):
        raise BrokenSummary("lacks what it should hold") from None


def _utc(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:
        raise ValueError(text)
    return moment.astimezone(UTC)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _COUNT_END:
        raise ValueError(value)
    return value


def by_kind(counts: Mapping[Disagreement, int]) -> dict[str, int]:
    return {kind.value: counts[kind] for kind in Disagreement if counts.get(kind)}


def _bounded(counts: Counter[str], limit: int = GROUPS_MAX) -> dict[str, int]:
    """The largest groups, largest first, equals by name; the rest as one."""
    ordered: Iterable[tuple[str, int]] = sorted(
        counts.items(), key=lambda item: (-item[1], item[0])
    )
    bounded: dict[str, int] = {}
    for number, (name, count) in enumerate(ordered):
        key = name if number < limit else REST
        bounded[key] = bounded.get(key, 0) + count
    return bounded
