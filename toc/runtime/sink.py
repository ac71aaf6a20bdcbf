"""The interface through which poller and scanner hand ids to the worker; they do not import each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Batch:
    """Ids of one topic that may be due, found at the same time.

    `ids`: by shard. `time_ms`: the server's time by which they are due (Redis' TIME); None: the database's
    time decides. `found_s`: this process' monotonic time *before* they were read: leases count from there.
    `popped`: they came from the timer and must be acked or put back there. `shared`: their slots also hold
    ids of other databases, which must not wait for these.
    """

    topic: str
    ids: Mapping[int, Sequence[int]]
    time_ms: int | None
    found_s: float
    popped: bool
    shared: bool = False


class Sink(Protocol):
    def reserve_room(self, database: int, wanted: int) -> int:
        """Reserves room for up to `wanted` jobs; returns how many, 0 when there is no room now."""

    def release_room(self, database: int, taken: int) -> None:
        """Ends a reservation, after the offers that it was made for."""

    def reserve_room_in(self, databases: Sequence[int], wanted: int) -> tuple[int, frozenset[int]]:
        """Reserves room for up to `wanted` jobs in each of the databases that take jobs now.

        Returns how many in each, and in which databases; 0 when one has no room for the moment, or none
        takes jobs. A database that does not answer or is stalled takes no jobs: see `put_off`.
        """

    def put_off(self, database: int, batch: Batch) -> None:
        """Returns popped ids to the timer: due again in some seconds, or at once when the node stops."""

    def offer(self, database: int, batch: Batch) -> int:
        """Takes ids of one database; returns how many of them were claimed to be run."""
