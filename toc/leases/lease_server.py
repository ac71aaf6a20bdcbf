"""The lease server: remote consumers wait for jobs here, and settle their leases here (ADR 39).

One per process of `toc web`; any number of processes. No method of a lease needs the process that gave it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import get_args

from toc.domain.argument_checks import check_integer, check_reason, is_number
from toc.domain.ids import check_job_id, routing_bits_of
from toc.domain.retry_policies import DELAY_S_MAX
from toc.domain.times import EPOCH, MS_MAX, ceil_ms
from toc.errors import InvalidInput, StatementFailed, StoreUnavailable
from toc.handlers.registry import Registry
from toc.leases.call_pool import CallPool
from toc.leases.correction_service import CorrectionService
from toc.leases.expired_leases import ExpiredLeases
from toc.leases.lease_context import LeaseContext, PullTypeCatalogue
from toc.leases.lease_sources import LeaseSources, PullTypeWatch
from toc.leases.lease_stage import SCANNED, LeaseStage
from toc.leases.settlement import ItemResult, LeaseItem, Results, Settlement, Then, Verb
from toc.leases.waiter import Accept, LeasedJob, Waiter
from toc.leases.waiting_room import WaitingRoom
from toc.runtime.job_batch import JobBatch, PermitSource
from toc.runtime.service import Inbox, stop_services
from toc.runtime.setting_groups import LEASE_S_MAX
from toc.store.lease_claims import LeaseClaims
from toc.worker.acks import AckSender
from toc.worker.context import ProcessContext
from toc.worker.occurrence_settle import OccurrenceSettle, make_chains
from toc.worker.permits import DatabaseOutages

log = logging.getLogger(__name__)

LEASE_S_MIN = 1.0
WAIT_S_MIN = 0.2  # a call that does not want to wait still needs time to pop and claim
GATHER_S = 0.05  # after its first jobs, a call waits so long for jobs that are being claimed for it
CLAIM_WAIT_S_MAX = 1.0  # at the end of its wait, a call waits so long for a claim in progress
TOKEN_CHARS_MAX = 96
FLUSH_S = 2.0  # time limit of a stop to give back the last jobs


class LeaseServer:
    """Leases jobs of pull types to remote consumers, and settles these leases.

    `catalogue`: the declared types. `timer_may_fire()`: False while Redis' and the databases' clocks differ
    too much. `lease`, `finish`, `fail`, `extend` and `release` may be called from any event loop.
    """

    def __init__(
        self,
        process: ProcessContext,
        catalogue: PullTypeCatalogue,
        timer_may_fire: Callable[[], bool] = lambda: True,
    ) -> None:
        settings = process.settings
        self._process, self._limits, self._catalogue = process, settings.leases, catalogue
        claims = LeaseClaims(process.databases, round(settings.worker.lease_s * 1000))
        acks = AckSender(
            process.reminders, process.clock,
            batch_max=settings.worker.settle_max, queue_max=settings.worker.queue_max,
        )  # fmt: skip
        self._acks = acks
        self._corrections = [
            CorrectionService(database, claims, acks, process.clock)
            for database in process.databases
        ]
        self._context = context = LeaseContext(
            process, catalogue, claims, WaitingRoom(process.clock, self._limits.waiters_max),
            DatabaseOutages(process.clock), acks, [each.queue for each in self._corrections],
        )  # fmt: skip
        self._sources = LeaseSources(context, timer_may_fire)
        self._stages = {
            database.index: LeaseStage(
                database, context, ExpiredLeases(database, context),
                self._sources.permits_of, self._sources.reoffers,
            )
            for database in process.databases
        }  # fmt: skip
        self._watch = PullTypeWatch(context, self._sources)
        chains = make_chains(process, process.name, Registry())  # this process runs no handlers
        occurrences = OccurrenceSettle(process, claims, chains, acks, context.reminder_to_put_back)
        self._settlements = [
            Settlement(database, context, occurrences) for database in process.databases
        ]
        self._pools = [
            CallPool(f"toc-leases-settle-{database.index}", self._limits.threads, self._limits.calls_max)
            for database in process.databases
        ]  # fmt: skip

    @property
    def scan_permits(self) -> PermitSource:
        """The permits for jobs of all types that consumers wait for."""
        return self._sources.permits_of(SCANNED)

    def inbox_of(self, database: int) -> Inbox[JobBatch]:
        """The claim stage of a database."""
        return self._stages[database]

    def start(self) -> None:
        """Starts the threads that bring jobs. Asks no server."""
        for service in (self._acks, *self._corrections, *self._stages.values()):
            service.start()
        self._watch.apply_changes()
        self._sources.start(self._stages)
        self._watch.start()
        self._process.gate.add_listener(self._sources.wake_awaited)
        if self._process.limits is not None:
            self._process.limits.add_listener(self._sources.wake_awaited)

    def stop(self) -> bool:
        """Answers all waiting consumers, takes no more jobs; leases stay valid. True: all has ended."""
        self._context.room.close_all()
        ended = self._watch.stop()
        ended &= self._sources.stop()
        ended &= stop_services([*self._stages.values()], 10.0)
        for pool in self._pools:
            pool.close()
        clock = self._process.clock
        flush_s = clock.monotonic_s() + FLUSH_S
        while any(len(each.queue) for each in self._corrections) and clock.monotonic_s() < flush_s:
            clock.sleep_s(0.02)
        ended &= stop_services(self._corrections, 5.0)
        return self._acks.stop(5.0) and ended

    def answer_waiting_consumers(self) -> None:
        """Ends all waits, now and later, as the first step of a stop. Any thread."""
        self._context.room.close_all()

    @property
    def waiters_count(self) -> int:
        """How many calls of `lease` wait now."""
        return self._context.room.waiters_count

    def count_waiters_by_type(self) -> dict[str, int]:
        """See `WaitingRoom`."""
        return self._context.room.count_waiters_by_type()

    # ---- lease

    async def lease(
        self,
        types: Sequence[str],
        max_jobs: int = 1,
        wait_s: float = 0.0,
        lease_s: float | None = None,
        accept: Accept = lambda job: True,
    ) -> list[LeasedJob]:
        """Waits up to `wait_s` seconds for due jobs of pull types; returns as soon as there are any.

        Returns 1 to `max_jobs` jobs, or none. `lease_s`: how long the leases last, from the claim on (None:
        the type's timeout). `accept(job)`: whether the caller may see the job, by its type and tenant. If
        the call is cancelled, its jobs are given back at once. Raises InvalidInput, and Overloaded.
        """
        self._check_lease_call(types, max_jobs, wait_s)
        lease_ms = {name: self._lease_ms(name, lease_s) for name in types}
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(changed.set)

        waiter = Waiter(lease_ms, max_jobs, accept, tell)
        room = self._context.room
        room.add_waiter(waiter)
        try:
            self._sources.wake(types)
            await _wait_for_jobs(waiter, changed, max(WAIT_S_MIN, wait_s))
        except BaseException:  # a cancelled call: its consumer has gone
            self.give_back(room.close_waiter(waiter))
            raise
        return room.close_waiter(waiter)

    def give_back(self, jobs: Sequence[LeasedJob]) -> None:
        """Gives back leased jobs that their consumer did not get: due at once, the attempt is not counted.

        Returns at once; the jobs are given back in the background. Any thread.
        """
        limits = self._process.limits
        by_claim: dict[tuple[int, str, str], list[LeasedJob]] = defaultdict(list)
        for job in jobs:
            by_claim[self._database_of(job.job_id), job.biz_type, job.token].append(job)
            if limits is not None:
                limits.job_ended(job.job_id, job.token)
        for (database, biz_type, token), some in by_claim.items():
            self._context.give_back(
                self._process.databases[database], self._context.topic_of(biz_type), token,
                [job.job_id for job in some],
                min(ceil_ms(job.action_time - EPOCH) for job in some),  # in the past: due at once
            )  # fmt: skip

    # ---- settle

    async def finish(
        self, items: Sequence[LeaseItem], accept: Accept = lambda job: True
    ) -> list[ItemResult]:
        """Ends jobs as done. Returns a result for each item, in order. Raises InvalidInput and Overloaded."""
        return await self._settle("finish", items, accept)

    async def fail(
        self, items: Sequence[LeaseItem], accept: Accept = lambda job: True
    ) -> list[ItemResult]:
        """Ends attempts as failed: another one by the type's retry policy, or after `retry_after_s`.

        After the last attempt the job is dead, with `reason` in its dead letter. `then` may say that the job
        is dead or cancelled at once, or that it snoozes. As `finish`.
        """
        return await self._settle("fail", items, accept)

    async def extend(
        self, items: Sequence[LeaseItem], accept: Accept = lambda job: True
    ) -> list[ItemResult]:
        """Moves the ends of leases to `lease_s` from now. As `finish`."""
        return await self._settle("extend", items, accept)

    async def release(
        self, items: Sequence[LeaseItem], accept: Accept = lambda job: True
    ) -> list[ItemResult]:
        """Gives jobs back: due at once, the attempt is not counted. As `finish`."""
        return await self._settle("release", items, accept)

    async def _settle(
        self, verb: Verb, items: Sequence[LeaseItem], accept: Accept
    ) -> list[ItemResult]:
        self._check_items(items)
        by_database: dict[int, list[LeaseItem]] = defaultdict(list)
        for item in items:
            by_database[self._database_of(item.job_id)].append(item)
        parts = await asyncio.gather(
            *(self._settle_part(verb, at, part, accept) for at, part in by_database.items())
        )
        results = {item: result for part in parts for item, result in part.items()}
        return [results[item] for item in items]

    async def _settle_part(
        self, verb: Verb, database: int, items: list[LeaseItem], accept: Accept
    ) -> Results:
        settlement = self._settlements[database]
        try:
            return await self._pools[database].run(settlement.settle_items, verb, items, accept)
        except (StoreUnavailable, StatementFailed) as error:
            log.warning("%s of %d leases of database %d: %s", verb, len(items), database, error)
            return {item: ItemResult(item.job_id, "unavailable") for item in items}

    # ---- checks

    def _check_lease_call(self, types: Sequence[str], max_jobs: int, wait_s: float) -> None:
        limits = self._limits
        if isinstance(types, str) or not 1 <= len(types) <= limits.types_max:
            raise InvalidInput("types", types, f"must be a list of 1 to {limits.types_max} types")
        check_integer("max", max_jobs, 1, limits.jobs_max)
        if not is_number(wait_s) or not 0 <= wait_s <= limits.wait_s_max:
            raise InvalidInput("wait_s", wait_s, f"must lie between 0 and {limits.wait_s_max:g}")

    def _lease_ms(self, name: str, lease_s: float | None) -> int:
        declared = self._catalogue.get(name) if isinstance(name, str) else None
        if declared is None or declared.mode != "pull":
            raise InvalidInput("types", name, "is not declared as a pull type")
        most = max(LEASE_S_MIN, min(declared.timeout_s, float(LEASE_S_MAX)))
        if lease_s is None:
            return round(most * 1000)
        if not is_number(lease_s) or not LEASE_S_MIN <= lease_s <= most:
            rule = (
                f"must lie between {LEASE_S_MIN:g} and {most:g} seconds: the timeout of type {name}"
                f" is {declared.timeout_s:g} s"
            )
            raise InvalidInput("lease_s", lease_s, rule)
        return round(lease_s * 1000)

    def _check_items(self, items: Sequence[LeaseItem]) -> None:
        if not 1 <= len(items) <= self._limits.items_max:
            rule = f"must have 1 to {self._limits.items_max} items"
            raise InvalidInput("items", len(items), rule)
        for item in items:
            check_job_id(item.job_id)
            if not isinstance(item.token, str) or not 1 <= len(item.token) <= TOKEN_CHARS_MAX:
                # The value is not shown: it may be the secret of a lease.
                rule = f"must be a text of 1 to {TOKEN_CHARS_MAX} characters"
                raise InvalidInput("token", type(item.token), rule)
            if item.reason is None or not check_reason(item.reason):
                raise InvalidInput("reason", item.reason, "must not be empty")
            _check_then(item)
            _check_seconds("lease_s", item.lease_s, LEASE_S_MIN, LEASE_S_MAX)

    def _database_of(self, job_id: int) -> int:
        routing = self._process.databases.routing
        return routing.database_index(routing.shard_of_hash(routing_bits_of(job_id)))


def _check_then(item: LeaseItem) -> None:
    if item.then not in get_args(Then):
        names = ", ".join(map(repr, get_args(Then)))
        raise InvalidInput("then", item.then, f"must be one of {names}")
    # A snooze may last until the last time that a database can store.
    most_s = MS_MAX / 1000 if item.then == "snooze" else DELAY_S_MAX
    _check_seconds("retry_after_s", item.retry_after_s, 0, most_s)


def _check_seconds(field: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not (is_number(value) and low <= value <= high):
        raise InvalidInput(field, value, f"must lie between {low:g} and {high:g} seconds")


async def _wait_for_jobs(waiter: Waiter, changed: asyncio.Event, wait_s: float) -> None:
    """Waits for the first jobs; then, for a moment, for jobs that are being claimed at the same time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            while not (waiter.jobs or waiter.closed):
                await changed.wait()
                changed.clear()
    rest_s = GATHER_S if waiter.jobs else CLAIM_WAIT_S_MAX
    if waiter.closed or not waiter.reserved:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(rest_s):
            while waiter.reserved and not waiter.is_complete:
                await changed.wait()
                changed.clear()
