"""The worker: puts the stages claim → run → settle → ack together, starts and stops them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from toc.handlers.registry import Registry
from toc.runtime.service import stop_services
from toc.store.claims import Claims
from toc.worker.acks import AckSender
from toc.worker.attempt import AttemptHooks
from toc.worker.claim_stage import CLAIM_LANES, ClaimStage, StagesAfterClaim
from toc.worker.context import ProcessContext, WorkerContext
from toc.worker.handler_pool import HandlerPool
from toc.worker.handler_table import HandlerTable, SinkHandlers
from toc.worker.lease_recovery import LeaseRecovery
from toc.worker.lease_renewal import LeaseRenewal
from toc.worker.occurrence_settle import OccurrenceSettle, make_chains
from toc.worker.permits import AdaptiveLimiter, Permits
from toc.worker.progress_writer import ProgressWriter
from toc.worker.settle import Settler
from toc.worker.take_over import TakeOver

log = logging.getLogger(__name__)

STAGE_STOP_S = 10.0  # time limit for the items that a stage is processing
FLUSH_S = 2.0  # time limit to write the last outcomes and corrections


class Worker:
    """Runs the handlers of a registry. `restart_wanted()`: called when too many handlers are stuck.
    `sinks`: the handlers of the kinds of sinks that this process has.

    A fetcher takes `permits` and puts batches into the inboxes of `claims[lane]`, one for each database.
    """

    def __init__(
        self,
        process: ProcessContext,
        registry: Registry,
        restart_wanted: Callable[[], None],
        sinks: SinkHandlers | None = None,
    ) -> None:
        settings = process.settings.worker
        self.context = context = self._make_worker_context(process, registry, sinks or {})
        self.permits = context.permits
        self.acks = acks = AckSender(
            process.reminders, process.clock,
            batch_max=settings.settle_max, queue_max=settings.queue_max,
        )  # fmt: skip
        self.chains = make_chains(process, context.identity, registry)
        occurrences = OccurrenceSettle(
            process, context.claims, self.chains, acks, context.reminder_to_put_back
        )
        self.settlers = [Settler(each, context, acks, occurrences) for each in process.databases]
        attempts = AttemptHooks(context, self.settlers)
        self.pool = HandlerPool(
            process.clock, attempts.may_start, attempts.settle_result, restart_wanted,
            threads=settings.concurrency, async_tasks=settings.async_concurrency,
            stuck_max=settings.stuck_max, solitary_max=settings.queue_max,
        )  # fmt: skip
        self.recoveries: list[LeaseRecovery] = []
        self.progress_writers = [
            ProgressWriter(each, context, self.pool.running) for each in process.databases
        ]
        self.renewals = [LeaseRenewal(each, context, self.pool) for each in process.databases]
        self.claims: list[list[ClaimStage]] = [[] for _ in range(CLAIM_LANES)]
        for database, settler in zip(process.databases, self.settlers, strict=True):
            take_over = TakeOver(database, context, self.pool, acks, settler.corrections)
            recovery = LeaseRecovery(database, context, take_over, self.pool.running)
            outlets = StagesAfterClaim(self.pool, acks, recovery, settler.corrections)
            self.recoveries.append(recovery)
            for lane, stages in enumerate(self.claims):
                stages.append(ClaimStage(database, lane, context, outlets))

    def _make_worker_context(
        self, process: ProcessContext, registry: Registry, sinks: SinkHandlers
    ) -> WorkerContext:
        settings, databases = process.settings.worker, process.databases
        claims = Claims(databases, round(settings.lease_s * 1000))
        metadata = process.database_metadata
        handlers = HandlerTable(
            metadata.types,
            metadata.declared,
            registry,
            sinks,
            claims,
            process.gate,
            databases.payload_codecs,
        )
        handlers.create_biz_types(databases)
        handlers.refresh_handlers()
        limiter = AdaptiveLimiter(
            process.clock, limit_min=settings.concurrency, limit_max=settings.queue_max
        )
        permits = Permits(
            process.clock, len(databases.all), limiter,
            waiting=lambda: self.pool.waiting_count, stuck=lambda: self.pool.running.stuck_job_count,
        )  # fmt: skip
        identity = f"{process.name[:60]}:{process.rng.getrandbits(48):012x}"
        return WorkerContext(process, identity, claims, handlers, permits)

    def start(self) -> None:
        self.pool.start()
        services = (*self.settlers, *self.renewals, *self.recoveries, *self._claim_stages)
        for service in (self.acks, *services):
            service.start()

    def stop(self, timeout_s: float) -> bool:
        """Gives back jobs that have not started, waits for running ones, settles them. True: all settled.

        The caller has stopped the pollers and scanners. A handler that still runs after `timeout_s` seconds
        keeps its job until the lease ends; on the event loop it is cancelled, and its job is given back.
        """
        clock, permits = self.context.process.clock, self.permits
        permits.closed = True  # from here on the run stage gives jobs back instead of starting them
        stop_services([*self._claim_stages, *self.recoveries], STAGE_STOP_S)
        self.pool.give_back_waiting_runs()
        deadline_s = clock.monotonic_s() + timeout_s
        while permits.jobs_in_flight and clock.monotonic_s() < deadline_s:
            clock.sleep_s(0.02)
        self.pool.close()  # cancels handlers on the event loop; their jobs are given back
        flush_s = clock.monotonic_s() + FLUSH_S
        while not self.has_nothing_to_write and clock.monotonic_s() < flush_s:
            clock.sleep_s(0.02)
        stop_services([*self.settlers, *self.renewals, *self.progress_writers], 5.0)
        self.acks.stop(5.0)
        if permits.jobs_in_flight:
            text = (
                "%d jobs are left to their leases: other nodes run these jobs when the leases end"
            )
            log.warning(text, permits.jobs_in_flight)
        return permits.jobs_in_flight == 0

    @property
    def _claim_stages(self) -> list[ClaimStage]:
        return [stage for lane in self.claims for stage in lane]

    @property
    def has_nothing_to_write(self) -> bool:
        """Whether no outcome and no correction waits to be written."""
        return not (
            self.permits.unsettled_count or any(len(each.corrections) for each in self.settlers)
        )

    @property
    def process_identity(self) -> str:
        """The unique name of this process; its tokens and its cluster member begin with it."""
        return self.context.identity

    @property
    def jobs_in_flight(self) -> int:
        """How many jobs are claimed and not settled."""
        return self.permits.jobs_in_flight
