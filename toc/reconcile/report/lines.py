"""A run's result as a few lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from toc.domain.disagreements import Disagreement
from toc.reconcile.findings import ReconcileResult
from toc.reconcile.report.summary import Before, earlier_name, failures, reasons, repaired_by_kind
from toc.reconcile.report.words import advice, clean, headline, kinds_text, ranges

LINES_MAX = 10  # of reasons; the page has them all


def lines_of(outcome: ReconcileResult, before: Before | None, report: Path | None) -> Iterator[str]:
    """The verdict, what was not compared, the kinds, what is left and why, and where the report is."""
    yield headline(outcome)
    yield from _failures(outcome)
    if outcome.broken_off:
        yield f"repairing broke off: {clean(outcome.broken_off)}"
    yield from _kinds(outcome, before)
    if outcome.repairing:
        left = [(how, kinds) for (done, how), kinds in reasons(outcome).items() if not done]
        for how, kinds in left[:LINES_MAX]:
            yield f"left: {kinds_text(kinds)}: {how}"
        if len(left) > LINES_MAX:
            yield f"left: {len(left) - LINES_MAX} more reasons, see the report"
    if report is not None:
        yield f"report: {report / 'index.html'}"
    text, commands = advice(outcome)
    if commands:
        yield f"{text} {', '.join(f'`{command}`' for command in commands)}"


def _failures(outcome: ReconcileResult) -> Iterator[str]:
    grouped = list(failures(outcome).items())
    for (database, reason), shards in grouped[:LINES_MAX]:
        count_words = "shard" if len(shards) == 1 else "shards"
        yield f"not compared: {count_words} {clean(ranges(shards))} (database {database}): {reason}"
    if len(grouped) > LINES_MAX:
        yield f"not compared: {len(grouped) - LINES_MAX} more reasons, see the report"


def _kinds(outcome: ReconcileResult, before: Before | None) -> Iterator[str]:
    repaired = repaired_by_kind(outcome)
    earlier = earlier_name(outcome.began_ms, before)
    for kind in Disagreement:
        now, then = outcome.found[kind], 0 if before is None else before.found[kind.value]
        if not now and not then:
            continue
        facts = [f"{now:>9,}"]
        if outcome.repairing:
            facts.append(f"{repaired[kind]:,} repaired")
        if before is not None:
            facts.append(f"{earlier} {then:,}")
        yield f"  {kind.value:<10} {'  '.join(facts)}"
