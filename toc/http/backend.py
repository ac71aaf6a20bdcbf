"""What all calls of a process share: the center, the declared types, access control, and the threads."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from toc.access.access import Access
from toc.center.async_center import AsyncTimeoutCenter
from toc.center.center import TimeoutCenter
from toc.center.job_spec import CheckedJob
from toc.domain.biz_ids import BusinessId
from toc.domain.ids import routing_bits_of
from toc.domain.job import Scheduled
from toc.domain.routing import routing_hash_of
from toc.errors import TocError
from toc.handlers.registry import Registry
from toc.http.database_calls import DatabaseCalls
from toc.http.mass_runs import MassRuns
from toc.leases.lease_server import LeaseServer
from toc.node.lease_node import LeaseNode
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.settings import Settings
from toc.store.databases import Databases
from toc.store.job_search import JobSearch, SearchPage, search_database
from toc.store.jobs import OnDuplicate

log = logging.getLogger(__name__)

CONNECTIONS = 4  # of the audit, the tokens and the catalogue: they must not wait for those of calls
EXPLANATIONS_MAX = 4  # at the same time: each opens connections to all servers
MASS_READS_MAX = 2  # as explanations
SEARCHES_MAX = 4  # at the same time: each makes many calls, and the places are those of all callers
FORECASTS_MAX = 2  # at the same time: each may compute for seconds, and takes turns with all calls
HEALTH_AGE_S_MAX = 2.0


class Backend:
    """The parts that calls use. `start` connects; a process has one backend for one event loop."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self._routing = settings.routing  # the property makes a new one each time
        self.clock = clock or SystemClock()
        self.center = TimeoutCenter(settings, handlers=Registry(), clock=self.clock)
        self.async_center = AsyncTimeoutCenter(self.center)
        self.databases = Databases.from_settings(settings, self.clock, pool_size=CONNECTIONS)
        self.access = Access(settings, self.databases, self.clock)
        self._lease_node = LeaseNode(settings, clock=self.clock)
        self.catalogue = self._lease_node.catalogue
        self.calls = DatabaseCalls(settings)
        self.explanations = asyncio.Semaphore(EXPLANATIONS_MAX)
        self.mass_reads = asyncio.Semaphore(MASS_READS_MAX)
        self.searches = asyncio.Semaphore(SEARCHES_MAX)
        self.forecasts = asyncio.Semaphore(FORECASTS_MAX)
        self.mass_runs = MassRuns(settings, self.clock, self.databases[0], self.access)
        self._start_lock = threading.Lock()
        self._is_started = self._has_leases = False
        self.query_callers: set[str] = set()  # people whose statement runs on the page SQL
        self.is_stopping = False  # calls that wait are answered at once
        self._health = HealthProbe(self)
        self._stops: list[Callable[[], object]] = []

    # ---- life

    @property
    def is_started(self) -> bool:
        return self._is_started

    def start(self) -> None:
        """Reads the tokens and the declared types, and starts the threads. Blocks; starts once."""
        with self._start_lock:
            if not self._is_started:
                self.catalogue.start()
                self.access.start()
                self._is_started = True

    def start_leases(self) -> None:
        """Starts the lease server, unless a server that it needs is away: then the first lease call does.

        `toc web` calls this at its start, so that the timers of pull types are armed before a consumer comes.
        """
        try:
            self._start_leases_once()
        except TocError as error:
            log.warning("no leases yet, the next call for one tries again: %s", error)

    def at_stop(self, stop: Callable[[], object]) -> None:
        """Calls `stop()` when this stops, in a thread that may wait."""
        self._stops.append(stop)

    async def stop(self) -> None:
        """Waits for the calls that run, writes the audit, disconnects."""
        await self.async_center.close()

        def stop_parts() -> None:
            for stop in self._stops:
                stop()
            self.calls.close()
            self.mass_runs.stop()
            self.access.stop()
            self._lease_node.stop()
            self.databases.close()

        await asyncio.to_thread(stop_parts)

    def answer_waiting_consumers(self) -> None:
        """Ends all long polls, now and later. Any thread."""
        self.is_stopping = True
        self._lease_node.server.answer_waiting_consumers()

    async def lease_server(self) -> LeaseServer:
        """The lease server. Raises StoreUnavailable or SchemaMismatch while it cannot be started."""
        if not self._has_leases:
            await asyncio.to_thread(self._start_leases_once)
        return self._lease_node.server

    def count_waiting_consumers(self) -> dict[str, int]:
        """How many consumers wait at this process for jobs of each type; one of several counts for each."""
        return self._lease_node.server.count_waiters_by_type() if self._has_leases else {}

    def _start_leases_once(self) -> None:
        with self._start_lock:
            if not self._has_leases:
                self._lease_node.start()
                self._has_leases = True

    # ---- new jobs

    async def write_job(self, job: CheckedJob) -> int:
        """Writes a job without a dedup_key, together with those of other calls; returns its id."""
        return await self.async_center._write_checked_job(job)  # noqa: SLF001 - it was checked here

    def write_jobs(
        self, jobs: Sequence[CheckedJob], rule: OnDuplicate, actor: str
    ) -> list[Scheduled | Exception]:
        """Writes jobs; returns the result or the error of each, in their order. Blocks."""
        return self.center._write_checked_jobs(jobs, rule, actor)  # noqa: SLF001 - they were checked here

    # ---- lists for people

    def search_jobs(self, index: int, search: JobSearch, keys_max: int) -> SearchPage:
        """A page of a search in one database. The caller checks who may read each job. Blocks."""
        connections = self.center._open_connections()  # noqa: SLF001 - the audit has too few of its own
        return search_database(connections.databases[index], search, keys_max)

    # ---- which database

    def database_of_business(self, business: BusinessId) -> int:
        """The index of the database that has the jobs of a business id."""
        routing = self._routing
        return routing.database_index(routing.shard_of_hash(routing_hash_of(business.number)))

    def database_of_job(self, job_id: int) -> int:
        """The index of the database that has a job."""
        routing = self._routing
        return routing.database_index(routing.shard_of_hash(routing_bits_of(job_id)))

    async def read_health(self) -> str:
        """ok, degraded or down: see `HealthOut`."""
        return await self._health.read_state()


class HealthProbe:
    """Asks each database for its time, at most every HEALTH_AGE_S_MAX: anybody may call it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._state, self._at_s = "down", float("-inf")
        self._probe: asyncio.Task[None] | None = None

    async def read_state(self) -> str:
        """The state that was found last; a new one if that is too old."""
        now_s = self._backend.clock.monotonic_s()
        if now_s - self._at_s > HEALTH_AGE_S_MAX:
            if self._probe is None or self._probe.done():
                self._probe = asyncio.create_task(self._ask_databases())
            limit_s = self._backend.settings.connect_timeout_s
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await asyncio.shield(self._probe)
        return self._state

    async def _ask_databases(self) -> None:
        asked = [asyncio.to_thread(self._answers, it.index) for it in self._backend.databases]
        answered = await asyncio.gather(*asked)
        self._state = "ok" if all(answered) else "degraded" if any(answered) else "down"
        self._at_s = self._backend.clock.monotonic_s()

    def _answers(self, index: int) -> bool:
        try:
            self._backend.databases[index].now_ms()
        except TocError:
            return False
        return True
