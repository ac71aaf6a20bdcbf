"""All consumers that wait in this process, and which of them gets which due job.

Consumers of a type wait in the order of arrival. Rows are shared out one by one: the next row goes to the
consumer that has got the fewest rows of the batch, of these to the one that waits longest, among those that
may see the row. So a consumer with many places takes no more than its share while others wait.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from toc.domain.job import Job
from toc.errors import Overloaded
from toc.leases.waiter import LeasedJob, Waiter
from toc.runtime import metrics
from toc.runtime.clock import Clock

RESERVED_S_MAX = 1.0  # places of a claim that takes longer than this count as free again


@dataclass(slots=True)
class Distribution:
    """Who gets which row. no_place: consumers that may see these rows have no place left, or nobody waits.

    refused: nobody who waits may see these rows.
    """

    taken: list[tuple[Waiter, list[Job]]] = field(default_factory=list)
    no_place: list[Job] = field(default_factory=list)
    refused: list[Job] = field(default_factory=list)


class WaitingRoom:
    """Thread-safe. `waiters_max`: consumers that may wait at once."""

    def __init__(self, clock: Clock, waiters_max: int) -> None:
        self._clock, self._waiters_max = clock, waiters_max
        self._lock = threading.Lock()
        self._waiters: dict[Waiter, None] = {}  # in the order of arrival
        self._by_type: defaultdict[str, dict[Waiter, None]] = defaultdict(dict)
        self._closed = False

    def add_waiter(self, waiter: Waiter) -> None:
        """Raises Overloaded when too many consumers wait here. After `close_all`, the waiter is closed."""
        with self._lock:
            if len(self._waiters) >= self._waiters_max:
                raise Overloaded(
                    "too many consumers wait here", "leases.waiters_max", self._waiters_max
                )
            if self._closed:
                waiter.closed = True
                return
            self._waiters[waiter] = None
            metrics.LEASE_WAITERS.set(len(self._waiters))
            for biz_type in waiter.lease_ms:
                self._by_type[biz_type][waiter] = None

    def close_waiter(self, waiter: Waiter) -> list[LeasedJob]:
        """Ends a wait; returns the jobs that have arrived. Jobs that arrive later are not accepted."""
        with self._lock:
            self._remove_waiter(waiter)
            jobs, waiter.jobs = waiter.jobs, []
            return jobs

    def close_all(self) -> None:
        """Ends all waits, now and later: each consumer gets what has arrived for it."""
        with self._lock:
            self._closed = True
            waiters = list(self._waiters)
            for waiter in waiters:
                self._remove_waiter(waiter)
        for waiter in waiters:
            waiter.on_change()

    def count_wanted_jobs(self, types: Iterable[str]) -> int:
        """How many jobs of these types the consumers want now."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            waiters = {waiter for biz_type in types for waiter in self._by_type.get(biz_type, ())}
            return sum(waiter.free_places(now_s) for waiter in waiters)

    def awaited_types(self) -> set[str]:
        """The types of which a consumer wants a job now."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            return {
                biz_type
                for biz_type, waiters in self._by_type.items()
                if any(waiter.free_places(now_s) for waiter in waiters)
            }

    @property
    def waiters_count(self) -> int:
        return len(self._waiters)

    def count_waiters_by_type(self) -> dict[str, int]:
        """How many consumers wait for jobs of each type; one of several types counts for each."""
        with self._lock:
            return {biz_type: len(waiters) for biz_type, waiters in self._by_type.items()}

    def distribute_jobs(self, biz_type: str, jobs: Sequence[Job]) -> Distribution:
        """Gives jobs of one type, oldest first, to consumers, and reserves the consumers' places for them."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            round_ = _Round(list(self._by_type.get(biz_type, ())), now_s)
            result = Distribution()
            for job in jobs:
                round_.give_job(job, result)
            result.taken = [(waiter, given) for waiter, given in round_.given.items() if given]
            for waiter, given in result.taken:
                if now_s >= waiter.reserved_until_s:
                    waiter.reserved = (
                        0  # the claim that holds these places hangs: its jobs come too late
                    )
                waiter.reserved += len(given)
                waiter.reserved_until_s = now_s + RESERVED_S_MAX
        return result

    def deliver_jobs(
        self, waiter: Waiter, reserved: int, jobs: Sequence[LeasedJob]
    ) -> Sequence[LeasedJob]:
        """Ends the claim for `reserved` places, which has got `jobs`. Returns jobs that have no place."""
        with self._lock:
            waiter.reserved = max(0, waiter.reserved - reserved)
            places = 0 if waiter.closed else max(0, waiter.max_jobs - len(waiter.jobs))
            waiter.jobs += jobs[:places]
            is_full = len(waiter.jobs) >= waiter.max_jobs
            if is_full:
                self._remove_from_types(waiter)
            changed = waiter.is_complete or bool(jobs[:places])
        if changed:
            waiter.on_change()
        return jobs[places:]

    def _remove_waiter(self, waiter: Waiter) -> None:
        waiter.closed = True
        self._waiters.pop(waiter, None)
        metrics.LEASE_WAITERS.set(len(self._waiters))
        self._remove_from_types(waiter)

    def _remove_from_types(self, waiter: Waiter) -> None:
        for biz_type in waiter.lease_ms:
            waiters = self._by_type.get(biz_type, {})
            waiters.pop(waiter, None)
            if not waiters:
                self._by_type.pop(biz_type, None)


class _Round:
    """The distribution of one batch among the waiters of its type, in the order of arrival."""

    def __init__(self, waiters: Collection[Waiter], now_s: float) -> None:
        self.given: dict[Waiter, list[Job]] = {waiter: [] for waiter in waiters}
        self._order = {waiter: position for position, waiter in enumerate(waiters)}
        self._places = {waiter: waiter.free_places(now_s) for waiter in waiters}
        # By tenant: (jobs given when it was pushed, order, waiter) of the waiters that may see its jobs.
        self._heaps: dict[str | None, list[tuple[int, int, Waiter]]] = {}
        self._seen_by_some: dict[str | None, bool] = {}

    def give_job(self, job: Job, result: Distribution) -> None:
        waiter = self._next_waiter(job)
        if waiter is not None:
            self.given[waiter].append(job)
        elif self._seen_by_some[job.tenant] or not self.given:
            result.no_place.append(job)
        else:
            result.refused.append(job)

    def _next_waiter(self, job: Job) -> Waiter | None:
        """The waiter with the fewest jobs of this batch that has a place and may see the job."""
        heap = self._heaps.get(job.tenant)
        if heap is None:
            able = [waiter for waiter in self.given if waiter.accept(job)]
            self._seen_by_some[job.tenant] = bool(able)
            heap = [
                (len(self.given[waiter]), self._order[waiter], waiter)
                for waiter in able
                if self._places[waiter]
            ]
            heapify(heap)
            self._heaps[job.tenant] = heap
        while heap:
            given, order, waiter = heappop(heap)
            now_given = len(self.given[waiter])
            if now_given >= self._places[waiter]:
                continue
            if given < now_given:  # it got jobs of another tenant since it was pushed
                heappush(heap, (now_given, order, waiter))
                continue
            heappush(heap, (given + 1, order, waiter))
            return waiter
        return None
