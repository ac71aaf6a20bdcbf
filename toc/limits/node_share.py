"""The share of one node in the limits, for the time without Redis: each node takes its part of each limit."""

from __future__ import annotations

from toc.domain.limit_terms import LimitTerms
from toc.runtime.clock import Clock
from toc.timer.limit_store import PartitionAnswer

FULL_AGAIN_MS = 100  # a job that waits for the concurrency asks again after this time


class NodeShare:
    """The buckets of this node's share. Not thread-safe: `Limits` calls it under its lock.

    The bucket of a partition begins empty when Redis is lost: the starts before are not known here.
    """

    def __init__(self, clock: Clock, partitions_max: int) -> None:
        self._clock, self._partitions_max = clock, partitions_max
        self._full_ms: dict[
            tuple[str, str], float
        ] = {}  # by type and partition: when it is full again
        self._since_ms: dict[str, float] = {}  # by type: since when this node goes by its share
        self._index: int | None = 0
        self._nodes = 1

    def set_nodes(self, index: int | None, nodes: int) -> None:
        """This node is the one with number `index` (from 0) of `nodes` live nodes.

        None: nothing but their number is known; then each has the same part, and at least 1.
        """
        self._index, self._nodes = index, max(1, nodes)

    def forget_type(self, biz_type: str) -> None:
        """Redis answers again for this type."""
        if self._since_ms.pop(biz_type, None) is not None:
            self._full_ms = {key: at for key, at in self._full_ms.items() if key[0] != biz_type}

    def take(
        self, biz_type: str, terms: LimitTerms, partition: str, wanted: int, held: int
    ) -> PartitionAnswer:
        """As `LimitStore.take`. `held`: how many jobs of the partition hold in this process."""
        now_ms = self._clock.monotonic_s() * 1000
        since_ms = self._since_ms.setdefault(biz_type, now_ms)
        room, is_full = wanted, False
        if terms.concurrency is not None:
            free = max(0, self.part_of(terms.concurrency) - held)
            room, is_full = min(wanted, free), free < wanted
        if terms.interval_ms is None:
            return PartitionAnswer(room, 0, is_full)
        interval_ms = terms.interval_ms * self._nodes
        burst_ms = max(1, self.part_of(terms.burst)) * interval_ms
        key = (biz_type, partition)
        if key not in self._full_ms and not self._has_place_for_bucket(now_ms):
            return PartitionAnswer(0, 1000, is_full)
        full_ms = self._full_ms.get(key, since_ms + burst_ms)
        full_ms = max(now_ms, min(full_ms, now_ms + burst_ms))
        # A small part of a start is granted: sums of floating-point numbers are never exact.
        room = min(room, int((now_ms + burst_ms - full_ms) / interval_ms + 1e-6))
        full_ms += room * interval_ms
        self._full_ms[key] = full_ms
        wait_ms = max(0.0, full_ms + interval_ms - now_ms - burst_ms)
        return PartitionAnswer(room, -int(-wait_ms // 1), is_full)

    def return_starts(
        self, biz_type: str, partition: str, interval_ms: float, unused: int, passed_ms: float = 0.0
    ) -> bool:
        """Returns starts that were not used. False: no start of this partition is of this share.

        `passed_ms`: how long ago they were taken. By so much less comes back, as in limit_release.lua.
        """
        key = (biz_type, partition)
        if key not in self._full_ms:
            return False
        self._full_ms[key] -= max(0.0, unused * interval_ms * self._nodes - passed_ms)
        return True

    def part_of(self, limit: int) -> int:
        """This node's part of a number; the parts of all nodes together are the number."""
        if self._index is None:
            return max(1, limit // self._nodes)
        return limit // self._nodes + (self._index < limit % self._nodes)

    def _has_place_for_bucket(self, now_ms: float) -> bool:
        """Whether a further bucket has place, after the full ones have made place.

        A removed bucket is taken as full again, or as empty at the beginning if that is not so long ago.
        """
        if len(self._full_ms) >= self._partitions_max:
            self._full_ms = {key: at for key, at in self._full_ms.items() if at > now_ms}
        return len(self._full_ms) < self._partitions_max
