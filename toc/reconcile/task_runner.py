"""Runs the tasks of a reconciliation: on Spark's executors, or one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from toc.reconcile.executor_tasks import (
    CompareAnswer,
    CompareItem,
    CompareTask,
    MergeParts,
    RepairAnswer,
    RepairTask,
    compare_items,
    group_into_tasks,
    repair_items,
)
from toc.reconcile.executors import Merge, run_on_executors
from toc.reconcile.findings import Finding, ShardPart
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings

if TYPE_CHECKING:
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

OnProgress = Callable[[str, int, int], None]
"""Called with the phase, how many of its parts are done, and how many there are."""


class TaskRunner:
    """Runs tasks for one run. `spark` None: in this process."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession | None,
        clock: Clock,
        on_progress: OnProgress,
    ) -> None:
        self._settings, self._spark, self._clock = settings, spark, clock
        self._on_progress = on_progress

    def compare(self, phase: str, items: Sequence[CompareItem]) -> list[CompareAnswer]:
        """The results of items. On Spark the parts of a shard have one result."""
        self._on_progress(phase, 0, len(items))
        if self._spark is None:
            return list(
                self._count(phase, compare_items(self._settings, self._clock, items), items)
            )
        is_parts = bool(items) and isinstance(items[0], ShardPart)
        merge = Merge(attrgetter("shard"), MergeParts(self._settings.findings_kept_max))
        with self._share_settings(self._spark) as settings:
            return run_on_executors(
                self._spark,
                CompareTask(settings, self._clock),
                group_into_tasks(
                    self._settings, items, self._settings.reconcile.reads_per_database
                ),
                lambda done, of: self._on_progress(phase, done, of),
                merge=merge if is_parts else None,
            )

    def repair(self, findings: Sequence[Finding], actor: str, run_id: str) -> list[RepairAnswer]:
        """Repairs findings, all tasks together `reconcile.repairs_per_s` at most."""
        phase = "repairing"
        self._on_progress(phase, 0, len(findings))
        if self._spark is None:
            repaired = repair_items(
                self._settings, self._clock, actor, run_id, findings,
                lambda done: self._on_progress(phase, done, len(findings)),
            )  # fmt: skip
            return list(repaired)
        of_databases = group_into_tasks(self._settings, findings, 1)
        # No more tasks than run at the same time: each has its share of the rate.
        number = min(len(of_databases), self._spark.sparkContext.defaultParallelism)
        tasks = [list(chain(*of_databases[place::number])) for place in range(number)]
        per_s = self._settings.reconcile.repairs_per_s / len(tasks)
        with self._share_settings(self._spark) as settings:
            return run_on_executors(
                self._spark,
                RepairTask(settings, self._clock, actor, run_id, per_s),
                tasks,
                lambda done, of: self._on_progress(phase, done, of),
            )

    def _count(
        self, phase: str, answers: Iterable[CompareAnswer], items: Sequence[CompareItem]
    ) -> Iterator[CompareAnswer]:
        for done, answer in enumerate(answers, start=1):
            self._on_progress(phase, done, len(items))
            yield answer

    @contextmanager
    def _share_settings(self, spark: SparkSession) -> Iterator[Broadcast[Settings]]:
        """The settings as a broadcast: tasks themselves are written where passwords must not be."""
        shared = spark.sparkContext.broadcast(self._settings)
        try:
            yield shared
        finally:
            shared.destroy()
