"""A leased job on its way through a remote worker."""

from __future__ import annotations

from dataclasses import dataclass, replace

from toc.client.leases import Lease
from toc.domain.retry_policies import ATTEMPTS_MAX
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
        """Whether a third of the lease is used up, and the handler has not reached its timeout."""
        age_s = now_s - (self.lease_end_s - self.lease_s)
        may_extend = self.may_extend and not self.control.is_lost
        return may_extend and age_s >= self.lease_s / 3 and not self.is_beyond_timeout(now_s)

    def is_beyond_timeout(self, now_s: float) -> bool:
        """Whether the handler has run longer than it may."""
        return self.started_s > 0 and now_s - self.started_s > self.timeout_s


def make_lease_run(lease: Lease, spec: HandlerSpec, now_s: float, now_ms: int) -> LeaseRun:
    """The run of a lease that has just arrived: by the monotonic clock at `now_s`.

    now_ms: this machine's time; delays are told to the server as seconds, so it need not be right.
    """
    # The server counts the attempts.
    spec = replace(spec, biz_type=lease.job.biz_type, max_attempts=ATTEMPTS_MAX + 1)
    return LeaseRun(
        lease.job, spec, topic="", database=0, token=lease.token, claimed_ms=now_ms,
        lease_end_s=now_s + lease.lease_s, asked_s=now_s, queued_s=now_s, control=lease.control,
        lease_s=lease.lease_s,
    )  # fmt: skip
