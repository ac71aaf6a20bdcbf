"""Limits the jobs in flight: a bounded (I8), adaptive number, divided equally among the databases.

The limit doubles while all claimed jobs start at once, and halves when jobs wait for a thread or when the
limit was not reached for a while: a worker claims no more than it can start soon. Each database has an
equal share (biz_ids spread evenly by their hash), so that a database that hangs, with its reservations and
unsettled jobs, leaves the others their shares.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection

from toc.runtime.clock import Clock

KEEP_LIMIT_S = 5.0  # a limit that was not reached for so long is halved
STALLED_S = 1.0  # a database whose share is full, and of which no job ends for so long, is stalled


class AdaptiveLimiter:
    """Thread-safe. `limit_min`: where the limit starts, and its lower bound; `limit_max`: its upper bound."""

    def __init__(self, clock: Clock, databases: int, *, limit_min: int, limit_max: int) -> None:
        self._clock, self._databases = clock, databases
        self._limit_min, self._limit_max = min(limit_min, limit_max), limit_max
        self._lock = threading.Lock()
        self._limit = self._limit_min
        self._used: Counter[int] = Counter()  # in flight, by database
        self._reserved: Counter[int] = Counter()  # for offers under way, by database
        self._limit_was_reached = False
        self._somebody_was_refused = False  # a reservation found no room: listeners must be called
        self._reached_s = clock.monotonic_s()
        # By database: since when its share is full and none of its jobs has ended.
        self._stalled_since_s: dict[int, float] = {}
        self._listeners: list[Callable[[], None]] = []

    def add_room_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when there is room again after `reserve` said that there is none."""
        self._listeners.append(listener)

    def reserve(self, database: int, wanted: int, *, waiting: int) -> int:
        """Reserves up to `wanted`; returns how many. `waiting`: claimed jobs without a thread."""
        with self._lock:
            self._adapt_limit(waiting)
            free = self._share_per_database - self._used[database] - self._reserved[database]
            if free <= 0:
                self._limit_was_reached = self._somebody_was_refused = True
                return 0
            granted = min(wanted, free)
            self._reserved[database] += granted
            return granted

    def reserve_in_each(
        self, databases: Collection[int], wanted: int, *, waiting: int
    ) -> tuple[int, frozenset[int]]:
        """Reserves up to `wanted` in each of the databases except the stalled ones.

        Returns how many in each, and in which databases: 0 while one of them is full but not stalled, since
        a popped id may belong to any of them.
        """
        with self._lock:
            self._adapt_limit(waiting)
            now_s, least, open_ = self._clock.monotonic_s(), wanted, set[int]()
            for database in databases:
                free = self._share_per_database - self._used[database] - self._reserved[database]
                if free <= 0:
                    since_s = self._stalled_since_s.setdefault(database, now_s)
                    self._limit_was_reached = self._somebody_was_refused = True
                    if now_s - since_s < STALLED_S:
                        return 0, frozenset()
                    continue
                open_.add(database)
                least = min(least, free)
            if not open_:
                return 0, frozenset()
            for database in open_:
                self._reserved[database] += least
            return least, frozenset(open_)

    def _adapt_limit(self, waiting: int) -> None:
        """Doubles or halves the limit. The caller holds the lock."""
        now_s = self._clock.monotonic_s()
        if self._limit_was_reached and waiting == 0:
            self._limit_was_reached = False
            self._reached_s = now_s
            self._limit = min(self._limit_max, self._limit * 2)
        elif now_s - self._reached_s > KEEP_LIMIT_S:
            self._reached_s = now_s
            self._limit = max(self._limit_min, self._limit // 2)

    def reserve_always(self, database: int, jobs: int) -> None:
        """Reserves room even if there is none; end it with `release`."""
        with self._lock:
            self._reserved[database] += jobs

    def release(self, database: int, taken: int) -> None:
        """Ends a reservation."""
        if (
            not taken
        ):  # who was refused gives nothing back: told of room, he would ask again at once
            return
        with self._lock:
            self._reserved[database] -= taken
            self._stalled_since_s.pop(database, None)
        self._notify_listeners()

    def add_in_flight(self, database: int, jobs: int) -> None:
        """Counts jobs that were claimed."""
        with self._lock:
            self._used[database] += jobs
            self._limit_was_reached = (
                self._limit_was_reached or self._used[database] >= self._share_per_database
            )

    def remove_in_flight(self, database: int, jobs: int) -> None:
        """Counts jobs that are settled."""
        with self._lock:
            self._used[database] -= jobs
            self._stalled_since_s.pop(database, None)
        self._notify_listeners()

    def halve_limit(self) -> None:
        """Halves the limit, because jobs wait too long for a thread."""
        with self._lock:
            self._limit = max(self._limit_min, self._limit // 2)

    @property
    def in_flight(self) -> int:
        """Jobs claimed and not settled."""
        return sum(self._used.values())

    def is_reserved(self, database: int) -> bool:
        """Whether an offer of the database's ids is under way, or about to begin."""
        return self._reserved[database] > 0

    @property
    def reserved(self) -> int:
        return sum(self._reserved.values())

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def _share_per_database(self) -> int:
        return -(-self._limit // self._databases)

    def _notify_listeners(self) -> None:
        if self._somebody_was_refused:
            self._somebody_was_refused = False
            for listener in self._listeners:
                listener()
