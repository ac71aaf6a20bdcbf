"""Runs handlers over leases: a worker for machines that may not have the database's password.

A loop in a thread of its own talks with the server: it waits for due jobs, extends the leases of jobs that it
holds, and ends leases in batches. The handler pool of `toc worker` runs the handlers. A worker that is killed
extends nothing: its jobs run elsewhere when their leases end.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress

from toc.client.http_call import HttpAnswer, HttpCall, read_document
from toc.client.lease_extension import LeaseExtension
from toc.client.lease_run import LeaseRun, make_lease_run
from toc.client.lease_settler import LeaseSettler
from toc.client.leases import Lease, PullType, lease_call, parse_leases, read_pull_types
from toc.client.pauses import Pauses
from toc.client.server_address import ServerAddress
from toc.client.transport import AsyncTransport, Wiring
from toc.errors import InvalidInput, TocError
from toc.handlers.current_job import log_fields_of_job
from toc.handlers.hook_calls import report_failure
from toc.handlers.registry import Registry
from toc.runtime.clock import Clock, SystemClock
from toc.runtime.log_throttle import LogThrottle
from toc.runtime.settings import Settings
from toc.store.claims import OutcomeKind
from toc.worker.attempt import FAILED
from toc.worker.handler_pool import WATCH_S, HandlerPool
from toc.worker.handler_table import with_hooks
from toc.worker.job_run import JobRun
from toc.worker.outcome import outcome_for_giving_back, outcome_of_run
from toc.worker.run_log import RunLog

log = logging.getLogger(__name__)

LAST_CALLS_S = 5.0  # of a stop, to end the last leases
MARGIN_PART = 4  # a handler starts only if a third of its lease is left and a fourth of it besides
QUICK_S = 0.2  # an empty answer that came sooner is followed by a pause
LEASE_S_MIN = 1.0  # the server gives no shorter leases
TYPES_AGE_S = 60.0  # then the declarations are read again


class RemoteWorker:
    """Runs the handlers of a registry over leases of a server.

    `restart_wanted()`: called when too many handlers are stuck. `ended_by_itself()`: called when the server
    refuses the first call, as for a wrong token or a type that is no pull type; `failure` has the error.
    """

    def __init__(
        self,
        address: ServerAddress,
        settings: Settings,
        handlers: Registry,
        *,
        ca_file: str | None = None,
        clock: Clock | None = None,
        restart_wanted: Callable[[], None] = lambda: None,
        ended_by_itself: Callable[[], None] = lambda: None,
    ) -> None:
        if handlers.handler_of_every_type is not None:
            raise InvalidInput("handlers", "*", "a remote worker needs the name of each type")
        self._settings, self._handlers = settings, handlers
        self._clock = clock or SystemClock()
        self._ended_by_itself = ended_by_itself
        worker = settings.worker
        self._pool = HandlerPool(
            self._clock, self._may_start, self._finish_run, restart_wanted,
            threads=worker.concurrency, async_tasks=worker.async_concurrency, stuck_max=worker.stuck_max,
            solitary_max=worker.queue_max,
        )  # fmt: skip
        self._capacity = {False: worker.concurrency, True: worker.async_concurrency}
        self._held: dict[int, LeaseRun] = {}  # by the id() of the run; changed in the loop only
        self._run_log = RunLog(self._clock, tracebacks=worker.tracebacks_per_minute)
        self._log_throttle = LogThrottle(log)
        self._thread = threading.Thread(target=self._run_loop, name="toc-remote", daemon=True)
        self._is_draining = False  # no handler starts any more
        self._has_leased = False
        self._types: dict[str, PullType] = {}
        self._types_read_s = 0.0
        self._transport = AsyncTransport(Wiring(address, settings.client, ca_file))
        self._settler = LeaseSettler(
            self._transport, settings.client, self._clock, self._forget_run
        )
        self._extension = LeaseExtension(
            self._transport, self._pool, self._clock, self._held.values
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()  # no further leases
        self._end = asyncio.Event()  # the loop ends
        self._places = asyncio.Event()  # a lease has ended
        self._is_ready = threading.Event()
        self.failure: Exception | None = None

    # ---- life

    def start(self) -> None:
        """Starts the threads. Asks the server for jobs in the background."""
        self._pool.start()
        self._thread.start()
        self._is_ready.wait()

    def stop(self) -> bool:
        """Takes no more jobs, releases those that have not started, waits up to `worker.stop_s` for handlers.

        Then `async` handlers are cancelled, and their jobs are released too. True: no handler runs any more.
        """
        if self._thread.ident is None or self._end.is_set():
            return not self._running_runs()
        self._is_draining = True
        self._set_in_loop(self._stop)
        self._pool.give_back_waiting_runs()
        self._wait_until(lambda: not self._held, self._settings.worker.stop_s)
        self._pool.close()
        self._wait_until(lambda: len(self._held) == len(self._running_runs()), LAST_CALLS_S)
        clean = not self._running_runs()
        self._set_in_loop(self._end)
        self._thread.join(LAST_CALLS_S)
        return clean

    @property
    def held_count(self) -> int:
        """How many leases this worker holds."""
        return len(self._held)

    def _running_runs(self) -> list[JobRun]:
        return self._pool.running.runs_of_database(0)

    def _set_in_loop(self, event: asyncio.Event) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(event.set)

    def _wait_until(self, is_reached: Callable[[], bool], seconds: float) -> None:
        end_s = self._clock.monotonic_s() + seconds
        while not is_reached() and self._clock.monotonic_s() < end_s and self._thread.is_alive():
            self._clock.sleep_s(0.02)

    # ---- the loop

    def _run_loop(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:
            log.exception("the remote worker has ended")
            self.failure = error
            self._ended_by_itself()
        finally:
            self._is_ready.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        works = [self._settler.run(), self._extension.run(), self._lease_jobs(), self._end.wait()]
        tasks = [asyncio.ensure_future(work) for work in works]
        self._is_ready.set()
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._transport.close()
        for task in done:
            task.result()

    async def _lease_jobs(self) -> None:
        """Leases jobs until the worker stops: with a waiting call for each group of types."""
        if await self._read_types():
            groups: dict[tuple[bool, float, int], list[str]] = defaultdict(list)
            for spec in self._handlers:
                lease_s = self._lease_s_of(spec.biz_type)
                groups[spec.is_async, lease_s, spec.batch].append(spec.biz_type)
            tasks = [
                asyncio.create_task(self._lease_group(types, is_async, batch, len(groups)))
                for (is_async, _, batch), types in groups.items()
            ]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
        await self._end.wait()

    async def _read_types(self) -> bool:
        """Reads the declarations of the handlers' types; tries until it has them. False: the worker stops."""
        pauses = Pauses(self._settings.client, self._stop)
        names = [spec.biz_type for spec in self._handlers]
        while not self._stop.is_set():
            try:
                self._types = await self._transport.run_verb(read_pull_types(names))
                self._types_read_s = self._clock.monotonic_s()
                return True
            except TocError as error:
                self._handle_error(error)
            await pauses.wait_after_failure()
        return False

    def _lease_s_of(self, biz_type: str) -> float:
        """How long a lease of a type lasts: the server refuses more than the type's timeout."""
        return max(LEASE_S_MIN, min(self._settings.worker.lease_s, self._types[biz_type].timeout_s))

    async def _lease_group(
        self, types: Sequence[str], is_async: bool, batch: int, groups: int
    ) -> None:
        """Leases jobs of some types for as many handlers as may start, until the worker stops.

        The groups share the handlers, so a group leases at most its share of the free ones at a time.
        batch: how many jobs one call of these handlers gets; 0: one.
        """
        client, pauses = self._settings.client, Pauses(self._settings.client, self._stop)
        while not self._stop.is_set():
            free = self._count_free_places(is_async)
            if free <= 0:
                self._places.clear()
                await _wait_for_any(self._places, self._stop)
                continue
            lease_s = min(map(self._lease_s_of, types))
            jobs_max = min(max(1, free // groups) * max(1, batch), client.lease_max)
            call = lease_call(types, jobs_max, client.wait_s, lease_s, client.read_s)
            began_s = self._clock.monotonic_s()
            leases = await self._ask_for_leases(call)
            if leases is None:
                await pauses.wait_after_failure()
                await self._read_types()  # a declaration may have changed
                continue
            pauses.reset()
            self._has_leased = True
            self._start_runs(leases, lease_s)
            now_s = self._clock.monotonic_s()
            if not leases and now_s - began_s < min(QUICK_S, client.wait_s):
                await pauses.wait_after_failure()  # the server stops: it answers all that wait
            if now_s - self._types_read_s > TYPES_AGE_S:
                await self._read_types()

    def _count_free_places(self, is_async: bool) -> int:
        """How many more handlers may start. Stuck threads have substitutes. A batch takes one place."""
        now_s = self._clock.monotonic_s()
        taken = sum(
            1 / max(1, run.spec.batch)
            for run in self._held.values()
            if run.spec.is_async is is_async and (is_async or not run.is_beyond_timeout(now_s))
        )
        return math.floor(self._capacity[is_async] - taken)

    async def _ask_for_leases(self, call: HttpCall) -> list[Lease] | None:
        """The leases that the server gives; None: the call failed. A stop ends a call that still waits."""
        has_begun = asyncio.Event()
        sending = asyncio.create_task(self._transport.send(call, has_begun.set))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([sending, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not sending.done() and not has_begun.is_set():
            sending.cancel()  # the server sees the closed connection, and leases nothing
        try:
            found = await sending
            if isinstance(found, HttpAnswer):
                return parse_leases(read_document(found), self._settings.worker.extend_s_max)
            self._handle_error(found.error)
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
        except TocError as error:
            self._handle_error(error)
        return None

    def _handle_error(self, error: TocError) -> None:
        """Logs an error. Before the first lease, an error that a repetition does not help ends the worker."""
        if self._has_leased or error.retryable:
            text = "no jobs can be leased now; the worker tries on: %s"
            self._log_throttle.warning(error.code, text, error)
        elif self.failure is None:
            self.failure = error
            self._stop.set()
            self._ended_by_itself()

    def _start_runs(self, leases: Sequence[Lease], lease_s: float) -> None:
        now_s, now_ms = self._clock.monotonic_s(), self._clock.wall_ms()
        for lease in leases:
            spec = self._handlers.get(lease.job.biz_type)
            if spec is None or lease.job.biz_type not in self._types:
                log.error("job %d of %s was not asked for", lease.job.job_id, lease.job.biz_type)
                continue
            declared = self._types[lease.job.biz_type]
            if self._handlers.hooks.registered.are_around_runs:
                spec = with_hooks(spec, self._handlers.hooks)
            run = make_lease_run(lease, spec, declared, lease_s, now_s, now_ms)
            self._held[id(run)] = run
            self._pool.enqueue(run)

    def _forget_run(self, run: LeaseRun) -> None:
        self._held.pop(id(run), None)
        self._places.set()

    # ---- the pool's callbacks: any thread

    def _may_start(self, run: JobRun) -> bool:
        """Whether enough of the lease is left to start the handler. False: the job is released."""
        assert isinstance(run, LeaseRun)  # noqa: S101 - the pool gets no other
        now_s = self._clock.monotonic_s()
        held_s = min(run.spec.timeout_s, run.lease_s / 3)
        margin_s = min(self._settings.worker.lease_margin_s, run.lease_s / MARGIN_PART)
        left_s = run.lease_left_s(now_s, self._clock.wall_ms())
        if self._is_draining or run.control.is_lost or left_s < held_s + margin_s:
            self._settle(run, None, give_back=True)
            return False
        is_first = run.job.attempts == 1 and run.started_s == 0  # not alone, after its batch
        run.control.lateness_s = run.lateness_s(now_s) if is_first else None
        run.started_s = now_s
        self._run_log.log_handler_start(run)
        return True

    def _finish_run(self, run: JobRun, result: object) -> None:
        assert isinstance(run, LeaseRun)  # noqa: S101 - the pool gets no other
        self._settle(run, result, give_back=False)

    def _settle(self, run: LeaseRun, result: object, *, give_back: bool) -> None:
        now_s = self._clock.monotonic_s()
        now_ms = run.database_now_ms(now_s)
        if give_back:
            outcome = outcome_for_giving_back(run)
        else:
            snooze_ms_min = round(self._settings.worker.snooze_s_min * 1000)
            try:
                outcome = outcome_of_run(run, result, now_ms, 0.0, snooze_ms_min=snooze_ms_min)
            except Exception as error:  # an invalid verdict must not end the thread
                log.exception(
                    "the verdict of job %d is invalid: the attempt failed", run.job.job_id,
                    extra=log_fields_of_job(run.job),
                )  # fmt: skip
                outcome = outcome_of_run(run, error, now_ms, 0.0, snooze_ms_min=snooze_ms_min)
            self._run_log.log_remote_end(run, result, outcome, now_s - run.started_s)
            if outcome.kind in FAILED and not run.control.is_lost:
                is_dead = outcome.kind is OutcomeKind.BURY
                hooks = self._handlers.hooks.registered
                report_failure(hooks, run.job, result, is_dead=is_dead)
        run.may_extend = False
        self._settler.enqueue(run, result, outcome, now_ms)


async def _wait_for_any(*events: asyncio.Event) -> None:
    """Waits for one of the events, or WATCH_S: a handler may have reached its timeout."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=WATCH_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
