"""Leases that have expired: the job is taken over for another consumer, or is dead after the last attempt.

The attempt was counted when the job was claimed, so an expired lease is a failed attempt (ADR 39).
"""

from __future__ import annotations

import logging
import threading

from toc.domain.ids import routing_bits_of
from toc.domain.job import Job
from toc.leases.lease_context import LeaseContext
from toc.runtime import metrics
from toc.store.claims import ClaimedRow, OutcomeKind
from toc.store.databases import Database
from toc.timer.reminders import Reminder
from toc.worker.acks import Ack

log = logging.getLogger(__name__)

LEASE_EXPIRED = "lease expired: in the last attempt the consumer did not settle the job in time"
# The time from the end of the last lease to the burial. Meanwhile a lease server whose claim got no answer,
# so that no consumer has the job, gives it back.
BURY_AFTER_MS = 5000
AGAIN_MS = 1000


class ExpiredLeases:
    """Takes over and buries jobs of one database whose leases are over, one at a time."""

    def __init__(self, database: Database, context: LeaseContext) -> None:
        self._database, self._context = database, context

    def attempts_are_used_up(self, job: Job) -> bool:
        declared = self._context.declared_pull_type(job.biz_type)
        return declared is not None and job.attempts >= declared.max_attempts

    def takeable_from_ms(self, row: ClaimedRow, biz_type: str) -> int:
        """From when on a running row may be taken over, or buried: by the database's clock, in ms."""
        end_ms = row.due_ms or 0
        declared = self._context.declared_pull_type(biz_type)
        used_up = declared is not None and row.attempts >= declared.max_attempts
        return end_ms + BURY_AFTER_MS if used_up else end_ms

    def take_over_job(self, job: Job, token: str, lease_ms: int, topic: str) -> ClaimedRow | None:
        """Claims a job whose lease is over; None: another replica was faster, or the row is locked.

        Raises StoreUnavailable; if the take-over may be committed, the job is given back.
        """
        sent = threading.Event()
        try:
            row = self._context.claims.take_over_job(
                self._database, self._shard_of(job), job.job_id, job.token or "", token, sent.set,
                lease_ms,
            )  # fmt: skip
        except Exception:
            if sent.is_set():
                due_ms = job.due_ms or 0
                own = self._context.topic_of(job.biz_type)
                self._context.give_back(self._database, topic or own, token, [job.job_id], due_ms)
            raise
        if row is not None:
            metrics.TAKEN_OVER.inc()
        return row

    def bury_job(self, job: Job, topic: str, now_ms: int) -> None:
        """Makes a job dead whose last lease is over, with a dead letter, unless it was settled meanwhile."""
        buried = self._context.claims.bury_expired_job(
            self._database, self._shard_of(job), job.job_id, job.token or "", LEASE_EXPIRED,
            self._context.process.name,
        )  # fmt: skip
        ack = Ack(topic, job.job_id, None)
        if buried:
            log.warning("job %d is dead: %s", job.job_id, LEASE_EXPIRED)
            metrics.ENDED.labels(job.biz_type, OutcomeKind.BURY.value).inc()
        else:  # settled, locked, or renewed at the last moment: the next pop sees which
            ack = ack._replace(back=Reminder(now_ms + AGAIN_MS, job.job_id))
        self._context.acks.enqueue([ack])

    def _shard_of(self, job: Job) -> int:
        return self._context.process.databases.routing.shard_of_hash(routing_bits_of(job.job_id))
