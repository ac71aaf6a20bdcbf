"""The scanner's service: shard by shard, a page at a time, only what there is room for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from toc.domain.routing import Routing
from toc.errors import StoreUnavailable
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.runtime.sink import Batch, Sink
from toc.store.pages import Pages

log = logging.getLogger(__name__)

NO_ROOM_S = 0.05
BEGINNING = (0, 0)
URGENT_S = 1.0  # period and grace while the timer is not available


class Scanner(Service):
    """Scans the owned shards. `types()`: type numbers with a handler here, None for all.

    `timer_available()`: False makes it scan every second with a grace of one.
    """

    def __init__(
        self,
        pages: Pages,
        owned: Sequence[int],
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
        super().__init__("toc-scanner")
        self._pages, self._owned, self._sink, self._types = pages, list(owned), sink, types
        self._timer_available, self._routing, self._clock = timer_available, routing, clock
        self._grace_ms, self._tick_s, self._page_rows = grace_ms, tick_s, page_rows
        # Where the present round goes on: the shard's position, and the last row that was looked at.
        self._position = 0
        self._after = BEGINNING
        self._waits_for_room = False

    def room_again(self) -> None:
        """Goes on at once if it stopped for want of room; does not shorten the wait for the next round."""
        if self._waits_for_room:
            self.wake()

    def run_once(self) -> float:
        """Goes through the shards while there is room. Returns the seconds until the next step."""
        urgent = not self._timer_available()
        grace_ms = min(self._grace_ms, round(URGENT_S * 1000)) if urgent else self._grace_ms
        while self._position < len(self._owned) and not self.stopping:
            room = self._sink.room()
            if room <= 0:
                self._waits_for_room = True
                return NO_ROOM_S
            self._waits_for_room = False
            if not self._scan(self._owned[self._position], grace_ms, min(self._page_rows, room)):
                self._position += 1
                self._after = BEGINNING
        self._position = 0
        return min(self._tick_s, URGENT_S) if urgent else self._tick_s

    def _scan(self, shard: int, grace_ms: int, rows: int) -> bool:
        """One page of one shard; True when the shard may have more."""
        found_s = self._clock.monotonic_s()
        try:
            page = self._pages.overdue(shard, self._after, grace_ms, self._types(), rows)
            if not page:
                return False
            ids = [row.job_id for row in page]
            batch = Batch("", {shard: ids}, None, found_s, popped=False)
            self._sink.offer(self._routing.database(shard), batch)
        except StoreUnavailable as error:  # the other databases' shards go on
            log.warning("scanner: shard %d: %s", shard, error)
            return False
        self._after = (page[-1].due_ms, page[-1].job_id)
        return len(page) == rows
