"""The scanner's service: looks at many shards at once, then goes through those that have work.

Of most shards there is nothing overdue; one statement tells for a block of them. Those in which there
is something it scans a page at a time, only what there is room for.
"""

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
from toc.store.pages import AT_ONCE, REST, Pages

log = logging.getLogger(__name__)

NO_ROOM_S = 0.05
BEGINNING = (0, 0)
URGENT_S = 1.0  # period and grace while the timer is not available


class Scanner(Service):
    """Scans shards of one database; none until `own` says which.

    `types()`: type numbers with a handler here, None for all. `timer_available()`: False makes it scan
    every second with a grace of one.
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
        # Where the present round goes on: the next shard to look at; those of the last look that have
        # work, each with its grace; and the last row that was seen of the first of them.
        self._next = 0
        self._found: deque[tuple[int, int]] = deque()
        self._after = BEGINNING
        self._waits_for_room = False
        # Shards that could not be scanned: a look leaves them out, and they rest until then.
        self._broken: dict[int, float] = {}
        self._claimed = 0  # since the last look
        # When that was done with, by the monotonic clock, and which share of the tick is to pass then.
        self._done_s, self._share = float("-inf"), 0.0

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
        """One page of one shard, or a look at the next ones. Returns the seconds until the next step.

        A round goes through all shards in one tick, evenly: read in one go, they would hold up the
        firing threads for tens of milliseconds.
        """
        self._take_in()
        urgent = not self._timer_available()
        tick_s = (min(self._tick_s, URGENT_S) if urgent else self._tick_s) * self._stretch
        if self._found:
            return self._scan_first()
        wait_s = self._done_s + tick_s * self._share - self._clock.monotonic_s()
        if wait_s > 0:
            return min(wait_s, URGENT_S)  # looks up now and then: the timer may have gone away
        grace_ms = min(self._grace_ms, round(URGENT_S * 1000)) if urgent else self._grace_ms
        self._look(grace_ms, 2 * grace_ms + round(tick_s * 1000))
        return 0

    def _take_in(self) -> None:
        if not self._told:
            return
        # Goes on where it was: begun anew at each change, the last shards might never be scanned.
        at = self._owned[self._next] if self._next < len(self._owned) else -1
        first = self._found[0] if self._found else None
        self._owned, self._deputised, self._stretch = self._told.popleft()
        self._next = bisect_left(self._owned, at)
        still = set(self._owned)
        self._broken = {s: until_s for s, until_s in self._broken.items() if s in still}
        self._found = deque(found for found in self._found if found[0] in still)
        if first not in self._found:
            self._after = BEGINNING

    def _look(self, grace_ms: int, deputy_grace_ms: int) -> None:
        """Which of the next shards have work."""
        if self._next >= len(self._owned):
            self._next = 0
        block = self._owned[self._next : self._next + AT_ONCE]
        self._next += len(block)
        grace = {s: deputy_grace_ms if s in self._deputised else grace_ms for s in block}
        asked = {shard: ms for shard, ms in grace.items() if shard not in self._broken}
        now_s = self._clock.monotonic_s()
        found = {shard for shard in grace if self._broken.get(shard, now_s + 1) <= now_s}
        try:
            found |= self._pages.any_overdue(asked)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the database's, or one table's
            self._seldom.warning("look", "scanner: shards %s: %s", [*asked], error)
            # One by one they will show which it is.
            found = found.union(asked) if self._pages.answers(block[0]) else set()
        self._found.extend((shard, grace[shard]) for shard in block if shard in found)
        self._rest(len(block) / len(self._owned) if block else 1.0)

    def _rest(self, share: float) -> None:
        self._done_s, self._share = self._clock.monotonic_s(), share

    def _scan_first(self) -> float:
        """One page of the first shard that has work."""
        shard, grace_ms = self._found[0]
        room = self._sink.take_room(self._routing.database(shard), self._page_rows)
        self._waits_for_room = not room
        if not room:
            return NO_ROOM_S
        if not self._scan_safely(shard, grace_ms, room):
            self._after = BEGINNING
            self._found.popleft()
            if not self._found:  # where there was work, there may be more next door: no pause
                self._rest(0.0 if self._claimed else self._share)
                self._claimed = 0
        return 0

    def _scan_safely(self, shard: int, grace_ms: int, room: int) -> bool:
        """One broken shard must not stop the net under all others."""
        began_s = self._clock.monotonic_s()
        try:
            more = self._scan(shard, grace_ms, room)
        except (StoreUnavailable, SchemaMismatch) as error:
            self._seldom.warning("scan", "scanner: shard %d: %s", shard, error)
        except Exception:
            log.exception("scanner: shard %d is left out of this round", shard)
            metrics.SERVICE_ERRORS.labels(self.name).inc()
        else:
            self._broken.pop(shard, None)
            return more
        # One that takes long to fail, as a table that is locked does, must not take all the time.
        now_s = self._clock.monotonic_s()
        rest = REST if self._pages.answers(shard) else 0
        self._broken[shard] = now_s + rest * (now_s - began_s)
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
