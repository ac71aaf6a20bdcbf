"""Bounds the live jobs of one business id and type, without a query for each job.

A process counts the jobs that it schedules for each business id, and asks the database only when it has
scheduled a quarter of the bound, or as many as were left, since it asked last. So a caller who schedules
a job for a million business ids costs no query, and one who schedules a million jobs for one business id
is stopped at about the bound: each replica may exceed it by a quarter.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from toc.domain.biz_ids import BusinessId
from toc.domain.biz_types import type_no_of
from toc.errors import TooManyCalls
from toc.runtime.clock import Clock
from toc.store.databases import Databases
from toc.store.live_counts import count_live_jobs

BUSINESSES_MAX = 10_000
ROWS_PER_JOB = (
    8  # rows that are read for the bound: ended jobs of the business id stand among the live ones
)
REFUSED_S = 5.0

_Key = tuple[BusinessId, str]


@dataclass(slots=True)
class _ScheduledCount:
    scheduled: int
    """Since the database was asked last."""
    room: int
    """How many may be scheduled until it is asked again."""
    refused_until_s: float | None = None


class LiveJobLimit:
    """Refuses further jobs of a business id and type that has `jobs_max` live ones, about. Thread-safe."""

    def __init__(self, databases: Databases, clock: Clock, jobs_max: int) -> None:
        self._databases, self._clock, self._jobs_max = databases, clock, jobs_max
        self._room_unasked = max(1, jobs_max // 4)
        self._lock = threading.Lock()
        self._counts: OrderedDict[_Key, _ScheduledCount] = OrderedDict()

    def admits(self, business: BusinessId, biz_type: str, jobs: int = 1) -> bool:
        """Counts jobs that are to be scheduled. False: not counted, call `check`, which asks the database.

        Asks no database. Raises TooManyCalls if the database was asked a moment ago, and there is no
        room.
        """
        with self._lock:
            count = self._count_of((business, biz_type))
            self._raise_if_refused(count)
            if count.scheduled + jobs > count.room:
                return False
            count.scheduled += jobs
            return True

    def check(self, business: BusinessId, biz_type: str, jobs: int = 1) -> None:
        """Counts jobs that are to be scheduled, after asking the database. Blocks.

        Raises TooManyCalls if there is no room for them, StoreUnavailable.
        """
        live = count_live_jobs(
            self._databases, business, type_no_of(biz_type), self._jobs_max * ROWS_PER_JOB
        )
        with self._lock:
            count = self._count_of((business, biz_type))
            left = self._jobs_max - live
            if left < jobs:
                count.refused_until_s = self._clock.monotonic_s() + REFUSED_S
                self._raise_if_refused(count)
            count.scheduled, count.room = jobs, max(jobs, min(left, self._room_unasked))

    def _raise_if_refused(self, count: _ScheduledCount) -> None:
        if count.refused_until_s is None:
            return
        left_s = count.refused_until_s - self._clock.monotonic_s()
        if left_s > 0:
            raise TooManyCalls("jobs_per_biz_id", max(1.0, left_s))

    def _count_of(self, key: _Key) -> _ScheduledCount:
        found = self._counts.get(key)
        if found is None:
            if len(self._counts) >= BUSINESSES_MAX:
                self._counts.popitem(last=False)
            found = self._counts[key] = _ScheduledCount(0, self._room_unasked)
        else:
            self._counts.move_to_end(key)
        return found
