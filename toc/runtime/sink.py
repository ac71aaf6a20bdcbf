"""Where poller and scanner hand ids on; the worker stands behind it. They never import each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Batch:
    """Ids that may be due, of one topic, found at one moment.

    `ids` by shard. `time_ms` is the server's time that found them due (Redis' TIME); None: the
    database finds out itself. `found_s` is this process' monotonic time *before* they were asked
    for: leases count from there. `popped`: they came out of the timer and must be answered there.
    """

    topic: str
    ids: Mapping[int, Sequence[int]]
    time_ms: int | None
    found_s: float
    popped: bool


class Sink(Protocol):
    def take_room(self, database: int, wanted: int) -> int:
        """Reserves room for up to `wanted` jobs; returns how many, 0 when there is no room now."""

    def give_room(self, database: int, taken: int) -> None:
        """Ends a reservation, after the offers that it was made for."""

    def offer(self, database: int, batch: Batch) -> int:
        """Takes ids of one database; returns how many of them were claimed to be run."""
