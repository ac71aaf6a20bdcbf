"""Tells Redis which jobs of this process hold the concurrency of their types, and which do not any more."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from toc.errors import TimerUnavailable
from toc.limits.holder import Holder
from toc.limits.limits import Limits, Release
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.timer.limit_store import HOLDERS_MAX, LimitStore, PartitionHold, PartitionRelease

HOLD_EVERY_S = 1.0  # holders are named to Redis so often
SETTLE_MS = (
    3000  # after Redis has lost its data nothing starts until each node has named its holders
)
KEEP_EVERY_S = 3600.0  # a type is named to Redis so often, also if it has no jobs
IDLE_S = 60.0  # may be any time, because a release or a first holder wakes the thread
BATCH_MAX = 500  # releases of one step


class LimitKeeper(Service):
    """Sends releases at once, and names all holders every HOLD_EVERY_S."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        super().__init__("toc-limits")
        self._limits, self._clock = limits, clock
        self._next_hold_s = 0.0
        self._since_ms: dict[str, int] = {}  # by type: since when Redis knows it
        self._named_s: dict[str, float] = {}  # by type: when it was named to Redis last
        self._gauged: set[str] = set()  # types whose gauge is not 0
        self._changed: set[str] = set()  # types whose leases must be named, too
        limits.on_release = self.wake
        limits.on_answer, limits.on_lease_change = self._note_since, self._name_leases_again

    def run_once(self) -> float:
        """Sends a batch of releases, or names the holders. Raises TimerUnavailable: it is tried again."""
        store = self._limits.store
        if store is None:
            return IDLE_S
        if self._limits.releases:
            self._send_releases(store)
            if self._limits.releases:
                return 0
        new = self._types_to_name()
        for biz_type in self._gauged - self._limits.holders.count_by_type().keys():
            metrics.LIMIT_HOLDERS.labels(biz_type).set(0)
            self._gauged.discard(biz_type)
        if not (new or len(self._limits.holders)):
            return IDLE_S
        wait_s = self._next_hold_s - self._clock.monotonic_s()
        if wait_s > 0:
            return min(wait_s, HOLD_EVERY_S)
        self._next_hold_s = self._clock.monotonic_s() + HOLD_EVERY_S
        self._name_holders(store, new)  # guard: holders-named-again
        return HOLD_EVERY_S

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Ends the loop and sends the releases that wait, so that other nodes may start jobs at once."""
        ended = super().stop(timeout_s)
        store = self._limits.store
        try:
            while ended and store is not None and self._limits.releases:
                self._send_releases(store)
        except TimerUnavailable as error:
            self._log_throttle.warning("stop", "holds end by their time: %s", error)
        return ended

    def _send_releases(self, store: LimitStore) -> None:
        queue, batch = self._limits.releases, list[Release]()
        while queue and len(batch) < BATCH_MAX:
            batch.append(queue.popleft())
        by_type: dict[str, dict[str, list[Release]]] = defaultdict(lambda: defaultdict(list))
        for release in batch:
            by_type[release.holder.biz_type][release.holder.partition].append(release)
        try:
            for biz_type, partitions in by_type.items():
                releases = [
                    PartitionRelease(
                        partition,
                        list(
                            Counter(
                                each.taken_ms for each in some if each.taken_ms is not None
                            ).items()
                        ),
                        [each.holder.member for each in some],
                    )
                    for partition, some in partitions.items()
                ]
                store.release(biz_type, self._limits.terms_of(biz_type), releases)
        except TimerUnavailable:
            # An unused start may have been returned: it is not returned twice.
            queue.extendleft(release._replace(taken_ms=None) for release in reversed(batch))
            raise

    def _types_to_name(self) -> set[str]:
        """The types that Redis must hear of. It forgets a type without jobs after a day, and takes a type
        that it does not know for one without starts left: the first job would wait, each time.
        """
        long_ago_s = self._clock.monotonic_s() - KEEP_EVERY_S
        types = self._limits.limited_types
        return {name for name in types if self._named_s.get(name, long_ago_s) <= long_ago_s}

    def _name_holders(self, store: LimitStore, new: set[str]) -> None:
        now_s = self._clock.monotonic_s()
        held: dict[str, list[tuple[Holder, float | None]]] = {name: [] for name in new}
        held |= self._limits.holders.holders_by_type(now_s)
        for biz_type, holders in held.items():
            whole = biz_type in self._changed
            self._changed.discard(biz_type)
            named = [each for each in holders if each[1] is None or whole]
            try:
                since_ms = self._hold(store, biz_type, named, now_s)
            except TimerUnavailable:
                if whole:
                    self._changed.add(biz_type)
                raise
            self._named_s[biz_type] = now_s
            self._note_since(biz_type, since_ms)
            metrics.LIMIT_HOLDERS.labels(biz_type).set(len(holders))
            self._gauged.add(biz_type)

    def _hold(
        self,
        store: LimitStore,
        biz_type: str,
        holders: Sequence[tuple[Holder, float | None]],
        now_s: float,
    ) -> int:
        """Names holders; returns since when Redis knows the type. Without holders it only asks."""
        by_partition: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for holder, until_s in holders:
            hold_ms = self._limits.hold_ms
            if until_s is not None:
                hold_ms = max(1, round((until_s - now_s) * 1000))
            by_partition[holder.partition].append((hold_ms, holder.member))
        holds = [
            PartitionHold(partition, some[at : at + HOLDERS_MAX])
            for partition, some in by_partition.items()
            for at in range(0, len(some), HOLDERS_MAX)
        ]
        return store.hold(biz_type, holds)

    def _note_since(self, biz_type: str, since_ms: int) -> None:
        """Redis has lost its data if it knows the type since another time: leases are named again."""
        if self._since_ms.get(biz_type) != since_ms:
            self._since_ms[biz_type] = since_ms
            self._name_leases_again(biz_type)

    def _name_leases_again(self, biz_type: str) -> None:
        self._changed.add(biz_type)
        self._next_hold_s = 0.0
        self.wake()
