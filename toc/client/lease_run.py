"""A leased job on its way through a remote worker."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toc.client.leases import Lease, PullType
from toc.handlers.registry import HandlerSpec
from toc.worker.job_run import JobRun


@dataclass(slots=True, eq=False)
class LeaseRun(JobRun):
    """A run of the handler pool whose claim is a lease.

    lease_s: how long the lease lasts after each extension. may_extend: False when the handler has ended, and
    when the server extends the lease no further.
    """

    lease_s: float = 0.0
    may_extend: bool = True

    def needs_extension(self, now_s: float) -> bool:
        """Whether a third of the lease is used up, or progress was told, before the handler's timeout."""
        age_s = now_s - (self.lease_end_s - self.lease_s)
        may_extend = self.may_extend and not self.control.is_lost
        is_due = age_s >= self.lease_s / 3
        is_due = is_due or self.control.progress is not self.control.written_progress
        return may_extend and is_due and not self.is_beyond_timeout(now_s)

    def is_beyond_timeout(self, now_s: float) -> bool:
        """Whether the handler has run longer than it may."""
        return self.started_s > 0 and now_s - self.started_s > self.timeout_s


def make_lease_run(
    lease: Lease, spec: HandlerSpec, declared: PullType, lease_s: float, now_s: float, now_ms: int
) -> LeaseRun:
    """The run of a lease of `lease_s` that has just arrived: at `now_s` by the monotonic clock.

    What the type's declaration says wins over what the handler was registered with. The lease counts from its
    arrival: the server sends a lease at once, and the token protects the job if the network held it up.
    now_ms: this machine's time; the server gets delays as seconds, so it need not be right.
    """
    spec = replace(
        spec,
        biz_type=lease.job.biz_type,
        timeout_s=declared.timeout_s,
        max_attempts=declared.max_attempts,
    )
    return LeaseRun(
        lease.job, spec, topic="", database=0, token=lease.token, claimed_ms=now_ms,
        lease_end_s=now_s + lease_s, asked_s=now_s, queued_s=now_s, control=lease.control,
        asked_wall_ms=now_ms, lease_s=lease_s,
    )  # fmt: skip
