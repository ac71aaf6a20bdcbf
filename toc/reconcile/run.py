"""A whole reconciliation: all shards are compared, what disagrees is looked at again, then repaired.

Nothing is repaired unless everything was compared: a part that does not answer may be the reason of
what the others seem to lack.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toc.domain.disagreements import Disagreement
from toc.errors import StoreUnavailable, TimerUnavailable, TocError
from toc.reconcile.compare import Compare, opened
from toc.reconcile.findings import Compared, Failure, Outcome
from toc.reconcile.repair import Repairs
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings
from toc.store.catalogue import Catalogue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

Tell = Callable[[str, int, int], None]
"""Hears what is going on: the phase, how many of its parts are done, and of how many."""

_opened: dict[str, Compare] = {}
"""In a worker process of Spark, which is used again: its connections stay open from task to task."""


@dataclass(frozen=True, slots=True)
class Comparing:
    """The work of one task, as it travels to an executor: shards, or what they were found to be before."""

    settings: Settings
    clock: Clock

    def __call__(self, items: Iterable[int | Compared]) -> Iterator[Compared | Failure]:
        """What became of each. A database that does not answer is not asked for each of its shards."""
        key = self.settings.model_dump_json()
        if key not in _opened:
            try:
                _opened[key] = Compare.open(self.settings, self.clock).__enter__()
            except TocError as error:
                for item in items:
                    yield Failure(item if isinstance(item, int) else item.shard, str(error))
                return
        yield from self.by(_opened[key], items)

    def by(self, compare: Compare, items: Iterable[int | Compared]) -> Iterator[Compared | Failure]:
        away: dict[int, str] = {}
        for item in items:
            shard = item if isinstance(item, int) else item.shard
            database = self.settings.routing.database(shard)
            if database in away:
                yield Failure(shard, away[database])
                continue
            try:
                yield compare.shard(item) if isinstance(item, int) else compare.again(item)
            except StoreUnavailable as error:
                away[database] = str(error)
                yield Failure(shard, str(error))
            except TocError as error:
                yield Failure(shard, str(error))
            except Exception as error:  # noqa: BLE001 - one broken table keeps no other from being compared
                said = str(error).strip().partition("\n")[0]
                yield Failure(shard, f"{type(error).__name__}: {said}")


class Reconciliation:
    """One run. `spark`: its session; None does all in this process. `actor`: in whose name it repairs."""

    def __init__(
        self,
        settings: Settings,
        spark: SparkSession | None,
        *,
        repair: bool,
        actor: str,
        clock: Clock | None = None,
        tell: Tell = lambda phase, done, of: None,
    ) -> None:
        self._settings, self._spark, self._repair, self._actor = settings, spark, repair, actor
        self._clock, self._tell = clock or SystemClock(), tell
        self.outcome = Outcome(
            began_ms=self._clock.wall_ms(),
            namespace=settings.namespace,
            databases=len(settings.databases),
            shards=settings.shards,
            engine="this process" if spark is None else str(spark.sparkContext.master),
            repairing=repair,
        )

    def run(self) -> Outcome:
        """Compares, looks again, repairs. Raises as `compare.opened`."""
        outcome = self.outcome
        with opened(self._settings, self._clock):
            pass  # the settings are those that the databases were set up with, or it raises
        with self._timed("compare"):
            first = self._all("comparing", self._in_turn())
        suspect = [compared for compared in first if compared.findings]
        # One that cannot be looked at again has no findings: once is not enough.
        still = {compared.shard: compared for compared in first if not compared.findings}
        if suspect:
            with self._timed("grace"):
                self._clock.sleep_s(self._settings.reconcile.grace_s)
            with self._timed("look"):
                for compared in self._all("looking again", suspect):
                    still[compared.shard] = compared
        outcome.compared = self._settings.shards - len({f.shard for f in outcome.failures})
        self._take(still.values())
        if self._repair and outcome.findings and not outcome.failures:
            with self._timed("repair"):
                self._mend()
        outcome.ended_ms = self._clock.wall_ms()
        return outcome

    def _in_turn(self) -> list[int]:
        """The shards, those of all databases by turns: so all are busy all the time."""
        routing = self._settings.routing
        return sorted(range(routing.shards), key=lambda s: (s % routing.tables_per_database, s))

    def _all(self, phase: str, items: Sequence[int | Compared]) -> list[Compared]:
        work = Comparing(self._settings, self._clock)
        self._tell(phase, 0, len(items))
        if self._spark is not None:
            from toc.reconcile.spark import spread  # noqa: PLC0415 - an extra

            answers = spread(self._spark, work, items, lambda done, of: self._tell(phase, done, of))
        else:
            answers = []
            with Compare.open(self._settings, self._clock) as compare:
                for answer in work.by(compare, items):
                    answers.append(answer)
                    self._tell(phase, len(answers), len(items))
        self.outcome.failures += [a for a in answers if isinstance(a, Failure)]
        return [answer for answer in answers if isinstance(answer, Compared)]

    def _take(self, all_compared: Iterable[Compared]) -> None:
        outcome = self.outcome
        for compared in sorted(all_compared, key=lambda c: c.shard):
            outcome.counts += compared.counts
            for on, seconds in compared.work.items():
                outcome.work[on] += seconds
            outcome.found += compared.found
            outcome.findings += compared.findings
        # The shard where it belongs calls it missing; the one where it stands has met it.
        elsewhere = {f.job_id for f in outcome.findings if f.kind is Disagreement.WRONG_SLOT}
        if elsewhere:
            kept = [
                f
                for f in outcome.findings
                if f.kind is not Disagreement.MISSING or f.job_id not in elsewhere
            ]
            outcome.found[Disagreement.MISSING] -= len(outcome.findings) - len(kept)
            outcome.findings = kept
        outcome.found = +outcome.found

    def _mend(self) -> None:
        """Repairs what is kept, in this process: it is throttled anyway."""
        outcome, settings = self.outcome, self._settings
        number = len(outcome.findings)
        self._tell("repairing", 0, number)
        with opened(settings, self._clock) as (databases, slots):
            name = Catalogue(databases).name
            repairs = Repairs(databases, slots, settings, name, self._clock, self._actor)
            try:
                for mend in repairs.mend(
                    outcome.findings, lambda done: self._tell("repairing", done, number)
                ):
                    outcome.mends.append(mend)
            except (StoreUnavailable, TimerUnavailable) as error:
                outcome.broken_off = str(error)
            except Exception as error:
                log.exception("repairing broke off")
                outcome.broken_off = f"{type(error).__name__}: {error}"

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            seconds = self.outcome.seconds
            seconds[phase] = seconds.get(phase, 0.0) + self._clock.monotonic_s() - began_s
