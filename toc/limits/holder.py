"""The holders of this process: its jobs that run under a limit."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple


class Holder(NamedTuple):
    """One run of a job of a limited type: it counts from its admission to its end."""

    biz_type: str
    partition: str
    job_id: int
    token: str

    @property
    def member(self) -> str:
        """The holder's name in Redis. The token is not shown: that of a lease is a secret."""
        return f"{self.job_id}:{blake2b(self.token.encode(), digest_size=8).hexdigest()}"


@dataclass(frozen=True, slots=True)
class _TimedHolder:
    holder: Holder
    until_s: float | None  # a lease of a remote consumer: when it ends, by the monotonic clock


class HolderTable:
    """The holders that this process has to name to Redis. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[int, str], _TimedHolder] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._held)

    def add_holders(self, holders: Iterable[Holder], until_s: float | None) -> None:
        """`until_s`: when they end by themselves, by the monotonic clock; None: when they are removed."""
        with self._lock:
            for holder in holders:
                key = (holder.job_id, holder.token)
                if key not in self._held:
                    self._counts[holder.biz_type, holder.partition] += 1
                self._held[key] = _TimedHolder(holder, until_s)

    def remove_holder(self, job_id: int, token: str) -> Holder | None:
        """Removes a holder and returns it; None: it is not here."""
        if (job_id, token) not in self._held:  # no lock for jobs without a limit
            return None
        with self._lock:
            held = self._held.pop((job_id, token), None)
            if held is None:
                return None
            self._decrement(held.holder)
            return held.holder

    def count_holders(self, biz_type: str, partition: str) -> int:
        return self._counts[biz_type, partition]

    def count_by_type(self) -> dict[str, int]:
        """How many jobs of each type hold in this process."""
        counts: Counter[str] = Counter()
        with self._lock:
            for (biz_type, _), count in self._counts.items():
                counts[biz_type] += count
        return dict(counts)

    def holders_by_type(self, now_s: float) -> dict[str, list[tuple[Holder, float | None]]]:
        """The holders, each with the end of its lease if it has one. Removes those whose lease has ended."""
        found: dict[str, list[tuple[Holder, float | None]]] = {}
        with self._lock:
            for key, held in list(self._held.items()):
                if held.until_s is not None and held.until_s <= now_s:
                    del self._held[key]
                    self._decrement(held.holder)
                else:
                    item = (held.holder, held.until_s)
                    found.setdefault(held.holder.biz_type, []).append(item)
        return found

    def _decrement(self, holder: Holder) -> None:
        key = (holder.biz_type, holder.partition)
        self._counts[key] -= 1
        if self._counts[key] <= 0:
            del self._counts[key]
