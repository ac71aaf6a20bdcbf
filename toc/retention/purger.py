"""The purger's service: one page, one small transaction, and a rest that is longer than the work."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from toc.errors import NotFound
from toc.retention.replicas import Replicas
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.settings import Days, RetentionSettings
from toc.store.archived import Standing
from toc.store.databases import Database
from toc.store.purges import OldRow, Purges

log = logging.getLogger(__name__)

DAY_MS = 86_400_000
LAG_LOOK_S = 1.0  # how old the word of a replica may be, and the pause while one lags
REST_S_MAX = 60.0  # after one slow page


class Purger(Service):
    """Purges the shards of one database that it owns; none until `own` says which.

    It keeps the database busy for `share` of the time at most, all nodes together: after each page
    it rests accordingly. `type_name`: of a type number, for settings by type. `archives`: jobs are
    deleted only when they are in the archive. The database knows how far that is, and once it does it
    counts more than `archives`: settings may differ between nodes.
    """

    def __init__(
        self,
        database: Database,
        purges: Purges,
        settings: RetentionSettings,
        type_name: Callable[[int], str],
        replicas: Replicas,
        clock: Clock,
        *,
        archives: bool,
    ) -> None:
        super().__init__(f"toc-purger-{database.index}")
        self._database, self._purges, self._settings = database, purges, settings
        self._type_name, self._replicas, self._clock = type_name, replicas, clock
        self._archives = archives
        self._told: deque[tuple[Sequence[int], int]] = deque(maxlen=1)
        self._owned: Sequence[int] = ()
        self._nodes = 1
        # Of the present pass: what is left to do, and where it goes on.
        self._shards: deque[int] = deque()
        self._after = 0
        self._events_left = False
        self._now_ms = 0
        self._deleted = self._held = 0
        self._archived: Standing | None = None
        self._began_s: float | None = None

    def own(self, shards: Sequence[int], nodes: int) -> None:
        """From the next step on it purges these. `nodes`: how many share the database. Any thread."""
        self._told.append((tuple(shards), nodes))
        self.wake()

    def run_once(self) -> float:
        """One page. Returns the seconds until the next one."""
        if self._told:
            self._owned, self._nodes = self._told.popleft()
            self._shards = deque(shard for shard in self._shards if shard in self._owned)
        if not (self._shards or self._events_left):
            wait_s = self._wait_for_pass()
            if wait_s > 0:
                return wait_s
            self._begin()
        if self._replicas.lag_s > self._settings.lag_s_max:
            return LAG_LOOK_S
        asked_s = self._clock.monotonic_s()
        if self._shards:
            self._purge_page(self._shards[0])
        else:
            self._purge_events()
        took_s = self._clock.monotonic_s() - asked_s
        if not (self._shards or self._events_left):
            self._tell()
        return min(REST_S_MAX, took_s * (self._nodes / self._settings.share - 1))

    def _wait_for_pass(self) -> float:
        if self._began_s is None:
            return 0.0
        return self._began_s + self._settings.pass_s - self._clock.monotonic_s()

    def _begin(self) -> None:
        self._now_ms = self._database.now_ms()
        self._archived = self._purges.archived(self._database)
        self._began_s = self._clock.monotonic_s()
        self._shards, self._after, self._deleted, self._held = deque(self._owned), 0, 0, 0
        # Events are the database's, not a shard's: whoever has its first shard purges them.
        self._events_left = self._database.shards[0] in self._owned

    def _purge_page(self, shard: int) -> None:
        limit = self._settings.page
        made_before_ms = self._before_ms(self._settings.days_min)
        page = self._purges.page(shard, self._after, made_before_ms, limit)
        old = [
            row for row in page if row.ended and row.changed_ms < self._before_ms(self._days(row))
        ]
        gone = [row for row in old if self._may_go(row)]
        self._held += len(old) - len(gone)
        if gone:
            deleted = self._purges.delete(shard, gone)
            metrics.PURGED.labels("job").inc(deleted)
            self._deleted += deleted
        if len(page) < limit:
            self._shards.popleft()
            self._after = 0
        else:
            self._after = page[-1].job_id

    def _purge_events(self) -> None:
        before_ms = self._before_ms(self._settings.event_days)
        deleted, after = self._purges.delete_events(
            self._database, self._after, before_ms, self._now_ms, self._settings.page
        )
        metrics.PURGED.labels("event").inc(deleted)
        self._deleted += deleted
        self._events_left, self._after = after is not None, after or 0

    def _may_go(self, row: OldRow) -> bool:
        if self._archived is None:
            return not self._archives
        return self._archived.covers(row.job_id, row.changed_ms)

    def _tell(self) -> None:
        if self._deleted:
            log.info("purged %d rows of database %d", self._deleted, self._database.index)
        if self._held:
            log.warning(
                "database %d: %d jobs are old enough to go and not in the archive, which is %s",
                self._database.index,
                self._held,
                f"until {self._archived}" if self._archived is not None else "empty",
            )

    def _days(self, row: OldRow) -> Days:
        if row.dead:
            return self._settings.dead_days
        try:
            return self._settings.types.get(self._type_name(row.type_no), self._settings.days)
        except NotFound:  # a number that other hands have written
            return self._settings.days

    def _before_ms(self, days: Days) -> int:
        """The moment so many days ago, in ms since 1970; for "none" one before all jobs."""
        return 0 if days == "none" else max(0, self._now_ms - round(days * DAY_MS))
