"""The watch: each node compares its shards one after the other, all day, with little load.

The protocol:

1. A shard is compared. Its disagreements are looked up again `grace_s` later; only those that are still there
count: they are logged, counted, and repaired if the settings say so.

2. The shard that was compared longest ago is next, so that a round over all of them takes `watch_s`. With
much to compare it takes longer: after each piece of work the watch rests, so that it works for `OWN_SHARE` of
the time, but no round takes more than `STRETCH` times `watch_s`; and so that all nodes together keep a
database, and Redis, busy for `SHARE` of the time, however long a round then takes.

3. A shard whose database, or Redis, does not answer is skipped until its next turn: nothing is counted or
repaired on incomplete data. The age of the oldest compare grows meanwhile.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from toc.domain.disagreements import Disagreement
from toc.errors import TocError
from toc.reconcile.compare import ShardComparer
from toc.reconcile.findings import Finding, RepairResult, ShardComparison
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.settings import Settings

log = logging.getLogger(__name__)

OWN_SHARE = 0.005  # share of the time that a node's watches may work: an idle node must stay idle
# A round takes at most so many times `watch_s`: a disagreement should be found within an hour.
STRETCH = 6.0
SHARE = 0.1  # share of the time that all nodes together may keep a database, or Redis, busy
REST_S_MAX = 600.0  # how long the watch rests after one slow piece of work, at most
IDLE_S = 60.0  # the wait of a watch without shards; `set_shards` ends it
WAITING_MAX = 8  # shards that wait for their recheck; no more are compared meanwhile
# Findings that are kept of each kind and shard; the next rounds find the others.
FINDINGS_MAX = 1000
PAGE_MAX = 5000  # rows decoded at once: more would delay the threads that run jobs
EXAMPLES = 3  # job ids in a log line

Repair = Callable[[Sequence[Finding]], Iterator[RepairResult]]
"""Repairs findings at a limited rate, as `Repairer.repair_findings`; the caller may close the iterator."""


class _PendingRecheck(NamedTuple):
    """A shard whose findings are looked up again, not before `at_s` by the monotonic clock."""

    at_s: float
    compared: ShardComparison


@dataclass(slots=True)
class _WatchedShard:
    """A shard of this node.

    seen_s: when it was last compared, or assigned to this node. tried_s: when its last compare began. left:
    the findings of the last compare that are not repaired.
    """

    seen_s: float
    tried_s: float = -math.inf
    left: Counter[Disagreement] = field(default_factory=Counter)


def limit_settings_for_watch(settings: Settings) -> Settings:
    """The settings with lower limits, for a compare that shares a process with handlers all day."""
    reconcile = settings.reconcile
    less = {
        "page": min(reconcile.page, PAGE_MAX),
        "findings_max": min(reconcile.findings_max, FINDINGS_MAX * settings.shards),
    }
    return settings.model_copy(update={"reconcile": reconcile.model_copy(update=less)})


class ShardWatch(Service):
    """Compares the shards of one database that this node owns; none until `set_shards`.

    `watches`: how many watches this node has, one per database: they share Redis and the node's processor.
    `repair`: None: disagreements are only counted.
    """

    def __init__(
        self,
        database: int,
        compare: ShardComparer,
        clock: Clock,
        *,
        watch_s: float,
        grace_s: float,
        repair: Repair | None = None,
        watches: int = 1,
    ) -> None:
        super().__init__(f"toc-watch-{database}")
        self._database, self._compare, self._clock = database, compare, clock
        self._watch_s, self._grace_s = watch_s, grace_s
        self._repair, self._watches = repair, watches
        self._new_shares: deque[tuple[Sequence[int], int]] = deque(maxlen=1)
        self._shards: dict[int, _WatchedShard] = {}
        self._nodes = 1
        self._rechecks: deque[_PendingRecheck] = deque()
        self._turn_s = clock.monotonic_s()  # when the last turn began
        self._rest_until_s = -math.inf
        self._label = f"database_{database}"
        # The age is computed when the metric is scraped, because it grows while nothing happens.
        metrics.WATCH_AGE.labels(self._label).set_function(lambda: self.oldest_compare_age_s)

    def set_shards(self, shards: Iterable[int], nodes: int) -> None:
        """The shards to compare from the next step on. `nodes`: how many share the database. Any thread."""
        self._new_shares.append((tuple(shards), nodes))
        self.wake()

    @property
    def oldest_compare_age_s(self) -> float:
        """The age of the oldest compare of any shard in seconds (0 without shards). Any thread."""
        now_s = self._clock.monotonic_s()
        return max((now_s - shard.seen_s for shard in list(self._shards.values())), default=0.0)

    @property
    def unrepaired_counts(self) -> Counter[Disagreement]:
        """The findings of the last compare of each shard, without those repaired. Any thread."""
        found: Counter[Disagreement] = Counter()
        for shard in list(self._shards.values()):
            found += shard.left
        return found

    def run_once(self) -> float:
        """Compares the rows of one shard with its reminders, or checks again what an earlier compare found.

        Returns the seconds until the next step.
        """
        self._apply_new_shards()
        wait_s = self._seconds_until_work()
        if wait_s > 0:
            return wait_s
        now_s = self._clock.monotonic_s()
        if self._rechecks and self._rechecks[0].at_s <= now_s:
            first = self._rechecks.popleft().compared
            self._skip_shard_on_error(first.shard, lambda: self._recheck_shard(first))
        else:
            waiting = {recheck.compared.shard for recheck in self._rechecks}
            free = self._shards.keys() - waiting
            number = min(free, key=lambda number: (self._shards[number].tried_s, number))
            self._turn_s = self._shards[number].tried_s = now_s
            self._skip_shard_on_error(number, lambda: self._compare_shard(number))
        return self._seconds_until_work()

    # ---- inside

    def _apply_new_shards(self) -> None:
        if not self._new_shares:
            return
        owned, self._nodes = self._new_shares.popleft()
        now_s = self._clock.monotonic_s()
        self._shards = {shard: self._shards.get(shard) or _WatchedShard(now_s) for shard in owned}
        self._rechecks = deque(
            recheck for recheck in self._rechecks if recheck.compared.shard in self._shards
        )
        self._set_gauges()

    def _seconds_until_work(self) -> float:
        """Seconds until there is something to do; 0: now."""
        at = [self._rechecks[0].at_s] if self._rechecks else []
        if len(self._rechecks) < min(len(self._shards), WAITING_MAX):
            at.append(self._turn_s + self._watch_s / len(self._shards))
        if not at:
            return IDLE_S
        return max(0.0, max(min(at), self._rest_until_s) - self._clock.monotonic_s())

    def _skip_shard_on_error(self, shard: int, work: Callable[[], None]) -> None:
        try:
            work()
        except TocError as error:
            text = "watch: shard %d is left out of this round: %s"
            self._log_throttle.warning(error.code, text, shard, error)

    def _compare_shard(self, shard: int) -> None:
        compared = self._run_and_schedule_rest(
            lambda: self._compare.compare_shard(shard, whole=False)
        )
        if compared.findings:
            at_s = self._clock.monotonic_s() + self._grace_s
            self._rechecks.append(_PendingRecheck(at_s, compared))
        else:
            self._record_result(compared)

    def _recheck_shard(self, first: ShardComparison) -> None:
        self._record_result(
            self._run_and_schedule_rest(lambda: self._compare.recheck_findings(first))
        )

    def _run_and_schedule_rest(self, work: Callable[[], ShardComparison]) -> ShardComparison:
        """Runs `work`, which loads the servers, and sets how long the watch rests afterwards."""
        began_s = self._clock.monotonic_s()
        try:
            return work()
        finally:
            now_s = self._clock.monotonic_s()
            self._rest_until_s = now_s + self._rest_duration_s(now_s - began_s)

    def _rest_duration_s(self, worked_s: float) -> float:
        busy_s = worked_s * self._watches
        own_s = min(busy_s / OWN_SHARE, STRETCH * self._watch_s / max(1, len(self._shards)))
        return min(REST_S_MAX, max(own_s, busy_s * self._nodes / SHARE) - worked_s)

    def _record_result(self, compared: ShardComparison) -> None:
        """Counts, logs and repairs the findings that were rechecked."""
        shard, findings = self._shards[compared.shard], compared.findings
        shard.seen_s, shard.left = self._clock.monotonic_s(), Counter(compared.found)
        metrics.SHARDS_COMPARED.inc()
        for kind, number in compared.found.items():
            metrics.DISAGREEMENTS.labels(kind).inc(number)
        self._set_gauges()
        _log_findings(compared)
        if self._repair is not None and findings:
            try:
                self._repair_findings(compared.shard, findings, self._repair)
            finally:
                self._set_gauges()

    def _repair_findings(self, number: int, findings: Sequence[Finding], repair: Repair) -> None:
        shard, done = self._shards[number], 0
        failed: dict[Disagreement, str] = {}
        try:
            for result in repair(findings):
                if result.done:
                    done += 1
                    shard.left[result.finding.kind] -= 1
                    metrics.REPAIRED.labels(result.finding.kind).inc()
                else:
                    failed.setdefault(result.finding.kind, result.how)
                if self.stopping:
                    break
        finally:
            log.warning("watch: shard %d: %d of %d are repaired", number, done, len(findings))
        for kind, how in failed.items():
            log.warning("watch: shard %d: %s is not repaired: %s", number, kind, how)

    def _set_gauges(self) -> None:
        left = self.unrepaired_counts
        for kind in Disagreement:
            metrics.DISAGREEMENTS_LEFT.labels(self._label, kind).set(left[kind])


def _log_findings(compared: ShardComparison) -> None:
    """Logs a line for each kind."""
    for kind, number in compared.found.items():
        found = (finding.job_id for finding in compared.findings if finding.kind is kind)
        ids = [str(job_id) for job_id in islice(found, EXAMPLES) if job_id]
        text, args = "watch: shard %d: %s: %d", [compared.shard, kind, number]
        if ids:
            text += ", such as job %s; `toc explain %s` shows more"
            args += [", ".join(ids), ids[0]]
        log.warning(text, *args)
