"""The batch that a fetcher (poller, scanner, fallback) puts into a claim stage, and its permits.

A fetcher takes permits, finds due ids, and puts them into the inbox of a claim stage as a batch that carries
one permit for each id. Fetchers and the worker do not import each other.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from toc.runtime.admission import Admission

CLAIM_S_MAX = 120.0  # a fetcher waits for a claim no longer than this


class BatchClaimAnswer:
    """How many jobs of a batch were claimed. The claim stage sets the answer once; a fetcher may wait.

    `on_given()`: called when the answer is set.
    """

    def __init__(self, on_given: Callable[[], None] = lambda: None) -> None:
        self._on_given = on_given
        self._given = threading.Event()
        self._claimed = 0
        self._error: Exception | None = None

    def set_answer(self, claimed: int, error: Exception | None = None) -> None:
        self._claimed, self._error = claimed, error
        self._given.set()
        self._on_given()

    @property
    def is_answered(self) -> bool:
        return self._given.is_set()

    @property
    def claimed(self) -> int:
        """How many jobs will run; 0 until there is an answer, and after an error."""
        return self._claimed

    def wait_for_claim(self) -> int:
        """Waits until the batch is claimed; returns how many jobs are to be run. Raises the claim's error."""
        self._given.wait(CLAIM_S_MAX)
        if self._error is not None:
            raise self._error
        return self._claimed


@dataclass(frozen=True, slots=True)
class JobBatch:
    """Ids of one topic and one database that may be due, found at the same time.

    `ids`: by shard. `time_ms`: the server's time by which the ids are due (Redis' TIME); None: the database's
    time decides. `found_s`: this process' monotonic time *before* the ids were read: leases count from there.
    `popped`: the ids came from the timer and must be acked or put back there. `shared`: their slots also hold
    ids of other databases, which must not wait for these ids. `permits`: one for each id; 0: the database
    takes no jobs now, and the ids are put off. `answer`: is set when the batch is claimed. `admissions`: of
    ids of restricted types, where these ids were admitted. `has_pass`: the jobs may run through a pause.
    """

    topic: str
    ids: Mapping[int, Sequence[int]]
    time_ms: int | None
    found_s: float
    popped: bool
    shared: bool = False
    permits: int = 0
    answer: BatchClaimAnswer | None = None
    admissions: Mapping[int, Admission] = field(default_factory=dict)
    has_pass: bool = False

    @property
    def job_ids(self) -> list[int]:
        return [job_id for ids in self.ids.values() for job_id in ids]


class PermitSource(Protocol):
    """The methods of the worker's `Permits` that a fetcher calls."""

    def take_permits(self, database: int, wanted: int) -> int:
        """Takes up to `wanted` permits; returns how many, 0 when no permit is free now."""

    def take_permits_in_each_database(
        self, databases: Collection[int], wanted: int
    ) -> tuple[int, frozenset[int]]:
        """Takes up to `wanted` permits in each of the databases that take jobs now.

        Returns how many in each, and in which databases; 0 when one has none for the moment, or none takes
        jobs. A database takes no jobs while it does not answer, or while its share of the permits is used
        up and none of its jobs has ended for a second.
        """

    def return_permits(self, database: int, permits: int) -> None:
        """Returns permits that a fetcher took and put into no batch."""
