"""How many jobs a poller or scanner may take: as many as the waiting consumers want (`PermitSource`)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection

from toc.leases.waiting_room import RESERVED_S_MAX, WaitingRoom
from toc.runtime.clock import Clock
from toc.worker.permits import DatabaseOutages

REOFFER_S_MIN, REOFFER_S_MAX = 1.0, 30.0
EXTRA_MAX = 500  # ids popped beyond what consumers want, behind another tenant's backlog


class Reoffer:
    """When to offer jobs of a type again that no consumer who waits here may see (another tenant's).

    The delay doubles while whole batches are refused, so that a pass through another tenant's backlog ends
    before its first jobs are due again; `extra` ids are popped at a time meanwhile. One claim stage at a
    time calls `record_batch`.
    """

    def __init__(self) -> None:
        self.delay_s, self.extra = REOFFER_S_MIN, 0

    def record_batch(self, refused: int, others: int) -> None:
        """Adapts to a batch of which `refused` jobs had no consumer that may see them."""
        self.extra = min(EXTRA_MAX, 2 * refused)
        if not refused:
            self.delay_s = REOFFER_S_MIN
        elif not others:
            self.delay_s = min(REOFFER_S_MAX, 2 * self.delay_s)


class Demand:
    """The permits for jobs of some types. Thread-safe.

    `types()`: the types that the fetcher may bring now. `reoffer`: see there; None: nothing extra. `page()`:
    while anything is wanted, at least so many jobs are fetched, so that those of a high priority among them
    are given first (ADR 51).
    Permits are out from the fetch until the jobs have been given to consumers, which is before the claim.
    """

    def __init__(
        self,
        room: WaitingRoom,
        outages: DatabaseOutages,
        clock: Clock,
        types: Callable[[], Collection[str]],
        reoffer: Reoffer | None = None,
        page: Callable[[], int] = lambda: 0,
    ) -> None:
        self._room, self._outages, self._clock = room, outages, clock
        self._types, self._reoffer, self._page = types, reoffer, page
        self._lock = threading.Lock()
        self._out: Counter[int] = Counter()  # by database
        self._out_since_s: dict[int, float] = {}
        self._was_refused = False
        self._listeners: list[Callable[[], None]] = []

    def add_permit_listener(self, listener: Callable[[], None]) -> None:
        """Calls `listener` when permits came back after a fetcher was refused."""
        self._listeners.append(listener)

    def remove_permit_listener(self, listener: Callable[[], None]) -> None:
        self._listeners.remove(listener)

    @property
    def is_wanted(self) -> bool:
        """Whether any consumer wants a job of these types."""
        return self._room.count_wanted_jobs(self._types()) > 0

    def take_permits(self, database: int, wanted: int) -> int:
        """See `PermitSource`. A database that has not answered since it was down is tried with one job."""
        if self._outages.is_database_down(database):
            return 0
        places = self._room.count_wanted_jobs(self._types())
        if places and self._reoffer is not None:
            places = max(places + self._reoffer.extra, self._page())
        now_s = self._clock.monotonic_s()
        with self._lock:
            if self._outages.has_not_recovered(database):
                places = min(places, 1) if not self._out[database] else 0
            busy = sum(
                permits
                for other, permits in self._out.items()
                if permits and now_s - self._out_since_s[other] < RESERVED_S_MAX
            )
            given = max(0, min(wanted, places - busy))
            if given:
                if not self._out[database]:
                    self._out_since_s[database] = now_s
                self._out[database] += given
            elif places:
                self._was_refused = True
            return given

    def take_permits_in_each_database(
        self, databases: Collection[int], wanted: int
    ) -> tuple[int, frozenset[int]]:
        """See `PermitSource`. Slots of pull types hold jobs of one database each."""
        (database,) = databases
        given = self.take_permits(database, wanted)
        return given, frozenset([database] if given else ())

    def return_permits(self, database: int, permits: int) -> None:
        """See `PermitSource`."""
        if not permits:
            return
        with self._lock:
            self._out[database] -= permits
            refused, self._was_refused = self._was_refused, False
        if refused:
            for listener in list(self._listeners):
                listener()
