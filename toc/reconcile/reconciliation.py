"""A whole reconciliation: compares all shards, rechecks the disagreements after a grace, then repairs them.

The shards are compared in waves. While a wave waits for the end of its grace, the next one is compared. What
a wave has found is recorded on the disk; a run that follows a run that died compares only the shards that
the dead run did not record.

Only shards that were compared are repaired: what a shard's findings depend on has answered for them. Repairs
begin when all shards are compared, because findings of one shard explain findings of another one.

This process keeps what the report needs: counts, and at most `reconcile.findings_max` findings of each kind.
"""

from __future__ import annotations

import itertools
import logging
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from toc.domain.disagreements import Disagreement
from toc.reconcile.compare import merge_parts
from toc.reconcile.databases_and_redis import DatabasesAndRedis
from toc.reconcile.executor_tasks import CompareItem, RepairsBrokenOff
from toc.reconcile.findings import (
    Finding,
    ReconcileResult,
    RepairResult,
    ShardComparison,
    ShardFailure,
    ShardPart,
    record_duration,
)
from toc.reconcile.task_runner import OnProgress, TaskRunner
from toc.reconcile.unfinished_run import FinishedShards, UnfinishedRun
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

WAVE_SHARDS = 64
"""Shards of a wave, of all databases: a run that dies has compared two waves in vain, at most."""

REPAIRED_AT_ONCE = 20_000
"""Findings whose repairs are recorded together, or a few more: all findings of some shards."""


class _Wave(NamedTuple):
    """Shards that were compared. found_s: when, by the monotonic clock. text: names the wave in progress."""

    compared: list[ShardComparison]
    found_s: float
    text: str


class Reconciliation:
    """One run of the reconciliation. `spark` None: all in this process. `actor`: named in repair events.

    unfinished: where the run records what it has done; None: nowhere.
    """

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession | None,
        *,
        repair: bool,
        actor: str,
        clock: Clock | None = None,
        on_progress: OnProgress = lambda phase, done, of: None,
        unfinished: UnfinishedRun | None = None,
    ) -> None:
        self._settings, self._spark, self._repair, self._actor = settings, spark, repair, actor
        self._clock = clock or SystemClock()
        self._tasks = TaskRunner(settings, spark, self._clock, on_progress)
        self._unfinished = unfinished
        self._finished: list[ShardComparison] = []
        self.outcome = ReconcileResult(
            began_ms=self._clock.wall_ms(),
            namespace=settings.namespace,
            databases=len(settings.databases),
            shards=settings.shards,
            engine="this process" if spark is None else str(spark.sparkContext.master),
            repairing=repair,
        )

    def run(self) -> ReconcileResult:
        """Compares, rechecks, repairs. Raises as `DatabasesAndRedis.open`."""
        outcome = self.outcome
        with DatabasesAndRedis.open(self._settings, self._clock):
            pass  # raises if the settings do not fit the databases
        if self._unfinished is not None:
            for finished in self._unfinished.compared:
                self._finished += finished.shards
                shards = (compared.shard for compared in finished.shards)
                outcome.taken_up.setdefault(finished.ended_ms, []).extend(shards)
        self._compare_all_shards()
        outcome.compared = self._settings.shards - len({f.shard for f in outcome.failures})
        self._merge_results()
        if self._repair and outcome.findings:
            with record_duration(self._clock, outcome.seconds, "repair"):
                self._repair_findings()
        outcome.ended_ms = self._clock.wall_ms()
        return outcome

    # ---- comparing

    def _compare_all_shards(self) -> None:
        """Compares the shards that no interrupted run has compared, wave after wave."""
        known = {compared.shard for compared in self._finished}
        shards = [shard for shard in self._interleave_shards() if shard not in known]
        size = max(WAVE_SHARDS, len(self._settings.databases))
        waves = [shards[start : start + size] for start in range(0, len(shards), size)]
        waiting: _Wave | None = None
        for number, wave in enumerate(waves, start=1):
            text = f", wave {number} of {len(waves)}" if waves[1:] else ""
            with record_duration(self._clock, self.outcome.seconds, "compare"):
                compared = self._compare_wave(wave, text)
            self._record_compared([one for one in compared if not one.findings])
            if waiting is not None:
                self._recheck_wave(waiting)
            suspect = [one for one in compared if one.findings]
            waiting = _Wave(suspect, self._clock.monotonic_s(), text)
        if waiting is not None:
            self._recheck_wave(waiting)

    def _interleave_shards(self) -> list[int]:
        """The shards, alternating between the databases, so that all databases are busy all the time."""
        routing = self._settings.routing
        return sorted(range(routing.shards), key=lambda s: (s % routing.tables_per_database, s))

    def _compare_wave(self, shards: Sequence[int], text: str) -> list[ShardComparison]:
        """The comparisons of the shards of which all parts could be compared."""
        # In one process nothing is gained from parts.
        planned = [[ShardPart(shard)] for shard in shards]
        if self._spark is not None:
            answers = self._run_compare_tasks("planning" + text, shards)
            planned = [answer for answer in answers if isinstance(answer, list)]
        parts = [part for some in itertools.zip_longest(*planned) for part in some if part]
        answers = self._run_compare_tasks("comparing" + text, parts)
        return [
            merge_parts([answer], self._settings.findings_kept_max)
            for answer in answers
            if isinstance(answer, ShardComparison)
        ]

    def _recheck_wave(self, wave: _Wave) -> None:
        """Looks the findings of a wave up again when its grace is over, and records what is left."""
        if not wave.compared:
            return
        with record_duration(self._clock, self.outcome.seconds, "grace"):
            until_s = wave.found_s + self._settings.reconcile.grace_s
            self._clock.sleep_s(max(0.0, until_s - self._clock.monotonic_s()))
        with record_duration(self._clock, self.outcome.seconds, "look"):
            # A shard that cannot be rechecked has no findings: seeing them once is not enough.
            answers = self._run_compare_tasks("rechecking" + wave.text, wave.compared)
        self._record_compared([one for one in answers if isinstance(one, ShardComparison)])

    def _record_compared(self, compared: list[ShardComparison]) -> None:
        if compared and self._unfinished is not None:
            finished = FinishedShards(self._clock.wall_ms(), compared)
            self._unfinished.record_compared(finished)
        self._finished += compared

    def _run_compare_tasks(
        self, phase: str, items: Sequence[CompareItem]
    ) -> list[list[ShardPart] | ShardComparison]:
        answers = self._tasks.compare(phase, items)
        self.outcome.failures += [a for a in answers if isinstance(a, ShardFailure)]
        return [answer for answer in answers if not isinstance(answer, ShardFailure)]

    def _merge_results(self) -> None:
        outcome = self.outcome
        for compared in sorted(self._finished, key=lambda c: c.shard):
            outcome.counts += compared.counts
            for on, seconds in compared.work.items():
                outcome.work[on] += seconds
            outcome.found += compared.found
            outcome.findings += compared.findings
        # The shard where a job belongs reports its reminder as missing if it is in a wrong slot, and as an
        # orphan if its row is in a wrong table: these findings are dropped.
        self._drop_findings(Disagreement.MISSING, where_also=Disagreement.WRONG_SLOT)
        self._drop_findings(Disagreement.ORPHAN, where_also=Disagreement.MISFIT)
        outcome.found = +outcome.found

    def _drop_findings(self, kind: Disagreement, *, where_also: Disagreement) -> None:
        outcome = self.outcome
        jobs = {finding.job_id for finding in outcome.findings if finding.kind is where_also}
        kept = [f for f in outcome.findings if f.kind is not kind or f.job_id not in jobs]
        outcome.found[kind] -= len(outcome.findings) - len(kept)
        outcome.findings = kept

    # ---- repairing

    def _repair_findings(self) -> None:
        """Repairs the kept findings that no interrupted run has repaired, those of some shards at a time."""
        outcome = self.outcome
        run_id = f"{outcome.began_ms:x}"
        log.info("repairing: run %s of the events", run_id)
        if self._unfinished is not None:
            self._add_repairs(outcome.findings, self._unfinished.repairs)
        known = {repair.finding for repair in outcome.repairs}
        todo = [finding for finding in outcome.findings if finding not in known]
        for findings in self._group_for_repair(todo):
            answers = self._tasks.repair(findings, self._actor, run_id)
            results = [answer for answer in answers if isinstance(answer, RepairResult)]
            if self._unfinished is not None:
                # What could not be repaired is tried again.
                self._unfinished.record_repaired([result for result in results if result.done])
            self._add_repairs(findings, results)
            texts = [answer.text for answer in answers if isinstance(answer, RepairsBrokenOff)]
            if texts:
                outcome.broken_off = texts[0]
                return

    def _add_repairs(self, findings: Sequence[Finding], results: Iterable[RepairResult]) -> None:
        """Adds the results for these findings; a result has a copy of its finding, which is not kept."""
        own = {finding: finding for finding in findings}
        self.outcome.repairs += [
            RepairResult(own[finding], done, sys.intern(how))
            for finding, done, how in results
            if finding in own
        ]

    def _group_for_repair(self, findings: Sequence[Finding]) -> Iterator[list[Finding]]:
        """Groups of findings, of all databases if possible. All findings of a shard are in one group: the
        repair of one of a job's findings depends on the repairs of the others.
        """
        of_shard: dict[int, list[Finding]] = defaultdict(list)
        for finding in findings:
            of_shard[finding.shard].append(finding)
        group: list[Finding] = []
        for shard in self._interleave_shards():
            group += of_shard.pop(shard, [])
            if len(group) >= REPAIRED_AT_ONCE:
                yield group
                group = []
        if group:
            yield group
