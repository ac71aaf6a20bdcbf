"""A remote consumer that waits for jobs, and a job that it has leased."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from toc.domain.job import Job

Accept = Callable[[Job], bool]
"""Whether the consumer may see the job. May depend on the job's biz_type and tenant only: it is asked once
for several jobs that have both in common."""


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job that was claimed for a consumer, until `lease_until` by the database's clock.

    `token`: to settle the lease with; a secret of the consumer. `attempt`: which attempt this is, from 1.
    `action_time`: when the business wanted the job. `is_countdown`: it has arrivals, which were not read.
    """

    job_id: int
    token: str = field(repr=False)
    lease_until: datetime
    attempt: int
    biz_id: int | str
    biz_type: str
    tenant: str | None
    attribute: Mapping[str, Any]
    action_time: datetime
    is_countdown: bool = False
    trace: str | None = None


@dataclass(slots=True, eq=False)
class Waiter:
    """A consumer that waits for up to `max_jobs` jobs of some types. `WaitingRoom` changes it under its lock.

    lease_ms: the length of the leases by biz_type. on_change(): called when jobs arrived or it was closed.
    reserved: places for jobs that are being claimed; reserved_until_s: then these places count as free again,
    by the monotonic clock, since the claim hangs.
    """

    lease_ms: Mapping[str, int]
    max_jobs: int
    accept: Accept
    on_change: Callable[[], None]
    jobs: list[LeasedJob] = field(default_factory=list)
    reserved: int = 0
    reserved_until_s: float = 0.0
    closed: bool = False

    def free_places(self, now_s: float) -> int:
        """How many more jobs it wants; 0 when it is closed."""
        if self.closed:
            return 0
        held = self.reserved if now_s < self.reserved_until_s else 0
        return max(0, self.max_jobs - len(self.jobs) - held)

    @property
    def is_complete(self) -> bool:
        """Whether it has got jobs and no claim for it is in progress, or it is full, or closed."""
        return (
            self.closed or len(self.jobs) >= self.max_jobs or bool(self.jobs and not self.reserved)
        )
