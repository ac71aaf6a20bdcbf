"""The compare in between: each node compares its shards one after the other, all day, in small sips.

The protocol:

1. A shard is compared. What disagrees there waits for `grace_s`, and is looked up again; only what
   still stands then counts: it is logged, counted, and repaired where the settings say so.
2. The shard that was looked at longest ago is next, so that a round over all of them takes `watch_s`.
   Where there is much to compare it takes longer: after each piece of work the watch rests, such that it
   works for `OWN_SHARE` of the time, but for that no round takes more than `STRETCH` times `watch_s`; and
   such that all nodes together keep a database, and Redis, busy for `SHARE` of the time, however long
   a round takes then.
3. A shard whose database, or Redis, does not answer is left out until its next turn: nothing is
   counted, and nothing repaired, on half knowledge. The age of the oldest look grows meanwhile.
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
from toc.errors import SchemaMismatch, StoreUnavailable, TimerUnavailable
from toc.reconcile.compare import Compare
from toc.reconcile.findings import Compared, Finding, Mend
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.settings import Settings

log = logging.getLogger(__name__)

OWN_SHARE = 0.005  # of the time that the watches of a node work: else idle nodes would not be idle
STRETCH = 6.0  # what is wrong must be found within an hour where it can be
SHARE = 0.1  # of the time that all nodes together may keep a database, or Redis, busy
REST_S_MAX = 600.0  # after one slow piece of work
IDLE_S = 60.0  # without shards; `own` wakes it
WAITING_MAX = 8  # shards that wait for their second look; no more are compared meanwhile
FINDINGS_MAX = 1000  # kept of each kind and shard; what is more is found in the next rounds
PAGE_MAX = 5000  # rows decoded at once: no longer does it hold up the threads that fire
EXAMPLES = 3

Repair = Callable[[Sequence[Finding]], Iterator[Mend]]
"""Mends findings one after the other, throttled; may be closed in the middle. Raises as the verbs do."""


class _Second(NamedTuple):
    """A second look, not before `at_s` by the monotonic clock."""

    at_s: float
    compared: Compared


@dataclass(slots=True)
class _Shard:
    """tried_s: when its turn was last; seen_s: when it was last compared, at first when it was taken on."""

    seen_s: float
    tried_s: float = -math.inf
    left: Counter[Disagreement] = field(default_factory=Counter)


def gentle(settings: Settings) -> Settings:
    """The settings with bounds for a compare beside handlers: in their process, and all day."""
    own = settings.reconcile
    less = {
        "page": min(own.page, PAGE_MAX),
        "findings_max": min(own.findings_max, FINDINGS_MAX * settings.shards),
    }
    return settings.model_copy(update={"reconcile": own.model_copy(update=less)})


class Watch(Service):
    """Compares the shards of one database that it owns; none until `own` says which.

    `watches`: how many a node has, one per database: they share Redis and the node's processor.
    `repair`: None only counts.
    """

    def __init__(
        self,
        database: int,
        compare: Compare,
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
        self._told: deque[tuple[Sequence[int], int]] = deque(maxlen=1)
        self._shards: dict[int, _Shard] = {}
        self._nodes = 1
        self._seconds: deque[_Second] = deque()
        self._turn_s = clock.monotonic_s()  # when the last turn began
        self._rest_until_s = -math.inf
        self._label = f"database_{database}"
        # Read when it is scraped: it grows while nothing is done.
        metrics.WATCH_AGE.labels(self._label).set_function(lambda: self.age_s)

    def own(self, shards: Iterable[int], nodes: int) -> None:
        """From the next step on it compares these. `nodes`: how many share the database. Any thread."""
        self._told.append((tuple(shards), nodes))
        self.wake()

    @property
    def age_s(self) -> float:
        """Seconds since every shard had been compared (0 without any). Any thread."""
        now_s = self._clock.monotonic_s()
        return max((now_s - shard.seen_s for shard in list(self._shards.values())), default=0.0)

    @property
    def left(self) -> Counter[Disagreement]:
        """What the last look at each shard found, without what was repaired. Any thread."""
        found: Counter[Disagreement] = Counter()
        for shard in list(self._shards.values()):
            found += shard.left
        return found

    def run_once(self) -> float:
        """One shard, or one second look. Returns the seconds until the next."""
        self._take_in()
        wait_s = self._wait_s()
        if wait_s > 0:
            return wait_s
        now_s = self._clock.monotonic_s()
        if self._seconds and self._seconds[0].at_s <= now_s:
            first = self._seconds.popleft().compared
            self._left_out_if_away(first.shard, lambda: self._look_again(first))
        else:
            waiting = {second.compared.shard for second in self._seconds}
            free = self._shards.keys() - waiting
            number = min(free, key=lambda number: (self._shards[number].tried_s, number))
            self._turn_s = self._shards[number].tried_s = now_s
            self._left_out_if_away(number, lambda: self._look(number))
        return self._wait_s()

    # ---- inside

    def _take_in(self) -> None:
        if not self._told:
            return
        owned, self._nodes = self._told.popleft()
        now_s = self._clock.monotonic_s()
        self._shards = {shard: self._shards.get(shard) or _Shard(now_s) for shard in owned}
        self._seconds = deque(
            second for second in self._seconds if second.compared.shard in self._shards
        )
        self._set_gauges()

    def _wait_s(self) -> float:
        """Until there is something to do; 0: now."""
        at = [self._seconds[0].at_s] if self._seconds else []
        if len(self._seconds) < min(len(self._shards), WAITING_MAX):
            at.append(self._turn_s + self._watch_s / len(self._shards))
        if not at:
            return IDLE_S
        return max(0.0, max(min(at), self._rest_until_s) - self._clock.monotonic_s())

    def _left_out_if_away(self, shard: int, work: Callable[[], None]) -> None:
        try:
            work()
        except (StoreUnavailable, TimerUnavailable, SchemaMismatch) as error:
            text = "watch: shard %d is left out of this round: %s"
            self._seldom.warning(error.code, text, shard, error)

    def _look(self, shard: int) -> None:
        compared = self._timed(lambda: self._compare.shard(shard, far=False))
        if compared.findings:
            at_s = self._clock.monotonic_s() + self._grace_s
            self._seconds.append(_Second(at_s, compared))
        else:
            self._conclude(compared)

    def _look_again(self, first: Compared) -> None:
        self._conclude(self._timed(lambda: self._compare.again(first)))

    def _timed(self, work: Callable[[], Compared]) -> Compared:
        """Work that the servers have, and the rest after it."""
        began_s = self._clock.monotonic_s()
        try:
            return work()
        finally:
            now_s = self._clock.monotonic_s()
            self._rest_until_s = now_s + self._rest_s(now_s - began_s)

    def _rest_s(self, worked_s: float) -> float:
        busy_s = worked_s * self._watches
        own_s = min(busy_s / OWN_SHARE, STRETCH * self._watch_s / max(1, len(self._shards)))
        return min(REST_S_MAX, max(own_s, busy_s * self._nodes / SHARE) - worked_s)

    def _conclude(self, compared: Compared) -> None:
        """What was found now counts."""
        shard, findings = self._shards[compared.shard], compared.findings
        shard.seen_s, shard.left = self._clock.monotonic_s(), Counter(compared.found)
        metrics.SHARDS_COMPARED.inc()
        for kind, number in compared.found.items():
            metrics.DISAGREEMENTS.labels(kind).inc(number)
        self._set_gauges()
        _tell(compared)
        if self._repair is not None and findings:
            try:
                self._mend(compared.shard, findings, self._repair)
            finally:
                self._set_gauges()

    def _mend(self, number: int, findings: Sequence[Finding], repair: Repair) -> None:
        shard, done = self._shards[number], 0
        failed: dict[Disagreement, str] = {}
        try:
            for mend in repair(findings):
                if mend.done:
                    done += 1
                    shard.left[mend.finding.kind] -= 1
                    metrics.REPAIRED.labels(mend.finding.kind).inc()
                else:
                    failed.setdefault(mend.finding.kind, mend.how)
                if self.stopping:
                    break
        finally:
            log.warning("watch: shard %d: %d of %d are repaired", number, done, len(findings))
        for kind, how in failed.items():
            log.warning("watch: shard %d: %s is not repaired: %s", number, kind, how)

    def _set_gauges(self) -> None:
        left = self.left
        for kind in Disagreement:
            metrics.DISAGREEMENTS_LEFT.labels(self._label, kind).set(left[kind])


def _tell(compared: Compared) -> None:
    """A line for each kind."""
    for kind, number in compared.found.items():
        found = (finding.job_id for finding in compared.findings if finding.kind is kind)
        ids = [str(job_id) for job_id in islice(found, EXAMPLES) if job_id]
        text, args = "watch: shard %d: %s: %d", [compared.shard, kind, number]
        if ids:
            text += ", as %s; `toc explain %s` tells more"
            args += [", ".join(ids), ids[0]]
        log.warning(text, *args)
