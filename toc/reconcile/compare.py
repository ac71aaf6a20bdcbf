"""Compares one shard with its slots: one plain function for all callers (Spark, a node, a test).

Slots and shards are cut by the same hash, so a shard can be compared with the slots of its rows alone, and
nothing is shuffled. Both sides change while they are read: a row or reminder without its counterpart is
looked up at once, and again `grace_s` later; only a disagreement that is still there then counts.
"""

from __future__ import annotations

from collections import Counter

from toc.domain.disagreements import Disagreement, Tolerances
from toc.reconcile.both_sides import BothSides
from toc.reconcile.findings import Finding, ShardComparison
from toc.reconcile.merge_walk import MergeWalk
from toc.reconcile.recheck import Rechecker, Suspects
from toc.timer.loader import read_period_s


class ShardCompare:
    """Compares shards with their slots. Only reads. Every method raises StoreUnavailable and
    TimerUnavailable.
    """

    def __init__(self, sides: BothSides) -> None:
        self._sides = sides
        settings = sides.settings
        timer, reconcile = settings.timer, settings.reconcile
        seen_s = read_period_s(timer.horizon_s, timer.load_tick_s) + reconcile.grace_s
        self._limits = Tolerances(
            near_ms=max(0, round((timer.horizon_s - seen_s) * 1000)),
            overdue_ms=round(settings.overdue_s * 1000),
            stuck_ms=round(settings.overdue_s * 1000),
        )
        self._rechecker = Rechecker(sides, self._limits)
        self._kept_max = settings.findings_kept

    def compare_shard(self, shard: int, *, far: bool = True) -> ShardComparison:
        """Compares a shard, and looks its suspects up. `far`: also counts the rows due beyond the horizon."""
        compared = ShardComparison(shard)
        walk = MergeWalk(self._sides, self._limits, self._rechecker, compared)
        walk.run()
        if far:
            compared.counts["far"] = self._sides.reads.count_due_after(shard, walk.until_ms)
        self._check_marks(compared)
        return compared

    def recheck(self, compared: ShardComparison) -> ShardComparison:
        """Looks the findings up again, and keeps those that are still true.

        Of a kind with more findings than were kept, the others count too if most of the kept ones are still
        true.
        """
        of_jobs = [f for f in compared.findings if f.kind is not Disagreement.MARK_AHEAD]
        suspects = Suspects()
        for finding in of_jobs:
            suspects[finding.spot].add(finding.job_id)
        kept = {finding.key for finding in of_jobs}
        still = ShardComparison(
            compared.shard, Counter(compared.counts), marks=compared.marks, work=compared.work
        )
        for rechecked in self._rechecker.recheck(compared.shard, suspects):
            for finding in rechecked.findings:
                if finding.key in kept:
                    still.keep(finding, self._kept_max)
        looked_at = Counter(finding.kind for finding in of_jobs)
        for kind, number in looked_at.items():
            if 2 * still.found[kind] > number:
                still.found[kind] += compared.found[kind] - number
        self._check_marks(still)
        return still

    def _check_marks(self, compared: ShardComparison) -> None:
        """Adds MARK_AHEAD if most of the reminders that a mark covers are missing; a single one is no fault
        of it.
        """
        missing = [f for f in compared.findings if f.kind is Disagreement.MISSING]
        for mark in compared.marks:
            below = sum(
                finding.topic == mark.topic and (finding.due_ms or 0) <= mark.due_ms
                for finding in missing
            )
            covered = min(
                mark.covered, 2 * self._kept_max - 1
            )  # findings beyond kept_max are not in `missing`
            if 2 * below > covered:
                compared.keep(
                    Finding(
                        Disagreement.MARK_AHEAD,
                        compared.shard,
                        mark.topic,
                        mark.slot,
                        due_ms=mark.due_ms,
                    ),
                    self._kept_max,
                )
