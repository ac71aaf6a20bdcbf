"""The facts of a run: summary.json, and the part of it that the next run's report reads."""

from __future__ import annotations

import errno
import heapq
import json
import os
import stat
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from toc.domain.disagreements import OF_SLOTS, Disagreement
from toc.domain.times import EPOCH, MS_MAX, ceil_ms, datetime_of
from toc.reconcile.findings import Finding, ReconcileResult, RepairResult, RunVerdict
from toc.reconcile.report.report_texts import (
    NAME_CHARS_MAX,
    clean_text,
    format_iso_time,
    verdict_headline,
    why_not_repaired,
)

Summary = TypeVar("Summary", bound="ReportSummary")

SUMMARY = "summary.json"
SCHEMA = "toc.reconcile.report"
VERSION = 1

EXAMPLES = 10  # findings of each kind that are shown as examples
GROUPS_MAX = 1000  # types, hours or reasons; all others are one group
REST = "(other)"
NO_TIME = "(no time)"
_BYTES_MAX = 8_000_000  # size of a summary that is read: toc's own summaries are far smaller
_HOUR_MS = 3_600_000
_Count = Annotated[int, Field(ge=0, lt=2**63)]


class UnreadableSummary(Exception):
    """A summary that cannot be read; the text says why."""


def earlier_run_name(summary: Mapping[str, Any]) -> str:
    """The name of the earlier run: "yesterday" or "the run before"; "": there is no earlier run."""
    if summary["before"] is None:
        return ""
    began, before = (date.fromisoformat(run["began"][:10]) for run in (summary, summary["before"]))
    return "yesterday" if began - before == timedelta(days=1) else "the run before"


def repairs_by_finding(outcome: ReconcileResult) -> dict[Finding, RepairResult]:
    return {repair.finding: repair for repair in outcome.repairs}


def biz_type_label(finding: Finding) -> str:
    """The biz_type of a finding; a text in brackets if there is none: a real name has no brackets."""
    if finding.biz_type is not None:
        return clean_text(finding.biz_type, NAME_CHARS_MAX) or "(no name)"
    return "(of a slot)" if finding.kind in OF_SLOTS else "(no row)"


def _due_hour_label(finding: Finding) -> str:
    """The hour of a finding's due_time, else of its reminder: 2026-11-21T03:00Z."""
    ms = finding.due_or_reminder_ms
    if ms is None:
        return NO_TIME
    if not 0 <= ms <= MS_MAX:
        return REST
    return f"{datetime_of(ms // _HOUR_MS * _HOUR_MS):%Y-%m-%dT%H:%MZ}"


def _repair_outcome_rows(outcome: ReconcileResult) -> list[dict[str, Any]]:
    """Counts findings by the outcome and the words of their repair, also findings that were never tried.

    Repaired ones first, then the largest groups first.
    """
    grouped: dict[tuple[bool, str], Counter[str]] = defaultdict(Counter)
    for repair in outcome.repairs:
        grouped[repair.done, clean_text(repair.how)][repair.finding.kind] += 1
    untried = outcome.found - Counter(repair.finding.kind for repair in outcome.repairs)
    if untried:
        grouped[False, why_not_repaired(outcome)].update(untried)
    ordered = sorted(grouped.items(), key=lambda x: (not x[0][0], -x[1].total(), x[0][1]))
    return [_repair_outcome_row(done, how, kinds) for (done, how), kinds in ordered]


def limit_outcome_rows(rows: Sequence[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """The first `limit` rows; the others as one row of repaired findings and one row of unrepaired ones."""
    found = list(rows[:limit])
    for done in (True, False):
        rest: Counter[str] = Counter()
        for row in rows[limit:]:
            if row["repaired"] is done:
                rest.update(row["kinds"])
        if rest:
            found.append(_repair_outcome_row(done, f"other reasons: see {SUMMARY}", rest))
    return found


def _repair_outcome_row(done: bool, how: str, kinds: Counter[str]) -> dict[str, Any]:
    return {"repaired": done, "how": how, "number": kinds.total(), "kinds": _counts_by_kind(kinds)}


def _failure_rows(outcome: ReconcileResult) -> list[dict[str, Any]]:
    """Shards that were not compared, by database and reason; the largest groups first."""
    grouped: dict[tuple[int, str], set[int]] = defaultdict(set)
    for failure in outcome.failures:
        grouped[database_of_shard(outcome, failure.shard), clean_text(failure.text)].add(
            failure.shard
        )
    ordered = sorted(grouped.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        {"database": database, "shards": sorted(shards), "reason": reason}
        for (database, reason), shards in ordered
    ]


def database_of_shard(outcome: ReconcileResult, shard: int) -> int:
    return shard // max(1, outcome.shards // max(1, outcome.databases))


def choose_examples(outcome: ReconcileResult) -> dict[Disagreement, list[Finding]]:
    """A few findings of each kind: those not repaired first, then by time."""
    repairs = repairs_by_finding(outcome)
    by_kind: dict[Disagreement, list[Finding]] = defaultdict(list)
    for finding in outcome.findings:
        by_kind[finding.kind].append(finding)

    def example_sort_key(finding: Finding) -> tuple[bool, int, int, str, int]:
        repair = repairs.get(finding)
        is_done = repair is not None and repair.done
        return is_done, finding.due_or_reminder_ms or 0, finding.job_id, finding.topic, finding.slot

    return {
        kind: heapq.nsmallest(EXAMPLES, by_kind[kind], key=example_sort_key)
        for kind in Disagreement
        if kind in by_kind
    }


def _run_duration_s(outcome: ReconcileResult) -> float:
    """Seconds from beginning to end of the run; the sum of its phases while the end is not known."""
    if outcome.ended_ms > outcome.began_ms:
        return (outcome.ended_ms - outcome.began_ms) / 1000
    return sum(outcome.seconds.values())


def make_summary(
    outcome: ReconcileResult,
    before: dict[str, Any] | None = None,
    oldest_ms: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Any]:
    """The facts of a run as plain data; ids are texts, times ISO 8601 in UTC.

    Page, terminal lines and summary.json all show these. `before`: the facts of an earlier run
    (`EarlierRunSummary.to_dict`). oldest_ms: by kind, when its oldest finding was first seen.
    """
    repaired = Counter(repair.finding.kind for repair in outcome.repairs if repair.done)
    compare_s = outcome.seconds.get("compare", 0.0)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "verdict": outcome.verdict.name.lower(),
        "text": verdict_headline(outcome),
        "began": format_iso_time(outcome.began_ms),
        "ended": format_iso_time(outcome.ended_ms) if outcome.ended_ms else None,
        "namespace": outcome.namespace,
        "engine": clean_text(outcome.engine),
        "repairing": outcome.repairing,
        "databases": outcome.databases,
        "shards": outcome.shards,
        "compared": outcome.compared,
        "taken_up": [
            {"compared": format_iso_time(ms), "shards": sorted(shards)}
            for ms, shards in sorted(outcome.taken_up.items())
        ],
        "counts": dict(sorted(outcome.counts.items())),
        "found": _counts_by_kind(outcome.found),
        "found_total": outcome.found.total(),
        "oldest": {kind: format_iso_time(ms) for kind, ms in sorted(oldest_ms.items())},
        "kept": len(outcome.findings),
        "by_type": _keep_largest_groups(Counter(map(biz_type_label, outcome.findings))),
        "by_shard": _keep_largest_groups(Counter(str(f.shard) for f in outcome.findings), 1 << 20),
        "by_hour": dict(
            sorted(_keep_largest_groups(Counter(map(_due_hour_label, outcome.findings))).items())
        ),
        "repaired": _counts_by_kind(repaired),
        "repaired_total": repaired.total(),
        "repairs": limit_outcome_rows(_repair_outcome_rows(outcome), GROUPS_MAX),
        "broken_off": clean_text(outcome.broken_off),
        "failures": _failure_rows(outcome),
        "examples": {
            kind.value: [str(finding.job_id) for finding in found if finding.job_id]
            for kind, found in choose_examples(outcome).items()
        },
        "seconds": {name: round(seconds, 3) for name, seconds in outcome.seconds.items()},
        "work": {name: round(seconds, 3) for name, seconds in outcome.work.items()},
        "total_seconds": round(_run_duration_s(outcome), 3),
        "rows_per_second": None
        if compare_s <= 0 or outcome.taken_up
        else round(outcome.counts["rows"] / compare_s),
        "before": before,
    }


class ReportSummary(BaseModel):
    """The fields that summary.json has in every version of toc."""

    model_config = ConfigDict(strict=True)

    schema_name: Literal["toc.reconcile.report"] = Field(alias="schema")
    namespace: str


class EarlierRunSummary(ReportSummary):
    """The part of an earlier run's summary.json that a report shows."""

    version: Literal[1]
    began: Annotated[AwareDatetime, Field(ge=EPOCH)]
    verdict: Literal["agreed", "left", "unable", "repaired"]
    compared: _Count
    shards: _Count
    found: dict[str, _Count]

    def to_dict(self, report: str) -> dict[str, Any]:
        """The earlier run as plain data. `report`: the name of its folder."""
        return {
            "report": report,
            "began": format_iso_time(ceil_ms(self.began - EPOCH)),
            "verdict": self.verdict,
            "compared": self.compared,
            "shards": self.shards,
            "found": {kind.value: self.found.get(kind, 0) for kind in Disagreement},
        }


class FailureFacts(BaseModel):
    """Shards that a run could not compare."""

    model_config = ConfigDict(strict=True)

    database: int
    shards: list[int]
    reason: str


class RunFacts(ReportSummary):
    """The part of a summary.json that a list of reports shows: no names of types, no ids of jobs."""

    verdict_name: Literal["agreed", "left", "unable", "repaired"] = Field(alias="verdict")
    text: str
    began: Annotated[AwareDatetime, Field(ge=EPOCH)]
    repairing: bool
    shards: _Count
    compared: _Count
    counts: dict[str, _Count]
    found: dict[str, _Count]
    repaired: dict[str, _Count]
    broken_off: str
    failures: list[FailureFacts]
    total_seconds: float

    @property
    def verdict(self) -> RunVerdict:
        return RunVerdict[self.verdict_name.upper()]


class RunFigures(ReportSummary):
    """The figures of a run that metrics show."""

    ended: AwareDatetime
    verdict: str
    seconds: dict[str, float]
    counts: dict[str, _Count]


def read_summary(folder: Path, kind: type[Summary]) -> Summary:
    """Reads the summary of a report. Raises UnreadableSummary for a file that is no summary."""
    try:
        with open(folder / SUMMARY, "rb", opener=_open_regular_file) as file:
            text = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise UnreadableSummary(f"cannot be read: {error.strerror}") from error
    if len(text) > _BYTES_MAX:
        raise UnreadableSummary("is too long")
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableSummary("is no JSON") from None
    if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
        raise UnreadableSummary("is none of a report")
    if kind is EarlierRunSummary and facts.get("version") != VERSION:
        raise UnreadableSummary(
            f"has version {clean_text(str(facts.get('version')), 20)}, not {VERSION}"
        )
    try:
        return kind.model_validate_json(text)
    except ValidationError:
        raise UnreadableSummary("lacks what it should hold") from None


_NO_FILE = "it is no regular file"


def _open_regular_file(path: str, flags: int) -> int:
    """Opens regular files only: it does not wait for the writer of a pipe, and follows no link."""
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


def _counts_by_kind(counts: Mapping[Any, int]) -> dict[str, int]:
    return {kind.value: counts[kind] for kind in Disagreement if counts.get(kind)}


def _keep_largest_groups(counts: Counter[str], limit: int = GROUPS_MAX) -> dict[str, int]:
    """The largest groups, largest first, groups of one size by name; all remaining groups as one."""
    bounded: Counter[str] = Counter()
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    for place, (name, count) in enumerate(ordered):
        bounded[name if place < limit else REST] += count
    return dict(bounded)
