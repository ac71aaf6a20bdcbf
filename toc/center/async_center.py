"""AsyncTimeoutCenter: the verbs for `async` code. No call blocks the event loop."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypedDict, TypeVar, Unpack

from toc.center.center import TimeoutCenter
from toc.center.job_spec import CheckedJob, When
from toc.errors import InvalidInput
from toc.store.jobs import OnDuplicate

P = ParamSpec("P")
T = TypeVar("T")

BATCH_MAX = 500  # jobs that are written together
WRITERS_MAX = 2  # batches that are written at the same time


class AsyncScheduleOptions(TypedDict, total=False):
    """The options of `AsyncTimeoutCenter.schedule`."""

    biz_type: str
    attribute: dict[str, Any] | None
    dedup_key: str | None
    on_duplicate: OnDuplicate
    tenant: str | None


class _WaitingJob(NamedTuple):
    job: CheckedJob
    answer: asyncio.Future[int]


def _in_thread(
    verb: Callable[Concatenate[TimeoutCenter, P], T],
) -> Callable[Concatenate[AsyncTimeoutCenter, P], Awaitable[T]]:
    """Makes the async verb that calls a verb of TimeoutCenter in a thread."""

    @functools.wraps(verb)
    async def call(self: AsyncTimeoutCenter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run_in_thread(functools.partial(verb, self.center, *args, **kwargs))

    return call


class AsyncTimeoutCenter:
    """A client of toc for one event loop: each verb of `TimeoutCenter`, to be awaited.

        async with toc.AsyncTimeoutCenter() as center:
            job_id = await center.schedule(42, timedelta(minutes=30), biz_type="order.close")
            await center.cancel(job_id)

    Verbs run in threads, as many as `pool_size`. Calls of `schedule` that wait at the same time are written
    in one transaction, so that many tasks schedule several times as fast as one thread.

    center: the client that does the work, and that `close` closes; default: a new one, with the settings from
    toc.toml and TOC_… variables. For a job in your own transaction, use `center.schedule(session=...)` in
    `await session.run_sync(...)`.
    """

    def __init__(self, center: TimeoutCenter | None = None) -> None:
        self.center = TimeoutCenter() if center is None else center
        self._threads: ThreadPoolExecutor | None = None
        self._waiting: deque[_WaitingJob] = deque()
        self._writers: set[asyncio.Task[None]] = set()

    async def schedule(
        self, biz_id: int | str, action_time: When, **options: Unpack[AsyncScheduleOptions]
    ) -> int:
        """Schedules one job, as `TimeoutCenter.schedule`; returns the job_id after the COMMIT.

        Jobs without a dedup_key are written together with those of other waiting calls. Each call gets its
        own result or error. A call that is cancelled may have written its job.
        """
        if options.get("dedup_key") is not None:
            schedule = functools.partial(self.center.schedule, biz_id, action_time, **options)
            return await self._run_in_thread(schedule)
        job = self.center._check_job(biz_id, action_time, **options)  # noqa: SLF001 - both are the client
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_WaitingJob(job, answer))
        if len(self._writers) < WRITERS_MAX:
            writer = asyncio.create_task(self._write_waiting_jobs())
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)
        return await answer

    schedule_many = _in_thread(TimeoutCenter.schedule_many)
    cancel = _in_thread(TimeoutCenter.cancel)
    reschedule = _in_thread(TimeoutCenter.reschedule)
    redrive = _in_thread(TimeoutCenter.redrive)
    get = _in_thread(TimeoutCenter.get)
    find = _in_thread(TimeoutCenter.find)
    dead = _in_thread(TimeoutCenter.dead)

    async def close(self) -> None:
        """Waits for the jobs that are being written, then disconnects."""
        await asyncio.gather(*self._writers)
        await self._run_in_thread(self.center.close)
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncTimeoutCenter:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # ---- inside

    async def _run_in_thread(self, call: Callable[[], T]) -> T:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.center.settings.pool_size, "toc-async")
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _write_waiting_jobs(self) -> None:
        """Writes the waiting jobs, batch by batch, until none waits."""
        while self._waiting:
            # Calls that are made in the same step of the loop join the batch.
            await asyncio.sleep(0)
            batch: list[_WaitingJob] = []
            while self._waiting and len(batch) < BATCH_MAX:
                waiting = self._waiting.popleft()
                if not waiting.answer.cancelled():
                    batch.append(waiting)
            jobs = [waiting.job for waiting in batch]
            try:
                results = await self._run_in_thread(functools.partial(self._write_jobs, jobs))
            except Exception as error:  # noqa: BLE001 - each waiting call raises it
                results = [error] * len(jobs)
            for waiting, result in zip(batch, results, strict=True):
                if waiting.answer.cancelled():
                    continue
                if isinstance(result, Exception):
                    waiting.answer.set_exception(result)
                else:
                    waiting.answer.set_result(result)

    def _write_jobs(self, jobs: Sequence[CheckedJob]) -> list[int | Exception]:
        """Writes jobs in a thread; returns the job_id or the error of each. Raises what concerns all."""
        bulk = self.center._prepare_bulk(jobs, "keep")  # noqa: SLF001 - both are the client
        failure: Exception | None = None
        try:
            bulk.write_and_arm()
        except Exception as error:  # noqa: BLE001 - some of the jobs may be written
            failure = error
        # InvalidInput, for example because of a type that is one too many: its part was not written.
        one_by_one = isinstance(failure, InvalidInput) and len(jobs) > 1
        results: list[int | Exception] = []
        for job, inserted in zip(jobs, bulk.inserted, strict=True):
            if inserted is not None:
                results.append(inserted.job_id)
            elif one_by_one and bulk.error_of(job) is None:
                results += self._write_jobs([job])
            else:
                found = bulk.error_of(job) or failure
                assert found is not None  # noqa: S101 - otherwise the job would be written
                results.append(found)
        return results
