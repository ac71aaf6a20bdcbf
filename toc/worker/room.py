"""How many jobs may be in flight: bounded (I8), adaptive, and shared out among the databases.

The limit doubles while everything that was claimed is started at once, and halves when jobs wait for a
thread or when so much is not needed: a worker claims no more than it can start soon. Each database
has an equal share of it (biz_ids spread evenly by their hash), so that one that hangs, with what was
promised to it and what waits to be settled in it, leaves the others theirs.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from toc.runtime.clock import Clock

KEPT_S = 5.0  # a limit that was not reached for so long is halved


class Room:
    """Thread-safe. `least` is where the limit starts and ends, `most` is its bound."""

    def __init__(self, clock: Clock, databases: int, *, least: int, most: int) -> None:
        self._clock, self._databases = clock, databases
        self._least, self._most = min(least, most), most
        self._lock = threading.Lock()
        self._limit = self._least
        self._used: Counter[int] = Counter()  # in flight, by database
        self._reserved: Counter[int] = Counter()  # promised to offers under way
        self._full = False  # the limit was reached
        self._refused = False  # somebody was told that there is no room
        self._full_s = clock.monotonic_s()
        self._listeners: list[Callable[[], None]] = []

    def on_room(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when there is room again after `take` said that there is none."""
        self._listeners.append(listener)

    def take(self, database: int, wanted: int, *, waiting: int) -> int:
        """Reserves up to `wanted`; returns how many. `waiting`: claimed jobs without a thread."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            if self._full and waiting == 0:
                self._full = False
                self._full_s = now_s
                self._limit = min(self._most, self._limit * 2)
            elif now_s - self._full_s > KEPT_S:
                self._full_s = now_s
                self._limit = max(self._least, self._limit // 2)
            free = self._share - self._used[database] - self._reserved[database]
            if free <= 0:
                self._full = self._refused = True
                return 0
            granted = min(wanted, free)
            self._reserved[database] += granted
            return granted

    def give(self, database: int, taken: int) -> None:
        """Ends a reservation."""
        if (
            not taken
        ):  # who was refused gives nothing back: told of room, he would ask again at once
            return
        with self._lock:
            self._reserved[database] -= taken
        self._tell()

    def enter(self, database: int, jobs: int) -> None:
        """So many were claimed."""
        with self._lock:
            self._used[database] += jobs
            self._full = self._full or self._used[database] >= self._share

    def leave(self, database: int, jobs: int) -> None:
        """So many are settled."""
        with self._lock:
            self._used[database] -= jobs
        self._tell()

    def narrow(self) -> None:
        """Jobs wait too long: claim less."""
        with self._lock:
            self._limit = max(self._least, self._limit // 2)

    @property
    def in_flight(self) -> int:
        """Jobs claimed and not settled."""
        return sum(self._used.values())

    @property
    def reserved(self) -> int:
        return sum(self._reserved.values())

    @property
    def limit(self) -> int:
        return self._limit

    @property
    def _share(self) -> int:
        return -(-self._limit // self._databases)

    def _tell(self) -> None:
        if self._refused:
            self._refused = False
            for listener in self._listeners:
                listener()
