"""The fallback: each node looks for long overdue jobs in all shards, whichever node owns them.

Owners and deputies come from the members in ZooKeeper, and these may be wrong: a member may be dead
unnoticed, or be written by another program. The rows in a database show reliably what is overdue. So each
node periodically asks each database in which shards there are rows that the owner and the deputy should
have claimed long ago, and claims them. The fallback does not use the members at all (ADR 23).

Its cost is bounded: one statement for 240 shards every `period_s`; after time spent without finding rows to
claim (e.g. only rows of types without a handler here, or of paused types) it rests WASTE times as long, up to
`rest_s_max`. The next round goes on where this one has ended, so that such rows hide no rows behind them.

Jobs of restricted types may be late because a person wants it, so they count as no fault. They are claimed as
far as their admissions allow: perhaps nobody pops them. While each node takes its part of the limits, without
Redis, a node may have no part of a type's concurrency at all: then the fallbacks of the nodes that have one
claim the jobs of the others, and soon (ADR 45).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.scanner.overdue_page import OverduePages
from toc.scanner.overdue_search import OverdueSearch
from toc.store.due_pages import SHARDS_PER_QUERY_MAX, DuePages

WASTE = 200
FRUITLESS_S_MAX = 1.0  # a round ends after so long of reading rows that this node cannot claim
STEPS_MAX = 20  # in a check of a block of shards whose restricted types have many rows
AGAIN_S = 1.0  # between two rounds without Redis, while jobs of restricted types are claimed
NO_PERMITS_S = 1.0  # the fallback is woken earlier when permits are returned


class OverdueShardCount(NamedTuple):
    """How many of a database's `of` shards had a job overdue by more than `grace_s` at the last check.

    `since_ms`: since when there is such a shard, by this machine's wall clock; None: there is none.
    """

    shards: int
    of: int
    grace_s: float
    since_ms: int | None


class _Place(NamedTuple):
    """Where to read on in a shard: the key of the last row read, or one before all rows to read.

    `is_before_restricted`: rows of restricted types may follow; else the search has passed over them.
    `since`: the round in which it was found, or a page was read there.
    """

    shard: int
    key: tuple[int, int]
    is_before_restricted: bool
    since: int


class FallbackScanner(Service):
    """Checks all `shards` of one database; claims in those that this node does not scan itself.

    `start_at`: the first shard; each node begins at another one. `grace_ms`: longer than an owner and a
    deputy need. `rest_s_max`: the rest after reading rows in vain, at most. `are_limits_in_parts()`: whether
    each node takes its part of the limits, without Redis.
    """

    def __init__(
        self,
        name: str,
        pages: DuePages,
        overdue_pages: OverduePages,
        database: int,
        shards: Sequence[int],
        clock: Clock,
        *,
        start_at: int,
        grace_ms: int,
        period_s: float,
        rest_s_max: float,
        are_limits_in_parts: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(name)
        self._are_limits_in_parts = are_limits_in_parts
        self._claimed_restricted = False  # in this round
        self._pages, self._overdue_pages = pages, overdue_pages
        self._database, self._clock = database, clock
        first = start_at % len(shards)
        self._shards = [*shards[first:], *shards[:first]]
        self._grace_ms, self._period_s, self._rest_s_max = grace_ms, period_s, rest_s_max
        self._search, self._search_of_restricted = OverdueSearch(pages), OverdueSearch(pages)
        self._scanned: frozenset[int] = frozenset()
        # Those left in the current round.
        self._found: deque[_Place] = deque()
        # Those left when the last round read too many rows in vain: of each shard at most two, oldest first.
        self._unread: list[_Place] = []
        self._round = 0
        self._waits_for_permits = False
        self._began_s, self._wasted_s, self._fruitless_s = clock.monotonic_s(), 0.0, 0.0
        self.overdue = OverdueShardCount(0, len(self._shards), grace_ms / 1000, None)
        """The result of the last check that the database answered."""

    def set_own_shards(self, scanned: Collection[int]) -> None:
        """Sets the shards that this node scans itself, as their owner or deputy. Any thread."""
        self._scanned = frozenset(scanned)

    def wake_if_waiting_for_permits(self) -> None:
        """Wakes the fallback at once if it waits for permits."""
        if self._waits_for_permits:
            self.wake()

    def run_once(self) -> float:
        """Checks all shards, or claims a page of one shard. Returns the seconds until the next step."""
        if self._found:
            return self._claim_overdue_page()
        # Without Redis the next job of a limited type may start soon, and nobody else looks for it.
        is_urgent = self._claimed_restricted and self._are_limits_in_parts()
        period_s = min(self._period_s, AGAIN_S) if is_urgent else self._period_s
        rest_s = max(period_s, min(WASTE * self._wasted_s, self._rest_s_max))
        wait_s = self._began_s + rest_s - self._clock.monotonic_s()
        if wait_s > 0:
            return wait_s
        self._began_s, self._wasted_s, self._fruitless_s = self._clock.monotonic_s(), 0.0, 0.0
        self._find_overdue_shards()
        return 0

    def _find_overdue_shards(self) -> None:
        closed = self._overdue_pages.closed_numbers()
        restricted = self._overdue_pages.restricted_numbers() | closed
        found = self._find_in_all_shards(self._search, restricted)
        since_ms = (self.overdue.since_ms or self._clock.wall_ms()) if found else None
        self.overdue = self.overdue._replace(shards=len(found), since_ms=since_ms)
        metrics.SHARDS_OVERDUE.labels(f"database_{self._database}").set(len(found))
        of_others = len(found.keys() - self._scanned)
        if of_others:
            self._log_throttle.warning(
                "overdue",
                "jobs in %d of %d shards of database %d are overdue by more than %g s, though other nodes"
                " own these shards: this node claims them too. Are those nodes overloaded, or are they no"
                " nodes of yours? `toc nodes` lists them",
                of_others, len(self._shards), self._database, self._grace_ms / 1000,
            )  # fmt: skip
        self._claimed_restricted = False
        with_restricted: dict[int, tuple[int, int]] = {}
        if restricted != closed:  # guard: net-under-restricted-types
            with_restricted = self._find_in_all_shards(self._search_of_restricted, closed)
        self._round += 1
        # The first search may have passed over many rows of restricted types: a shard is read from both keys.
        fresh = [
            _Place(shard, keys[shard], keys is with_restricted, self._round)
            for shard in self._shards
            for keys in (found, with_restricted)
            if shard in keys
        ]
        # Rows may have become overdue before the keys of the last round, so both are read, in turn: neither
        # may use up all the time of a round.
        in_turn = (each for both in zip_longest(self._unread, fresh) for each in both)
        others = [each for each in in_turn if each and each.shard not in self._scanned]
        # Two places with the same shard and key are read once.
        once = dict[tuple[int, tuple[int, int]], _Place]()
        for each in others:
            known = once.get(each[:2], each)
            once[each[:2]] = max(each, known)._replace(since=min(each.since, known.since))
        self._found.extend(once.values())  # guard: net-under-every-shard
        self._unread = []

    def _find_in_all_shards(
        self, search: OverdueSearch, left_out: Collection[int]
    ) -> dict[int, tuple[int, int]]:
        """The shards with overdue rows of any type but those `left_out`, each with a key before them."""
        found: dict[int, tuple[int, int]] = {}
        for at in range(0, len(self._shards), SHARDS_PER_QUERY_MAX):
            block = self._shards[at : at + SHARDS_PER_QUERY_MAX]
            wasted_s = self._wasted_s
            for _ in range(STEPS_MAX):
                found |= self._shards_with_overdue_rows(block, search, left_out)
                # Where a table is locked, each step may wait for it for minutes.
                if not search.is_behind or self._wasted_s - wasted_s > FRUITLESS_S_MAX:
                    break
        return found

    def _shards_with_overdue_rows(
        self, block: Sequence[int], search: OverdueSearch, left_out: Collection[int]
    ) -> dict[int, tuple[int, int]]:
        """The shards of the block that have overdue rows, without shards that cannot be read."""
        began_s = self._clock.monotonic_s()
        try:
            overdue = search.find_overdue_shards(dict.fromkeys(block, self._grace_ms), left_out)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the database's, or one table's
            text = "%s: cannot find out which shards have overdue jobs: %s"
            self._log_throttle.warning("check", text, self.name, error)
        else:
            return {shard: overdue[shard] for shard in block if shard in overdue}
        self._wasted_s += self._clock.monotonic_s() - began_s
        if len(block) == 1 or not self._pages.database_answers(block[0]):
            return {}
        half = len(block) // 2
        found = self._shards_with_overdue_rows(block[:half], search, left_out)
        is_behind = search.is_behind
        found |= self._shards_with_overdue_rows(block[half:], search, left_out)
        search.is_behind |= is_behind
        return found

    def _claim_overdue_page(self) -> float:
        permits = self._overdue_pages.take_page_permits()
        self._waits_for_permits = not permits
        if not permits:
            return NO_PERMITS_S
        place = self._found.popleft()
        found_s, claimed, page = self._clock.monotonic_s(), 0, None
        try:
            page = self._overdue_pages.read_overdue_page(
                place.shard, place.key, self._grace_ms, permits, found_s
            )
            claimed = self._overdue_pages.claim_overdue_page(page)
            self._claimed_restricted |= bool(claimed and page.admissions)
            if page.has_more:  # the next page is read after the other shards
                self._found.append(place._replace(key=page.after, since=self._round))
        except Exception as error:  # noqa: BLE001 - as above
            self._log_throttle.warning("page", "%s: shard %d: %s", self.name, place.shard, error)
        took_s = self._clock.monotonic_s() - found_s
        if page is None or not page.job_ids:  # only rows of types without a handler here
            self._wasted_s += took_s
        if not claimed:
            self._fruitless_s += took_s
            if self._fruitless_s > FRUITLESS_S_MAX:
                self._unread = _furthest_places(self._found)
                self._found.clear()
        return 0


def _furthest_places(places: Iterable[_Place]) -> list[_Place]:
    """Keeps one place for each shard and search: the one with the largest key. The oldest place comes first.

    The next round finds rows before that key again. Each search keeps a place of its own: otherwise the
    rows between the two keys would never be read. Oldest first, because each round finds the first shards
    again: they would always be read before the last shards.
    """
    furthest: dict[tuple[int, bool], _Place] = {}
    for each in sorted(places, key=lambda place: place.since):
        kind = each.shard, each.is_before_restricted
        known = furthest.get(kind, each)
        furthest[kind] = known._replace(key=max(known.key, each.key))
    return list(furthest.values())
