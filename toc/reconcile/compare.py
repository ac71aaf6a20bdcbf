"""The compare of one shard with its slots: one plain function, whoever calls it (Spark, a node, a test).

Slots and shards are cut by the same hash, so a shard and the slots that its rows belong in can be
compared alone, and nothing is shuffled. Both sides move while they are read: what does not pair off is
looked up at once, and again a grace later; only what still stands then counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from toc.domain.disagreements import Disagreement, Tolerances
from toc.errors import SettingsError
from toc.reconcile.findings import Compared, Finding
from toc.reconcile.looking import Looker, Suspects
from toc.reconcile.walking import Walk
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store.admission import admit
from toc.store.catalogue import Catalogue
from toc.store.comparing import Comparing
from toc.store.databases import Databases
from toc.timer.loader import read_period_s
from toc.timer.slots import Slots


@contextmanager
def opened(settings: Settings, clock: Clock) -> Iterator[tuple[Databases, Slots]]:
    """Both sides, connected to as they are used.

    Raises SettingsError where there is no Redis, SchemaMismatch where the databases were set up with
    other shards or slots (every job would look misplaced, and be moved there), and StoreUnavailable
    when none of them answers.
    """
    if not settings.has_timer:
        raise SettingsError("redis_url: is 'none': there is nothing to compare with")
    databases = Databases.of(settings, clock, pool_size=2)
    slots = Slots(
        settings.redis_url, settings.namespace, clock, timeout_s=settings.connect_timeout_s
    )
    try:
        admit(databases, Catalogue(databases), settings.facts)
        yield databases, slots
    finally:
        slots.close()
        databases.close()


class Compare:
    """Compares shards. Only reads. Every verb raises StoreUnavailable and TimerUnavailable.

    `name_of_type`: of a type's number; raises NotFound.
    """

    def __init__(
        self,
        databases: Databases,
        slots: Slots,
        settings: Settings,
        name_of_type: Callable[[int], str],
    ) -> None:
        self._rows, self._slots, self._settings = Comparing(databases), slots, settings
        self._clock = databases.clock
        timer, own = settings.timer, settings.reconcile
        seen_s = read_period_s(timer.horizon_s, timer.load_tick_s) + own.grace_s
        self._limits = Tolerances(
            near_ms=max(0, round((timer.horizon_s - seen_s) * 1000)),
            overdue_ms=round(settings.overdue_s * 1000),
            stuck_ms=round(settings.overdue_s * 1000),
        )
        self._looker = Looker(self._rows, slots, settings, self._limits, name_of_type)
        self._kept_max = settings.findings_kept

    @classmethod
    @contextmanager
    def open(cls, settings: Settings, clock: Clock) -> Iterator[Compare]:
        """With connections of its own. Raises as `opened`."""
        with opened(settings, clock) as (databases, slots):
            yield cls(databases, slots, settings, Catalogue(databases).name)

    def shard(self, shard: int, *, far: bool = True) -> Compared:
        """Compares a shard, and looks its suspects up. `far`: counts the rows beyond reach as well."""
        compared = Compared(shard)
        walk = Walk(
            self._rows,
            self._slots,
            self._settings,
            self._limits,
            self._looker,
            self._clock,
            compared,
        )
        walk.run()
        if far:
            compared.counts["far"] = self._rows.far(shard, walk.until_ms)
        self._judge_marks(compared)
        return compared

    def again(self, compared: Compared) -> Compared:
        """Looks at the findings again, and keeps those that still stand.

        Of those that were counted only, all or none: as most of the kept ones of their kind.
        """
        of_jobs = [f for f in compared.findings if f.kind is not Disagreement.MARK_AHEAD]
        suspects = Suspects()
        for finding in of_jobs:
            suspects[finding.topic, finding.slot].add(finding.job_id)
        kept = {(f.kind, f.job_id, f.topic, f.slot) for f in of_jobs}
        still = Compared(
            compared.shard, Counter(compared.counts), marks=compared.marks, work=compared.work
        )
        for looked in self._looker.look(compared.shard, suspects):
            for finding in looked.findings:
                if (finding.kind, finding.job_id, finding.topic, finding.slot) in kept:
                    still.keep(finding, self._kept_max)
        looked_at = Counter(finding.kind for finding in of_jobs)
        for kind, number in looked_at.items():
            if 2 * still.found[kind] > number:
                still.found[kind] += compared.found[kind] - number
        self._judge_marks(still)
        return still

    def _judge_marks(self, compared: Compared) -> None:
        """A single lost reminder is no fault of the mark; the loss of most that it covers is."""
        missing = [f for f in compared.findings if f.kind is Disagreement.MISSING]
        for mark in compared.marks:
            below = sum(
                finding.topic == mark.topic and (finding.due_ms or 0) <= mark.due_ms
                for finding in missing
            )
            covered = min(
                mark.covered, 2 * self._kept_max - 1
            )  # no more than are kept can be below
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
