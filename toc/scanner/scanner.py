"""The scanner's service: shard by shard, a page at a time, only what there is room for."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Sequence

from toc.domain.routing import Routing
from toc.errors import SchemaMismatch, StoreUnavailable
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.sink import Batch, Sink
from toc.store.pages import Pages

log = logging.getLogger(__name__)

NO_ROOM_S = 0.05
BEGINNING = (0, 0)
URGENT_S = 1.0  # period and grace while the timer is not available


class Scanner(Service):
    """Scans shards; none until `own` says which. `types()`: type numbers with a handler here, None for all.

    `timer_available()`: False makes it scan every second with a grace of one.
    """

    def __init__(
        self,
        name: str,
        pages: Pages,
        sink: Sink,
        types: Callable[[], Collection[int] | None],
        timer_available: Callable[[], bool],
        routing: Routing,
        clock: Clock,
        *,
        grace_ms: int,
        tick_s: float,
        page_rows: int,
    ) -> None:
        super().__init__(name)
        self._pages, self._sink, self._types = pages, sink, types
        self._owned: Sequence[int] = ()
        self._deputised: frozenset[int] = frozenset()
        self._told: deque[tuple[Sequence[int], frozenset[int], float]] = deque(maxlen=1)
        self._stretch = 1.0
        self._timer_available, self._routing, self._clock = timer_available, routing, clock
        self._grace_ms, self._tick_s, self._page_rows = grace_ms, tick_s, page_rows
        # Where the present round goes on: the shard's position, and the last row that was looked at.
        self._position = 0
        self._after = BEGINNING
        self._waits_for_room = False
        self._claimed = 0  # of the present shard
        self._paused_s = -tick_s  # when the last shard was done with, by the monotonic clock
        self._skipped: set[int] = set()  # databases that did not answer in this round

    def own(
        self, shards: Sequence[int], deputised: Sequence[int] = (), stretch: float = 1.0
    ) -> None:
        """From the next step on it scans these, a round in `stretch` ticks. Any thread.

        Of the `deputised` ones it takes only what their owner has left undone in its own time.
        """
        deputy = frozenset(deputised) - set(shards)
        self._told.append((sorted({*shards, *deputy}), deputy, stretch))
        self.wake()

    def room_again(self) -> None:
        """Goes on at once if it stopped for want of room; does not shorten the wait for the next round."""
        if self._waits_for_room:
            self.wake()

    def run_once(self) -> float:
        """One page of one shard. Returns the seconds until the next step.

        A round goes through all shards in one tick, evenly: read in one go, they would hold up the
        firing threads for tens of milliseconds.
        """
        self._take_in()
        urgent = not self._timer_available()
        tick_s = (min(self._tick_s, URGENT_S) if urgent else self._tick_s) * self._stretch
        pace_s = tick_s / max(1, len(self._owned))
        now_s = self._clock.monotonic_s()
        wait_s = self._paused_s + pace_s - now_s
        if wait_s > 0:
            return min(wait_s, URGENT_S)  # looks up now and then: the timer may have gone away
        if self._position >= len(self._owned):
            self._position = 0
            self._skipped.clear()
        if not self._owned or self._is_skipped():
            more = False
        else:
            shard = self._owned[self._position]
            room = self._sink.take_room(self._routing.database(shard), self._page_rows)
            self._waits_for_room = not room
            if not room:
                return NO_ROOM_S
            grace_ms = min(self._grace_ms, round(URGENT_S * 1000)) if urgent else self._grace_ms
            if shard in self._deputised:
                grace_ms = 2 * grace_ms + round(tick_s * 1000)
            more = self._scan_safely(shard, grace_ms, room)
        if more:
            return 0
        self._after = BEGINNING
        self._position += 1
        if self._claimed:  # where there was work, there may be more next door: no pause
            self._claimed = 0
            return 0
        self._paused_s = now_s
        return pace_s

    def _take_in(self) -> None:
        if not self._told:
            return
        owned, self._deputised, self._stretch = self._told.popleft()
        # Goes on where it was: begun anew at each change, the last shards might never be scanned.
        at = self._owned[self._position] if self._position < len(self._owned) else -1
        self._owned, self._position = owned, bisect_left(owned, at)
        if owned[self._position : self._position + 1] != [at]:
            self._after, self._claimed = BEGINNING, 0

    def _is_skipped(self) -> bool:
        return self._routing.database(self._owned[self._position]) in self._skipped

    def _scan_safely(self, shard: int, grace_ms: int, room: int) -> bool:
        """One broken shard or database must not stop the net under all others."""
        try:
            return self._scan(shard, grace_ms, room)
        except (StoreUnavailable, SchemaMismatch) as error:
            database = self._routing.database(shard)
            self._seldom.warning(database, "scanner: shard %d: %s", shard, error)
            self._skipped.add(database)
        except Exception:
            log.exception("scanner: shard %d is left out of this round", shard)
            metrics.SERVICE_ERRORS.labels(self.name).inc()
        return False

    def _scan(self, shard: int, grace_ms: int, room: int) -> bool:
        """One page of one shard, of as many rows as room was taken for; True: there may be more."""
        found_s, rows = self._clock.monotonic_s(), room
        database = self._routing.database(shard)
        try:
            page = self._pages.overdue(shard, self._after, grace_ms, self._types(), rows)
            # What was reserved in vain is free while the claim goes on.
            self._sink.give_room(database, room - len(page))
            room = len(page)
            if not page:
                return False
            batch = Batch("", {shard: [row.job_id for row in page]}, None, found_s, popped=False)
            self._claimed += self._sink.offer(database, batch)
        finally:
            self._sink.give_room(database, room)
        self._after = (page[-1].due_ms, page[-1].job_id)
        return len(page) == rows
