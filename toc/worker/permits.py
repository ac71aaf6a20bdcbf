"""Permits: the one owner of the worker's capacity (I8, ADR 5, ADR 30).

Each job needs a permit on its whole way: a fetcher takes it, a batch carries it, the claim makes it a job in
flight (or gives it back), and the settle stage gives it back. Each database has an equal share of the limit
(biz_ids spread evenly by their hash), so that a database that hangs leaves the others their shares.

All counts change under one lock: whoever sees that the process is quiet has overlooked no job that moved
from one stage to the next meanwhile.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection

from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.worker.adaptive_limiter import AdaptiveLimiter
from toc.worker.hold import ProcessHold
from toc.worker.outages import DatabaseOutages

STALLED_S = 1.0  # a database whose share is full, and of which no job ends for so long, is stalled


class Permits:
    """Thread-safe. Implements `runtime.batch.PermitSource`.

    `waiting()`: claimed jobs without a thread. `stuck()`: handlers beyond their timeout.
    """

    def __init__(
        self,
        clock: Clock,
        databases: int,
        limiter: AdaptiveLimiter,
        waiting: Callable[[], int],
        stuck: Callable[[], int],
    ) -> None:
        self._clock, self._databases, self.limiter = clock, databases, limiter
        self._waiting, self._stuck = waiting, stuck
        self.hold, self.outages = ProcessHold(clock), DatabaseOutages(clock)
        self.closed = False
        """Set when the worker stops: no permit is given any more, and no handler starts."""
        self._lock = threading.Lock()
        self._fetched: Counter[int] = Counter()  # carried by fetchers and batches, by database
        self._in_flight: Counter[int] = Counter()  # carried by jobs, by database
        self._ended = 0  # of those in flight: their handlers have ended
        self._somebody_was_refused = False  # listeners must be called
        # By database: since when its share is full and none of its permits has come back.
        self._stalled_since_s: dict[int, float] = {}
        self._listeners: list[Callable[[], None]] = []

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when there are permits again after one was refused."""
        self._listeners.append(listener)

    # ---- fetch

    def take(self, database: int, wanted: int) -> int:
        """See `PermitSource`."""
        return self.take_in_each([database], wanted)[0]

    def take_in_each(self, databases: Collection[int], wanted: int) -> tuple[int, frozenset[int]]:
        """See `PermitSource`. Gives only so many that no job waits long for a thread (I8).

        A database that has not answered yet is tried by one batch at a time.
        """
        if self.closed:
            return 0, frozenset()
        with self._lock:
            self.limiter.adapt(self._waiting())
            now_s, least, open_ = self._clock.monotonic_s(), wanted, set[int]()
            for database in databases:
                if self._is_out(database):
                    continue
                free = self._count_free(database)
                if free > 0:
                    open_.add(database)
                    least = min(least, free)
                    continue
                since_s = self._stalled_since_s.setdefault(database, now_s)
                self.limiter.was_reached = self._somebody_was_refused = True
                if now_s - since_s < STALLED_S:
                    return 0, frozenset()
            given = self._give(open_, least) if open_ else 0
            return given, frozenset(open_ if given else ())

    def take_always(self, database: int, permits: int) -> bool:
        """Takes permits even if there are none left; False while the process is held."""
        with self._lock:
            return self._give([database], permits) > 0

    def give_back(self, database: int, permits: int) -> None:
        """See `PermitSource`."""
        # Who was refused gives nothing back: told of permits, it would ask again at once.
        if permits:
            self._move(database, fetched=-permits)

    # ---- claim to settle

    def add_in_flight(self, database: int, jobs: int, permits: int) -> None:
        """Jobs were claimed: from here they carry the permits. `permits`: those that their batch carried."""
        self._move(database, fetched=-permits, in_flight=jobs)

    def count_ended(self) -> None:
        """The handler of a job in flight has ended, or will not start: its outcome waits to be settled."""
        with self._lock:
            self._ended += 1

    def remove_in_flight(self, database: int, jobs: int) -> None:
        """Jobs were settled, or given up: their permits come back. Each was counted as ended."""
        self._move(database, in_flight=-jobs, ended=-jobs)

    def halve_limit(self) -> None:
        """Halves the limit, because jobs wait too long for a thread."""
        with self._lock:
            self.limiter.halve()

    # ---- questions

    @property
    def in_flight(self) -> int:
        """Jobs claimed and not settled."""
        return sum(self._in_flight.values())

    @property
    def reserved(self) -> int:
        """Permits that fetchers and batches carry."""
        return sum(self._fetched.values())

    @property
    def ended(self) -> int:
        """Jobs whose outcome waits to be settled."""
        return self._ended

    @property
    def is_quiet(self) -> bool:
        """Whether nothing runs except stuck handlers, and nothing is about to be claimed.

        Jobs that only wait to be settled do not count: if the process dies now, it interrupts no handler.
        """
        with self._lock:
            busy = self.reserved + self.in_flight - self._ended
        # Asked afterwards: a stuck handler that ends meanwhile is counted as running, never overlooked.
        return busy <= self._stuck()

    # ---- inside

    def _give(self, databases: Collection[int], permits: int) -> int:
        """Gives so many in each database, or none while the process is held. The caller holds the lock.

        A hold begins, and then waits until `is_quiet`: it meets the permits that were given before.
        """
        if self.hold.is_active:
            return 0
        for database in databases:
            self._fetched[database] += permits
        return permits

    def _move(self, database: int, *, fetched: int = 0, in_flight: int = 0, ended: int = 0) -> None:
        """Changes the counts in one step."""
        with self._lock:
            self._fetched[database] += fetched
            self._in_flight[database] += in_flight
            self._ended += ended
            if in_flight > 0 and self._in_flight[database] >= self._share_per_database:
                self.limiter.was_reached = True
            self._stalled_since_s.pop(database, None)
            metrics.JOBS_IN_FLIGHT.set(self.in_flight)
        if self._somebody_was_refused:
            self._somebody_was_refused = False
            for listener in self._listeners:
                listener()

    def _is_out(self, database: int) -> bool:
        return self.outages.is_down(database) or (
            self.outages.is_away(database) and self._fetched[database] > 0
        )

    def _count_free(self, database: int) -> int:
        return self._share_per_database - self._in_flight[database] - self._fetched[database]

    @property
    def _share_per_database(self) -> int:
        return -(-self.limiter.limit // self._databases)
