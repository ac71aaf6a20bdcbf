"""Estimates what is due, some shards at a time, while somebody looks, once for all viewers."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import replace

from toc.center.pause_verbs import PauseVerbs
from toc.dashboard.due_outlook import (
    DueOutlook,
    RecurringDue,
    TypeOwner,
    merge_estimates,
    read_occurrences,
    shares_of_types,
)
from toc.dashboard.forecast_view import ForecastViews
from toc.dashboard.watched_reader import WatchedReader
from toc.domain.due_grid import DueGrid, make_grid
from toc.errors import NotFound, TimerUnavailable, TocError
from toc.runtime.clock import Clock
from toc.runtime.settings import Settings
from toc.store.biz_types import BizTypeCache
from toc.store.databases import Databases
from toc.store.due_estimates import DueEstimate, DueEstimator
from toc.store.recurring_rows import select_rows
from toc.timer.activity import DAY_MINUTES, ActivityReader, ActivityStore, highest_per_minute
from toc.timer.reminders import Reminders

log = logging.getLogger(__name__)

ROUND_S, FIRST_ROUND_S = (
    10.0,
    0.2,
)  # the pause after a round; the shorter one until each shard was read once
ROUNDS = 6  # in which all shards are read, if they are at most ROUNDS * SHARDS_MAX
SHARDS_MIN, SHARDS_MAX = 8, 64  # that are read in a round
FIRST_WAIT_S = 0.25  # the page must be there at once; it refreshes itself
OLD_MS = 600_000  # an older estimate of a shard does not count any more
RECURRING_S = 120.0  # the rules are read again after that
ACTIVITY_S = 60.0  # how many jobs were done is read again after that
SCHEDULES_MAX = 1000  # of a database


class DueReader(WatchedReader[DueOutlook]):
    """Has the newest DueOutlook. Its thread starts with a visit, and ends when nobody looks any more."""

    def __init__(self, settings: Settings, clock: Clock, round_s: float = ROUND_S) -> None:
        # A silent database must not hold up the others for longer than it takes to connect.
        read_s = min(settings.read_timeout_s, settings.connect_timeout_s)
        self._settings = settings.model_copy(update={"read_timeout_s": read_s})
        super().__init__("toc-forecast", clock, self._settings.read_timeout_s)
        self._round_s = round_s
        self.views = ForecastViews()

    def look(self, wait_s: float = FIRST_WAIT_S) -> DueOutlook | None:
        """The newest outlook; waits for the first one. None: it did not come in time. Blocks."""
        return self.wait_for_news(wait_s)

    def read_until_over(self) -> None:
        with ExitStack() as used:
            databases = Databases.from_settings(self._settings, self._clock, pool_size=2)
            used.enter_context(closing(databases))
            rounds = DueRounds(self._settings, databases)
            if self._settings.has_timer:
                redis = Reminders.from_settings(self._settings, self._clock)
                used.enter_context(closing(redis))
                rounds.read_activity_from(redis)
            while not self.is_over():
                is_first = self._run_round(rounds) and not rounds.is_complete
                self._stop.wait(FIRST_ROUND_S if is_first else self._round_s)

    def _run_round(self, rounds: DueRounds) -> bool:
        """Publishes what a round has found; False: it failed."""
        try:
            found = rounds.run_once()
        except Exception:
            # What was read before stays, and the page tells how old it is.
            log.exception("the dashboard cannot read what is due")
            return False
        self.publish(found)
        return True


class DueRounds:
    """Reads some shards in each round, in turn, and keeps the newest estimate of each shard."""

    def __init__(
        self, settings: Settings, databases: Databases, shards_per_round: int | None = None
    ) -> None:
        self._databases, self._clock = databases, databases.clock
        self._estimator = DueEstimator(databases)
        self._types = BizTypeCache(databases)
        self._pauses = PauseVerbs(settings, databases, "dashboard")
        self._shards = [shard for database in databases for shard in database.shards]
        usual = min(SHARDS_MAX, max(SHARDS_MIN, -(-len(self._shards) // ROUNDS)))
        self._per_round = shards_per_round or usual
        self._next = 0
        self._estimates: dict[int, tuple[int, DueEstimate]] = {}
        self._silent: set[str] = set()
        self._recurring: RecurringDue | None = None
        self._recurring_s = float("-inf")
        self._namespace = settings.namespace
        self._activity: ActivityReader | None = None
        self._activity_s = float("-inf")
        self._done_per_min: Mapping[str, int] = {}

    def read_activity_from(self, redis: Reminders) -> None:
        """Reads from now on how many jobs were done, too."""
        self._activity = ActivityReader(ActivityStore(redis, self._namespace))

    @property
    def is_complete(self) -> bool:
        """Whether each shard was asked once."""
        return self._next >= len(self._shards)

    def run_once(self) -> DueOutlook:
        """Reads the next shards. Raises StoreUnavailable if no database answers."""
        now_ms = self._databases.now_ms()
        grid = make_grid(now_ms)
        self._read_shards(grid, now_ms)
        self._forget_old_estimates(now_ms)
        return self._merge(grid, now_ms, self._read_recurring(grid))

    def _read_shards(self, grid: DueGrid, now_ms: int) -> None:
        """Reads the shards whose turn it is. A database that does not answer is asked once in a round."""
        failed = set[str]()
        shards, turn = self._shards, self._next // len(self._shards)
        for place in range(self._next, self._next + min(self._per_round, len(shards))):
            shard = shards[place % len(shards)]
            name = f"database_{self._databases.routing.database_index(shard)}"
            if name in failed:
                continue
            try:
                estimate = self._estimator.estimate_due(shard, grid, turn)
            except TocError as error:
                log.debug("no forecast of shard %d: %s", shard, error)
                failed.add(name)
                continue
            self._silent.discard(name)
            self._estimates[shard] = now_ms, estimate
        self._silent |= failed
        self._next += self._per_round

    def _forget_old_estimates(self, now_ms: int) -> None:
        for shard, (read_ms, _) in list(self._estimates.items()):
            if now_ms - read_ms > OLD_MS:
                del self._estimates[shard]

    def _read_recurring(self, grid: DueGrid) -> RecurringDue:
        now_s = self._clock.monotonic_s()
        if self._recurring is not None and now_s - self._recurring_s < RECURRING_S:
            return self._recurring
        rows, more = [], 0
        for database in self._databases:
            try:
                found = select_rows(database, limit=SCHEDULES_MAX + 1)
            except TocError:
                continue  # its shards are missing as well, which the page says
            rows += found[:SCHEDULES_MAX]
            more += len(found) > SCHEDULES_MAX
        due = read_occurrences(rows, grid)
        self._recurring, self._recurring_s = replace(due, left_out=due.left_out + more), now_s
        return self._recurring

    def _read_most_done(self) -> Mapping[str, int]:
        """The most jobs of each type that were done in a minute; what is known, if Redis does not answer."""
        now_s = self._clock.monotonic_s()
        is_due = self.is_complete and now_s - self._activity_s >= ACTIVITY_S
        if self._activity is not None and is_due:
            self._activity_s = now_s
            with suppress(TimerUnavailable):
                *full, _ = self._activity.read_last(DAY_MINUTES)
                self._done_per_min = highest_per_minute(full)
        return self._done_per_min

    def _merge(self, grid: DueGrid, now_ms: int, recurring: RecurringDue) -> DueOutlook:
        read = [estimate for _, estimate in self._estimates.values()]
        counts, samples = merge_estimates(grid, read, self._name_of)
        scale = len(self._shards) / len(read) if read else 0.0
        by_owner: dict[TypeOwner, list[float]] = defaultdict(lambda: [0.0] * len(grid.edges_ms))
        for owner, numbers in shares_of_types(grid, counts, samples).items():
            by_owner[owner] = [number * scale for number in numbers]
        coming = 0.0
        for owner, made in recurring.by_owner.items():
            moved = recurring.grid.moved(made, grid)
            coming += sum(moved)
            by_owner[owner] = [sum(both) for both in zip(by_owner[owner], moved, strict=True)]
        return DueOutlook(
            taken_ms=now_ms,
            grid=grid,
            by_owner=dict(by_owner),
            shards_read=len(read),
            shards=len(self._shards),
            oldest_ms=min((read_ms for read_ms, _ in self._estimates.values()), default=now_ms),
            counted=float(sum(each.counted for each in read)),
            estimated=sum(counts) * scale,
            sampled=sum(rows.total() for rows in samples.values()),
            known_ms=min((each.known_ms for each in read), default=grid.end_ms),
            recurring=coming,
            left_out=recurring.left_out,
            silent=sorted(self._silent),
            pauses=self._pauses.list_pauses(),
            done_per_min=self._read_most_done(),
        )

    def _name_of(self, shard: int, type_no: int) -> str:
        try:
            return self._types.find_name(type_no, self._databases.database_of_shard(shard))
        except NotFound:
            return f"#{type_no}"
