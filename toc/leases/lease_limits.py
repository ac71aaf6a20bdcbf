"""Asks the limits of pull types before their rows are claimed for consumers (ADR 45)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from toc.domain.job import Job, Status
from toc.domain.limit_terms import ONE_PARTITION
from toc.leases.lease_context import LeaseContext
from toc.limits.holder import Holder
from toc.limits.limits import Limits, TakeTime, Wanted
from toc.timer.reminders import Reminder
from toc.worker.acks import Ack

HOLD_MARGIN_MS = (
    1000  # a lease holds its type's concurrency for so long beyond its end: clocks differ
)


class LeaseStarts:
    """The starts that the limits have admitted for one batch, by lease token."""

    def __init__(self, context: LeaseContext) -> None:
        self._context, self._limits = context, context.process.limits
        # The type and partition of each job that was admitted, and when it was admitted.
        self._partitions: dict[tuple[str, int], tuple[str, str, TakeTime]] = {}

    def admit_jobs(
        self, biz_type: str, jobs: Sequence[Job], token: str, lease_ms: int, topic: str, now_ms: int
    ) -> tuple[Sequence[Job], list[Ack]]:
        """The jobs that may be leased under `token` now, and the acks that put the other ones back."""
        limits = self._limits
        if limits is None or limits.terms_of(biz_type) is None:
            return jobs, []
        wanted = [
            Wanted(
                order_ms_of_job(self._context, job), job.job_id, partition_of_job(limits, job),
                (job.token or "") if job.status is Status.RUNNING else "",
            )
            for job in jobs
        ]  # fmt: skip
        taken = limits.take(biz_type, wanted, token, lease_ms + HOLD_MARGIN_MS)
        acks = []
        due_ms_of = {job.job_id: job.due_ms or 0 for job in jobs}
        for job in wanted:
            if job.job_id in taken.admitted:
                self._partitions[token, job.job_id] = (biz_type, job.partition, taken.time)
                continue
            wait_ms, due_ms = taken.waits_ms[job.job_id], due_ms_of[job.job_id]
            if wait_ms is not None:
                due_ms = max(due_ms, now_ms + wait_ms)
            acks.append(Ack(topic, job.job_id, Reminder(due_ms, job.job_id)))
        return [job for job in jobs if job.job_id in taken.admitted], acks

    def return_unused(self, token: str, leased: Collection[int]) -> None:
        """Gives back the starts of the jobs that were admitted under `token` and not leased."""
        if self._limits is None:
            return
        for key, (biz_type, partition, time) in list(self._partitions.items()):
            if key[0] == token:
                del self._partitions[key]
                if key[1] not in leased:
                    self._limits.give_back([key[1]], biz_type, token, partition, time)


def order_ms_of_job(context: LeaseContext, job: Job) -> int:
    """The place of a due job among those of its type: its due time, less the lead that its priority gives."""
    return (job.due_ms or 0) - context.process.gate.lead_ms_of_job(job.biz_type, job.priority)


def note_lease_ended(context: LeaseContext, job: Job, token: str) -> None:
    """Tells the limits that a lease has ended, which perhaps another process has given."""
    limits = context.process.limits
    if limits is not None and limits.terms_of(job.biz_type) is not None:
        limits.lease_ended(job.biz_type, partition_of_job(limits, job), job.job_id, token)


def note_lease_extended(context: LeaseContext, job: Job, token: str, lease_ms: int) -> None:
    """Tells the limits that a lease lasts longer."""
    limits = context.process.limits
    if limits is not None and limits.terms_of(job.biz_type) is not None:
        holder = Holder(job.biz_type, partition_of_job(limits, job), job.job_id, token)
        limits.lease_extended(holder, lease_ms + HOLD_MARGIN_MS)


def partition_of_job(limits: Limits, job: Job) -> str:
    """The partition that a job belongs to."""
    terms = limits.terms_of(job.biz_type)
    if terms is None:
        return ONE_PARTITION
    return terms.partition_of(job.biz_id, job.tenant, job.attribute)
