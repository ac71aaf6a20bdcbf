"""A whole reconciliation: compares all shards, rechecks the disagreements after a grace, then repairs them.

Only shards that were compared are repaired: what a shard's findings depend on has answered for them.
"""

from __future__ import annotations

import itertools
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toc.domain.disagreements import Disagreement
from toc.errors import StoreUnavailable, TimerUnavailable, TocError
from toc.reconcile.compare import ShardComparer, merge_parts
from toc.reconcile.databases_and_redis import DatabasesAndRedis
from toc.reconcile.executors import run_on_executors
from toc.reconcile.findings import (
    ReconcileResult,
    ShardComparison,
    ShardFailure,
    ShardPart,
    record_duration,
)
from toc.reconcile.repair import Repairer
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

OnProgress = Callable[[str, int, int], None]
"""Called with the phase, how many of its parts are done, and how many there are."""

PART_ROWS = 500_000
"""Live rows of a task on Spark: a hot shard is many tasks."""

Item = int | ShardPart | ShardComparison
"""A shard to split into parts, a part to compare, or a result to recheck."""

Answer = list[ShardPart] | ShardComparison | ShardFailure

_open_compares: dict[str, ShardComparer] = {}
"""By settings. Spark runs many tasks in one worker process: the connections stay open between the tasks."""


@dataclass(frozen=True, slots=True)
class CompareTask:
    """The work of one task, sent to an executor. Items: see `_compare_items`.

    settings: not in the task itself, which must hold no passwords.
    """

    settings: Broadcast[Settings]
    clock: Clock

    def __call__(self, items: Iterable[Item]) -> Iterator[Answer]:
        """Yields the result of each item."""
        settings = self.settings.value
        key = settings.json_with_passwords()  # two settings may differ only in a password
        if key not in _open_compares:
            try:
                sides = DatabasesAndRedis.open(settings, self.clock).__enter__()
                _open_compares[key] = ShardComparer(sides)
            except TocError as error:
                for item in items:
                    yield ShardFailure(_shard_of(item), str(error))
                return
        yield from _compare_items(settings, _open_compares[key], items)


def _shard_of(item: Item) -> int:
    return item if isinstance(item, int) else item.shard


def _compare_items(
    settings: Settings, compare: ShardComparer, items: Iterable[Item]
) -> Iterator[Answer]:
    """Yields the result of each item: the parts of a shard, the comparison of a part, or a recheck.

    A database that does not answer is asked only once.
    """
    unreachable: dict[int, str] = {}
    for item in items:
        shard = _shard_of(item)
        database = settings.routing.database_index(shard)
        if database in unreachable:
            yield ShardFailure(shard, unreachable[database])
            continue
        try:
            if isinstance(item, int):
                yield compare.split_shard(item, PART_ROWS)
            elif isinstance(item, ShardPart):
                yield compare.compare_part(item)
            else:
                yield compare.recheck_findings(item)
        except StoreUnavailable as error:
            # One table that is broken, locked or denied says nothing of the others.
            if not (error.one_table or error.locked or error.denied):
                unreachable[error.database] = str(error)
            yield ShardFailure(shard, str(error))
        except TocError as error:
            yield ShardFailure(shard, str(error))
        except Exception as error:  # noqa: BLE001 - one broken table must not stop the others
            text = str(error).strip().partition("\n")[0]
            yield ShardFailure(shard, f"{type(error).__name__}: {text}")


class Reconciliation:
    """One run of the reconciliation. `spark` None: all in this process. `actor`: named in repair events."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession | None,
        *,
        repair: bool,
        actor: str,
        clock: Clock | None = None,
        on_progress: OnProgress = lambda phase, done, of: None,
    ) -> None:
        self._settings, self._spark, self._repair, self._actor = settings, spark, repair, actor
        self._clock, self._on_progress = clock or SystemClock(), on_progress
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
        with record_duration(self._clock, outcome.seconds, "compare"):
            first = self._compare_all_shards()
        suspect = [compared for compared in first if compared.findings]
        # A shard that cannot be rechecked has no findings: seeing them once is not enough.
        still = {compared.shard: compared for compared in first if not compared.findings}
        if suspect:
            with record_duration(self._clock, outcome.seconds, "grace"):
                self._clock.sleep_s(self._settings.reconcile.grace_s)
            with record_duration(self._clock, outcome.seconds, "look"):
                for compared in self._run_compare_tasks("rechecking", suspect):
                    if isinstance(compared, ShardComparison):
                        still[compared.shard] = compared
        outcome.compared = self._settings.shards - len({f.shard for f in outcome.failures})
        self._merge_results(still.values())
        if self._repair and outcome.findings:
            with record_duration(self._clock, outcome.seconds, "repair"):
                self._repair_findings()
        outcome.ended_ms = self._clock.wall_ms()
        return outcome

    def _compare_all_shards(self) -> list[ShardComparison]:
        """The comparisons of the shards of which all parts could be compared."""
        shards = self._interleave_shards()
        # In one process nothing is gained from parts.
        planned = [[ShardPart(shard)] for shard in shards]
        if self._spark is not None:
            answers = self._run_compare_tasks("planning", shards)
            planned = [answer for answer in answers if isinstance(answer, list)]
        # The first parts of all shards come first, so that all databases are busy all the time.
        parts = [part for some in itertools.zip_longest(*planned) for part in some if part]
        by_shard: dict[int, list[ShardComparison]] = defaultdict(list)
        for answer in self._run_compare_tasks("comparing", parts):
            if isinstance(answer, ShardComparison):
                by_shard[answer.shard].append(answer)
        failed = {failure.shard for failure in self.outcome.failures}
        kept_max = self._settings.findings_kept_max
        return [
            merge_parts(by_shard[shard], kept_max)
            for shard in shards
            if shard in by_shard and shard not in failed
        ]

    def _interleave_shards(self) -> list[int]:
        """The shards, alternating between the databases, so that all databases are busy all the time."""
        routing = self._settings.routing
        return sorted(range(routing.shards), key=lambda s: (s % routing.tables_per_database, s))

    def _run_compare_tasks(
        self, phase: str, items: Sequence[Item]
    ) -> list[list[ShardPart] | ShardComparison]:
        self._on_progress(phase, 0, len(items))
        if self._spark is not None:
            shared = self._spark.sparkContext.broadcast(self._settings)
            try:
                answers = run_on_executors(
                    self._spark,
                    CompareTask(shared, self._clock),
                    items,
                    lambda done, of: self._on_progress(phase, done, of),
                )
            finally:
                shared.destroy()
        else:
            answers = []
            with DatabasesAndRedis.open(self._settings, self._clock) as sides:
                for answer in _compare_items(self._settings, ShardComparer(sides), items):
                    answers.append(answer)
                    self._on_progress(phase, len(answers), len(items))
        self.outcome.failures += [a for a in answers if isinstance(a, ShardFailure)]
        return [answer for answer in answers if not isinstance(answer, ShardFailure)]

    def _merge_results(self, all_compared: Iterable[ShardComparison]) -> None:
        outcome = self.outcome
        for compared in sorted(all_compared, key=lambda c: c.shard):
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

    def _repair_findings(self) -> None:
        """Repairs the kept findings in this process: the rate limit leaves nothing to gain from Spark."""
        outcome, settings = self.outcome, self._settings
        number = len(outcome.findings)
        self._on_progress("repairing", 0, number)
        with DatabasesAndRedis.open(settings, self._clock) as sides:
            run_id = f"{outcome.began_ms:x}"
            log.info("repairing: run %s of the events", run_id)
            repairs = Repairer(sides, self._actor, run_id)
            try:
                for result in repairs.repair_findings(
                    outcome.findings, lambda done: self._on_progress("repairing", done, number)
                ):
                    outcome.repairs.append(result)
            except (StoreUnavailable, TimerUnavailable) as error:
                outcome.broken_off = str(error)
            except Exception as error:
                log.exception("repairing broke off")
                outcome.broken_off = f"{type(error).__name__}: {error}"
