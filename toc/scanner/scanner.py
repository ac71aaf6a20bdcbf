"""The scanner's service: checks many shards at once, then scans those that have overdue rows.

Most shards have no overdue rows; one statement checks a block of shards. A shard with overdue rows is
scanned page by page, as far as there are permits.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

from toc.errors import SchemaMismatch, StoreUnavailable
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.scanner.overdue_page import OverduePages
from toc.scanner.overdue_search import BEGINNING, OverdueSearch
from toc.store.due_pages import PAUSE_FACTOR, SHARDS_PER_QUERY_MAX, DuePages

log = logging.getLogger(__name__)

NO_PERMITS_S = 0.05
URGENT_S = 1.0  # period and grace while the timer is not available


class Scanner(Service):
    """Scans the shards of one database that `set_shards` names; none before the first call.

    `timer_available()`: while False, it scans every second, with a grace of one second.
    """

    def __init__(
        self,
        name: str,
        pages: DuePages,
        overdue_pages: OverduePages,
        timer_available: Callable[[], bool],
        clock: Clock,
        *,
        grace_ms: int,
        tick_s: float,
    ) -> None:
        super().__init__(name)
        self._pages, self._overdue_pages = pages, overdue_pages
        self._owned: Sequence[int] = ()
        self._deputised: frozenset[int] = frozenset()
        self._new_shards: deque[tuple[Sequence[int], frozenset[int], float]] = deque(maxlen=1)
        self._stretch = 1.0
        self._timer_available, self._clock = timer_available, clock
        self._grace_ms, self._tick_s = grace_ms, tick_s
        self._next = 0  # the index of the shard that is checked next for overdue rows
        self._search = OverdueSearch(pages)
        # (shard, grace in ms, key of the last row that was read) of the shards in which the last check found
        # overdue rows.
        self._found: deque[tuple[int, int, tuple[int, int]]] = deque()
        self._waits_for_permits = False
        # Shards that could not be scanned: they are not checked, and are scanned again after this time.
        self._broken: dict[int, float] = {}
        self._claimed = 0  # jobs, since the last check
        self._urgent = False
        # When the last check was finished, by the monotonic clock; which share of the tick to wait then.
        self._check_ended_s, self._tick_share = float("-inf"), 0.0

    def set_shards(
        self, shards: Sequence[int], deputised: Sequence[int] = (), stretch: float = 1.0
    ) -> None:
        """Replaces the shards to scan, from the next step on. Any thread.

        A round takes `stretch` ticks. In `deputised` shards it takes only jobs that their owner has not
        taken in time.
        """
        deputy = frozenset(deputised) - set(shards)
        self._new_shards.append((sorted({*shards, *deputy}), deputy, stretch))
        self.wake()

    def wake_if_waiting_for_permits(self) -> None:
        """Wakes the scanner at once if it waits for permits, but not if it waits for the next round."""
        if self._waits_for_permits:
            self.wake()

    def run_once(self) -> float:
        """Scans one page of a shard, or checks the next block. Returns the seconds until the next step.

        A round through all shards is spread evenly over one tick: at once, it would delay the handlers'
        threads by tens of milliseconds.
        """
        self._apply_new_shards()
        urgent = self._urgent = not self._timer_available()
        tick_s = (min(self._tick_s, URGENT_S) if urgent else self._tick_s) * self._stretch
        if self._found:
            return self._scan_first_found_shard()
        wait_s = self._check_ended_s + tick_s * self._tick_share - self._clock.monotonic_s()
        if wait_s > 0:
            return min(wait_s, URGENT_S)  # a short wait, since the timer may become unavailable
        grace_ms = min(self._grace_ms, round(URGENT_S * 1000)) if urgent else self._grace_ms
        self._find_overdue_shards(grace_ms, 2 * grace_ms + round(tick_s * 1000))
        return 0

    def _apply_new_shards(self) -> None:
        if not self._new_shards:
            return
        # The round continues: if each change restarted it, the last shards might never be scanned.
        at = self._owned[self._next] if self._next < len(self._owned) else -1
        self._owned, self._deputised, self._stretch = self._new_shards.popleft()
        self._next = bisect_left(self._owned, at)
        still = set(self._owned)
        self._broken = {s: until_s for s, until_s in self._broken.items() if s in still}
        self._found = deque(found for found in self._found if found[0] in still)
        self._search.keep_shards(still)

    def _find_overdue_shards(self, grace_ms: int, deputy_grace_ms: int) -> None:
        """Checks the next block of shards and adds those that have overdue rows to `_found`."""
        if self._next >= len(self._owned):
            self._next = 0
        block = self._owned[self._next : self._next + SHARDS_PER_QUERY_MAX]
        self._next += len(block)
        grace = {s: deputy_grace_ms if s in self._deputised else grace_ms for s in block}
        asked = {shard: ms for shard, ms in grace.items() if shard not in self._broken}
        now_s = self._clock.monotonic_s()
        mended = [shard for shard in grace if self._broken.get(shard, now_s + 1) <= now_s]
        found = dict.fromkeys(mended, BEGINNING)
        try:
            found |= self._search.find_overdue_shards(asked, self._overdue_pages.closed_numbers())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the database's, or one table's
            self._log_throttle.warning("check", "scanner: shards %s: %s", [*asked], error)
            # Each shard is then scanned separately, which shows the broken shard.
            is_table = self._pages.database_answers(block[0])
            found = dict.fromkeys([*found, *asked], BEGINNING) if is_table else {}
        self._found.extend((shard, grace[shard], found[shard]) for shard in block if shard in found)
        if self._search.is_behind:  # there are more rows behind those of paused types: no pause
            self._next -= len(block)
            self._record_check_end(0.0)
        else:
            self._record_check_end(len(block) / len(self._owned) if block else 1.0)

    def _record_check_end(self, share: float) -> None:
        self._check_ended_s, self._tick_share = self._clock.monotonic_s(), share

    def _scan_first_found_shard(self) -> float:
        """Scans one page of the first shard in `_found`."""
        shard, grace_ms, after = self._found[0]
        permits = self._overdue_pages.take_page_permits()
        self._waits_for_permits = not permits
        if not permits:
            return NO_PERMITS_S
        last = self._scan_page_or_log(shard, after, grace_ms, permits)
        if last is not None:
            self._found[0] = shard, grace_ms, last
        else:
            self._found.popleft()
            if not self._found:  # if jobs were claimed, the next block may have some too: no pause
                self._record_check_end(self._share_until_next_check())
                self._claimed = 0
        return 0

    def _share_until_next_check(self) -> float:
        """The part of the tick to wait after a block with overdue rows."""
        if self._claimed:
            return 0.0
        wait_s = self._overdue_pages.refused_for_s(self._clock.monotonic_s())
        if wait_s is None or not self._urgent:
            return self._tick_share
        # Without the timer only this service finds the jobs that will be admitted then.
        return min(self._tick_share, max(0.0, wait_s) / min(self._tick_s, URGENT_S))

    def _scan_page_or_log(
        self, shard: int, after: tuple[int, int], grace_ms: int, permits: int
    ) -> tuple[int, int] | None:
        """Scans one page. Returns the key of its last row if there may be more rows.

        A broken shard must not stop other scans.
        """
        began_s = self._clock.monotonic_s()
        try:
            page = self._overdue_pages.read_overdue_page(shard, after, grace_ms, permits, began_s)
            self._claimed += self._overdue_pages.claim_overdue_page(page)
        except (StoreUnavailable, SchemaMismatch) as error:
            self._log_throttle.warning("scan", "scanner: shard %d: %s", shard, error)
        except Exception:
            log.exception("scanner: shard %d is left out of this round", shard)
            metrics.SERVICE_ERRORS.labels(self.name).inc()
        else:
            self._broken.pop(shard, None)
            return page.after if page.has_more else None
        # A shard that fails slowly (e.g. its table is locked) must not take all of the scanner's time.
        now_s = self._clock.monotonic_s()
        rest = PAUSE_FACTOR if self._pages.database_answers(shard) else 0
        self._broken[shard] = now_s + rest * (now_s - began_s)
        return None
