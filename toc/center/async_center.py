"""AsyncTimeoutCenter: the verbs for `async` code. No call blocks the event loop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Concatenate, ParamSpec, TypeVar, Unpack

from toc.center.center import JobOptions, TimeoutCenter
from toc.center.connections import Connections
from toc.center.job_spec import CheckedJob, When
from toc.center.job_wait import check_timeout, wait_for_end_async
from toc.center.schedule_batches import ScheduleBatches, WaitingJob
from toc.center.schedule_hooks import begin_schedule
from toc.domain.ids import check_job_id
from toc.domain.job import Job

P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    verb: Callable[Concatenate[TimeoutCenter, P], T],
) -> Callable[Concatenate[AsyncTimeoutCenter, P], Awaitable[T]]:
    """Makes the async verb that calls a verb of TimeoutCenter in a thread."""

    @functools.wraps(verb)
    async def call(self: AsyncTimeoutCenter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run_in_thread(functools.partial(verb, self.center, *args, **kwargs))

    return call


class AsyncTimeoutCenter:
    """A client of toc for `async` code: the verbs of `TimeoutCenter`, to be awaited.

        async with toc.AsyncTimeoutCenter() as center:
            job_id = await center.schedule(42, timedelta(minutes=30), biz_type="order.close")
            await center.cancel(job_id)

    Verbs run in threads, at most `pool_size` for each database. Calls of `schedule` that wait at the same
    time are written in one transaction, so that many tasks schedule several times as fast as one thread.

    center: the client that does the work, and that `close` closes; default: a new one, with the settings from
    toc.toml and TOC_… variables. For a job in your own transaction, use `center.schedule(session=...)` in
    `await session.run_sync(...)`.
    """

    def __init__(self, center: TimeoutCenter | None = None) -> None:
        self.center = TimeoutCenter() if center is None else center
        self._threads: ThreadPoolExecutor | None = None
        self._batches: dict[int, ScheduleBatches] = {}  # by database
        self._pid = os.getpid()

    async def schedule(
        self, biz_id: int | str, action_time: When, **options: Unpack[JobOptions]
    ) -> int:
        """Schedules one job, as `TimeoutCenter.schedule`; returns the job_id after the COMMIT.

        A job without a dedup_key is written together with those of other waiting calls for its database. Each
        call gets its own result or error. A call that is cancelled may have written its job.
        """
        job = self.center._check_job(biz_id, action_time, **options)  # noqa: SLF001 - both are the client
        if job.dedup_key is not None:
            schedule = functools.partial(self.center.schedule, biz_id, action_time, **options)
            return await self._run_in_thread(schedule)
        state = await self._connect()
        checks, database = state.payload_checks, state.database_of_business(job.business)
        if checks.may_block(job.biz_type):
            await self._run_in_thread(functools.partial(checks.check_job, database, job))
        return await self._write_with_others(database.index, job)

    schedule_many = _in_thread(TimeoutCenter.schedule_many)
    cancel = _in_thread(TimeoutCenter.cancel)
    schedule_each = _in_thread(TimeoutCenter.schedule_each)
    reschedule = _in_thread(TimeoutCenter.reschedule)
    run_now = _in_thread(TimeoutCenter.run_now)
    arrive = _in_thread(TimeoutCenter.arrive)
    countdown = _in_thread(TimeoutCenter.countdown)
    debounce = _in_thread(TimeoutCenter.debounce)
    redrive = _in_thread(TimeoutCenter.redrive)
    discard = _in_thread(TimeoutCenter.discard)
    pause = _in_thread(TimeoutCenter.pause)
    resume = _in_thread(TimeoutCenter.resume)
    pauses = _in_thread(TimeoutCenter.pauses)
    get = _in_thread(TimeoutCenter.get)
    find = _in_thread(TimeoutCenter.find)
    dead = _in_thread(TimeoutCenter.dead)
    recur = _in_thread(TimeoutCenter.recur)

    async def wait(self, job_id: int, timeout: float | timedelta = 30.0) -> Job | None:
        """Waits until a job has ended, as `TimeoutCenter.wait`. Takes a thread only while it reads a row."""
        limits = self.center.settings.limits
        check_job_id(job_id)
        seconds = check_timeout(timeout, limits)
        return await wait_for_end_async(job_id, seconds, lambda: self.get(job_id), limits.waiters)

    async def close(self) -> None:
        """Waits for the calls that are under way, then disconnects. The next call connects again."""
        threads, self._threads = self._threads, None
        batches, self._batches = self._batches, {}

        def end_and_disconnect() -> None:
            for each in batches.values():
                each.close()
            if threads is not None:
                threads.shutdown()
            self.center.close()

        await asyncio.to_thread(end_and_disconnect)

    async def __aenter__(self) -> AsyncTimeoutCenter:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # ---- inside

    async def _connect(self) -> Connections:
        state = self.center._state  # noqa: SLF001 - both are the client
        if state is None:  # connecting blocks
            state = await self._run_in_thread(self.center._open_connections)  # noqa: SLF001
        return state

    async def _write_checked_job(self, job: CheckedJob) -> int:
        """As `schedule`, with a job without a dedup_key that is checked already."""
        state = await self._connect()
        return await self._write_with_others(state.database_of_business(job.business).index, job)

    async def _write_with_others(self, database: int, job: CheckedJob) -> int:
        loop = asyncio.get_running_loop()
        hooked = begin_schedule(self.center.hooks, [job])
        if hooked is not None:
            job = hooked.jobs[0]
        waiting = WaitingJob(job, loop.create_future(), loop)
        try:
            self._batches_of_database(database).enqueue(waiting)
            job_id = await waiting.answer
        except BaseException as error:
            if hooked is not None:
                hooked.fail(error)
            raise
        if hooked is not None:
            hooked.end([job_id])
        return job_id

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        self._forget_threads_of_parent()
        if self._threads is None:
            settings = self.center.settings
            threads = settings.pool_size * len(settings.databases)
            self._threads = ThreadPoolExecutor(threads, "toc-async")
        in_context = functools.partial(contextvars.copy_context().run, call)
        return await asyncio.get_running_loop().run_in_executor(self._threads, in_context)

    def _batches_of_database(self, index: int) -> ScheduleBatches:
        self._forget_threads_of_parent()
        batches = self._batches.get(index)
        if batches is None:
            batches = self._batches[index] = ScheduleBatches(
                lambda jobs: self.center._prepare_bulk(jobs, "keep"),  # noqa: SLF001 - both are the client
                lambda job: self.center._open_connections().shard_of_business(job.business),  # noqa: SLF001
            )
        return batches

    def _forget_threads_of_parent(self) -> None:
        """After a fork: the threads exist only in the parent process."""
        if self._pid != os.getpid():
            self._pid, self._threads, self._batches = os.getpid(), None, {}
