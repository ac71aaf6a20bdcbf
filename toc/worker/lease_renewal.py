"""Renews the leases of running handlers, so that leases are short whatever the types' timeouts are (ADR 31).

A worker that was killed, stands still or is cut off from its database renews nothing: its jobs run again when
their leases end.
"""

from __future__ import annotations

import logging
from collections import defaultdict

from toc.domain.ids import routing_bits_of
from toc.errors import StoreUnavailable, is_away
from toc.handlers.current_job import log_fields_of_job
from toc.runtime import metrics
from toc.runtime.service import Service
from toc.store.databases import Database
from toc.worker.context import WorkerContext
from toc.worker.handler_pool import HandlerPool
from toc.worker.job_run import JobRun

log = logging.getLogger(__name__)

CLAIMS_MAX = 100  # claims that one transaction renews
AGAIN_S = 1.0  # the time to the next try, if a lease could not be renewed


class LeaseRenewal(Service):
    """Renews the leases of one database's runs, and tells handlers that have lost their claim."""

    def __init__(self, database: Database, context: WorkerContext, pool: HandlerPool) -> None:
        super().__init__(f"toc-renewal-{database.index}")
        self._database, self._context, self._pool = database, context, pool
        self._settings = context.process.settings.worker
        self._clock = context.process.clock
        self._failed_shards: set[int] = set()

    def run_once(self) -> float:
        """Renews leases of which a third is used up. Returns the seconds until the next call.

        Each shard has transactions of its own: a table that is locked or broken delays no other.
        """
        now_s = self._clock.monotonic_s()
        routing = self._context.process.databases.routing
        due: dict[int, list[JobRun]] = defaultdict(list)
        for run in self._running_handlers():
            if self._needs_renewal(run, now_s):
                due[routing.shard_of_hash(routing_bits_of(run.job.job_id))].append(run)
        failed, all_renewed = set[int](), True
        for shard in sorted(due, key=lambda shard: (shard in self._failed_shards, shard)):
            runs = due[shard]
            try:
                for at in range(0, len(runs), CLAIMS_MAX):
                    all_renewed &= self._renew_leases(runs[at : at + CLAIMS_MAX])
            except Exception as error:
                locked = isinstance(error, StoreUnavailable) and error.locked
                if is_away(error) and not locked:
                    raise
                failed.add(shard)
                text = "leases of shard %d are not renewed: %s"
                self._log_throttle.warning(shard, text, shard, error)
        self._failed_shards = failed
        return self._settings.lease_s / 6 if all_renewed and not failed else AGAIN_S

    def _running_handlers(self) -> list[JobRun]:
        return self._pool.running.runs_of_database(self._database.index)

    def _needs_renewal(self, run: JobRun, now_s: float) -> bool:
        age_s = now_s - (run.lease_end_s - self._settings.lease_s)
        is_in_time = now_s - run.started_s < run.timeout_s
        return age_s >= self._settings.renew_after_s and is_in_time and not run.control.is_lost

    def _renew_leases(self, runs: list[JobRun]) -> bool:
        """Renews leases of runs. False: nothing is known of some claims, because their rows are locked."""
        asked_s = self._clock.monotonic_s()  # guard: renewal-from-the-question
        claims = [(run.job.job_id, run.token) for run in runs]
        renewed = self._context.claims.renew_leases(self._database, claims)
        # A run that has ended meanwhile has no claim any more, and has not lost it.
        running = {id(run) for run in self._running_handlers()}
        for run, claim in zip(runs, claims, strict=True):
            if claim in renewed.valid:
                run.lease_end_s = asked_s + self._settings.lease_s
            elif claim in renewed.lost and id(run) in running:
                log.warning(
                    "job %d of %s has lost its claim while its handler runs: its outcome will be refused",
                    run.job.job_id, run.job.biz_type, extra=log_fields_of_job(run.job),
                )  # fmt: skip
                metrics.CLAIMS_LOST.inc()
                self._pool.tell_claim_lost(run)
        return len(renewed.valid) + len(renewed.lost) == len(runs)
