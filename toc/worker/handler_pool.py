"""The run stage: runs handlers, in threads for plain functions, on an event loop for `async def`.

A thread cannot be killed. A handler that runs beyond its timeout is counted as stuck, and a substitute thread
is started so that other jobs still run; the job of the stuck handler is settled only when this handler ends.
When the job's lease is over, another claim may take the job; the database then refuses the late outcome by
its token.

A batch handler gets many jobs in one call: `handler_batch` says which. A consumer in another process would
take the place of this stage, which is an `Inbox[JobRun]`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

from toc.domain.job import Job
from toc.handlers.current_job import log_fields_of_job, running_job
from toc.handlers.verdicts import Verdict
from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.worker.handler_batch import BatchCollector, BatchEnds, HandlerBatch, HandlerCall
from toc.worker.job_run import CancelledByShutdown, JobRun, result_or_type_error

log = logging.getLogger(__name__)

OnFinished = Callable[[JobRun, object], None]
"""Called once per started run with what the handler returned or raised."""
OnCallEnd = Callable[[HandlerCall, object], None]
"""Called once per call of a handler with what it returned or raised."""

WATCH_S = 0.5
CANCEL_S = 1.0  # how long cancelled tasks may take to end when the process ends
# A task counts as stuck this long after its timeout, so that asyncio's timeout comes first.
TIMEOUT_FIRST_S = 0.5


class RunningHandlers:
    """Which handlers run at this moment, and which of them run beyond their timeout (are stuck). Thread-safe.

    A key is a thread or a task; it runs one handler at a time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # By key: the call, and since when by the monotonic clock.
        self._running: dict[int, tuple[HandlerCall, float]] = {}
        self._stuck: set[int] = set()
        # By the id() of the run: runs of failed batches that wait to run alone. Their leases are renewed.
        self._between: dict[int, JobRun] = {}

    def record_start(self, key: int, call: HandlerCall, allowance_s: float = 0.0) -> None:
        """Records that a handler starts; it is stuck after its timeout plus `allowance_s`."""
        self._running[key] = (call, self._clock.monotonic_s() + allowance_s)

    def record_between(self, run: JobRun) -> None:
        """Records that the batch of a run has failed, and that the run will start again, alone."""
        run.started_s = math.inf  # it has not begun: its lease is renewed until it has
        self._between[id(run)] = run

    def end_between(self, run: JobRun) -> None:
        """Records that a run starts alone, or is given back."""
        self._between.pop(id(run), None)

    def record_end(self, key: int) -> bool:
        """Records that a handler has ended; True: the handler was stuck."""
        with self._lock:
            del self._running[key]
            stuck = key in self._stuck
            if stuck:
                self._stuck.discard(key)
                metrics.HANDLERS_STUCK.set(len(self._stuck))
            return stuck

    def is_handler_running(self, key: int | None) -> bool:
        return key in self._running

    def find_newly_stuck(self) -> Iterator[tuple[HandlerCall, int]]:
        """Yields each handler that became stuck since the last call, and the number that are stuck by now."""
        now_s = self._clock.monotonic_s()
        for key, (call, since_s) in list(self._running.items()):
            if key in self._stuck or now_s - since_s <= call.timeout_s:
                continue
            job = call.runs[0].job
            log.warning(
                "handler of %s runs beyond its timeout of %g s (job %d%s): its thread is counted as stuck",
                job.biz_type, call.timeout_s, job.job_id,
                f" and {len(call.runs) - 1} more" if len(call.runs) > 1 else "",
                extra=log_fields_of_job(job),
            )  # fmt: skip
            with self._lock:
                if key not in self._running:
                    continue  # the handler has just ended
                self._stuck.add(key)
                count = len(self._stuck)
                metrics.HANDLERS_STUCK.set(count)
            yield call, count

    def runs_of_database(self, database: int) -> list[JobRun]:
        """The runs of one database whose handlers run at this moment, or run again soon."""
        calls = [call for call, _ in list(self._running.values())]
        runs = [run for call in calls for run in call.runs]
        runs += list(self._between.values())
        return [run for run in runs if run.database == database]

    @property
    def stuck_count(self) -> int:
        with self._lock:  # so that it always equals the metric
            return len(self._stuck)

    @property
    def stuck_job_ids(self) -> set[int]:
        """The ids of jobs whose handlers are stuck."""
        with self._lock:
            calls = [self._running[key][0] for key in self._stuck]
        return {run.job.job_id for call in calls for run in call.runs}

    @property
    def stuck_job_count(self) -> int:
        """How many jobs have a handler that is stuck."""
        with self._lock:
            return sum(len(self._running[key][0].runs) for key in self._stuck)


class AsyncHandlerRunner:
    """Runs `async def` handlers, up to `tasks_max` at a time, on one loop in a thread of its own.

    The thread starts with the first of them. When the process ends, handlers that still run are cancelled. A
    handler that ends by this has not failed: its job is given back, and the attempt does not count. Jobs in
    tasks that do not end stay claimed until their leases end. The callbacks are those of `HandlerPool`.
    """

    def __init__(
        self,
        running: RunningHandlers,
        may_start: Callable[[HandlerCall], bool],
        finish: OnCallEnd,
        tasks_max: int,
    ) -> None:
        self._running, self._may_start, self._finish = running, may_start, finish
        self._tasks_max = tasks_max
        self._lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._task_slots: asyncio.Semaphore | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()  # not started yet
        self._started: dict[int, asyncio.Task[None]] = {}  # by the id() of the call
        self._cancelled: set[asyncio.Task[None]] = set()  # because the process ends
        self.closers: list[Callable[[], Awaitable[None]]] = []
        """Called on the loop before it ends: they close what belongs to the loop, as connections."""

    def enqueue(self, call: HandlerCall, /) -> None:
        self._ensure_event_loop().call_soon_threadsafe(self._spawn_handler_task, call)

    def give_back_waiting_runs(self) -> None:
        """Passes each waiting call to `may_start`, which gives the jobs back."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._waiting])

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def cancel_handler(self, call: HandlerCall) -> None:
        """Cancels a call of a handler, if it still runs. Any thread."""
        if self.loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and its handlers with it
                self.loop.call_soon_threadsafe(self._cancel_task_of, call)

    def _cancel_task_of(self, call: HandlerCall) -> None:
        task = self._started.get(id(call))
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Cancels running handlers, and ends the thread of the event loop."""
        if self.loop is not None and self._thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(5.0)

    def _ensure_event_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self.loop is None:
                loop = self.loop = asyncio.new_event_loop()
                self._task_slots = asyncio.Semaphore(self._tasks_max)
                self._thread = threading.Thread(
                    target=self._run_event_loop, args=(loop,), name="toc-handler-loop", daemon=True
                )
                self._thread.start()
            return self.loop

    def _run_event_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        self._cancelled |= self._tasks
        for task in self._cancelled:
            task.cancel()
        if self._cancelled:
            loop.run_until_complete(asyncio.wait(self._cancelled, timeout=CANCEL_S))
        for close in self.closers:
            try:
                loop.run_until_complete(asyncio.wait_for(close(), CANCEL_S))
            except Exception as error:  # noqa: BLE001 - the loop ends in any case
                log.warning("the loop of handlers ends, and a part of it was not closed: %r", error)
        loop.close()

    def _spawn_handler_task(self, call: HandlerCall) -> None:
        task = asyncio.get_running_loop().create_task(self._run_async_handler(call))
        self._tasks.add(task)
        self._waiting.add(task)
        task.add_done_callback(lambda task: self._on_task_done(task, call))

    def _on_task_done(self, task: asyncio.Task[None], call: HandlerCall) -> None:
        self._tasks.discard(task)
        if task in self._waiting:  # cancelled before its first step, by a drain: given back
            self._waiting.discard(task)
            self._may_start(call)

    async def _run_async_handler(self, call: HandlerCall) -> None:
        assert self._task_slots is not None  # noqa: S101 - made with the loop
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is one
        try:
            await self._task_slots.acquire()
        except asyncio.CancelledError:  # drained: `may_start` gives the job back
            self._waiting.discard(task)
            self._may_start(call)
            return
        self._waiting.discard(task)
        try:
            if not self._may_start(call):
                return
            self._running.record_start(id(call), call, TIMEOUT_FIRST_S)
            self._started[id(call)] = task
            result = await self._await_handler_result(call, task)
            del self._started[id(call)]
            self._running.record_end(id(call))
            self._finish(call, result)
        finally:
            self._task_slots.release()

    async def _await_handler_result(self, call: HandlerCall, task: asyncio.Task[None]) -> object:
        """What the handler returned or raised; CancelledByShutdown when the ending process cancelled it."""
        loop, limit = asyncio.get_running_loop(), asyncio.timeout(call.timeout_s)
        began_s = loop.time()

        def move_limit() -> None:
            with suppress(RuntimeError):  # the handler has ended meanwhile
                limit.reschedule(began_s + call.timeout_s)

        # The handler may call `extend` in another thread.
        for run in call.runs:
            run.control.on_extend = lambda: loop.call_soon_threadsafe(move_limit)
        running_job.set(_only_job(call))  # the task has a context of its own
        try:
            async with limit:
                return result_or_type_error(await call.call_handler())
        except GeneratorExit:  # nothing refers to the task any more: the job's lease will end
            raise
        except BaseException as error:  # noqa: BLE001 - a handler's SystemExit must not end the loop
            if task in self._cancelled and not isinstance(error, Verdict):
                return CancelledByShutdown()
            if isinstance(error, TimeoutError) and limit.expired():
                late = TimeoutError(f"the handler did not end within {call.timeout_s:g} s")
                return late.with_traceback(error.__traceback__)
            return error
        finally:
            for run in call.runs:
                run.control.on_extend = None
            running_job.set(None)


class HandlerPool(Service):
    """Runs handlers with bounded concurrency. Its own thread looks for stuck handlers.

    `may_start(run)` is called immediately before each handler; False: it has given the job back.
    `too_many_stuck()` is called once, when `stuck_max` handlers are beyond their timeout.
    """

    def __init__(
        self,
        clock: Clock,
        may_start: Callable[[JobRun], bool],
        finish: OnFinished,
        too_many_stuck: Callable[[], None],
        *,
        threads: int,
        async_tasks: int,
        stuck_max: int,
        solitary_max: int,
    ) -> None:
        super().__init__("toc-handler-watch")
        self._may_start, self._finish = may_start, finish
        self._too_many_stuck, self._stuck_max = too_many_stuck, stuck_max
        self._queue: SimpleQueue[HandlerCall | None] = SimpleQueue()
        self._thread_count = threads
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._draining = False
        self.running = RunningHandlers(clock)
        self.async_handlers = AsyncHandlerRunner(
            self.running, self._start_call, self._end_call, async_tasks
        )
        self._batches = BatchCollector(clock, self._queue_call, solitary_max)
        self._batch_ends = BatchEnds(self._batches, finish, self._run_alone)

    def enqueue(self, run: JobRun, /) -> None:
        """Queues a claimed job. Permits bound the number of jobs. Any thread."""
        if self._draining:  # claimed before the stop: the job will not run in this process
            self._may_start(run)
        elif run.spec.batch:
            self._batches.enqueue(run)
        else:
            self._queue_call(run)

    def _queue_call(self, call: HandlerCall) -> None:
        if call.spec.is_async:
            self.async_handlers.enqueue(call)
        else:
            self._queue.put(call)

    def _run_alone(self, batch: HandlerBatch) -> None:
        """Queues the only run of a batch, whose former batch has failed."""
        if self._draining:
            self._start_call(batch)
            return
        self.running.record_between(batch.runs[0])
        self._queue_call(batch)

    def _start_call(self, call: HandlerCall) -> bool:
        """Whether the call has jobs that may start; the others were given back."""
        if isinstance(call, JobRun):
            return self._may_start(call)
        started = []
        for run in call.runs:
            if self._may_start(run):
                started.append(run)
            self.running.end_between(run)
        call.runs = started
        return bool(started)

    def _end_call(self, call: HandlerCall, result: object) -> None:
        if isinstance(call, JobRun):
            self._finish(call, result)
        else:
            self._batch_ends.end_batch(call, result)

    def give_back_waiting_runs(self) -> None:
        """Empties the queue for a stop: passes each waiting run to `may_start`, which gives the job back."""
        self._draining = True
        for run in self._batches.take_waiting_runs():
            self._may_start(run)
        while True:
            try:
                call = self._queue.get_nowait()
            except Empty:
                break
            if call is not None:
                self._start_call(call)
        self.async_handlers.give_back_waiting_runs()

    def tell_claim_lost(self, run: JobRun) -> None:
        """Tells a running handler that its claim is lost: sets `job.lost`, and cancels an `async` handler.

        A batch handler is cancelled when the claims of all its jobs are lost.
        """
        run.control.mark_lost()
        batch = run.batch
        if run.spec.is_async and (batch is None or batch.is_lost):
            self.async_handlers.cancel_handler(batch or run)

    @property
    def waiting_count(self) -> int:
        """How many claimed jobs wait for a thread, or for a task of the event loop."""
        return self._queue.qsize() + self.async_handlers.waiting_count

    def start(self) -> None:
        with self._lock:
            while len(self._threads) < self._thread_count:
                self._add_handler_thread()
        super().start()

    def close(self) -> None:
        """Ends the threads and the loop; handlers that still run are left behind."""
        self.stop()
        self._batches.stop()
        with self._lock:
            threads, self._threads = list(self._threads), set()
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            if not self.running.is_handler_running(thread.ident):
                thread.join(1.0)
        self.async_handlers.close()

    def run_once(self) -> float:
        """Looks for handlers beyond their timeout. Returns the period of this check in seconds."""
        for call, stuck in self.running.find_newly_stuck():
            if not call.spec.is_async:
                with self._lock:
                    self._add_handler_thread()
            if stuck == self._stuck_max:
                self._too_many_stuck()
        return WATCH_S

    def _add_handler_thread(self) -> None:
        thread = threading.Thread(target=self._run_handlers, name="toc-handler", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run_handlers(self) -> None:
        key = threading.get_ident()
        while (call := self._queue.get()) is not None:
            if not self._start_call(call):
                continue
            self.running.record_start(key, call)
            result: object
            try:
                running_job.set(_only_job(call))
                result = result_or_type_error(call.call_handler())
            except BaseException as error:  # noqa: BLE001 - a handler's SystemExit must not end the thread
                result = error
            finally:
                running_job.set(None)
            substituted = self.running.record_end(key)
            self._end_call(call, result)
            if substituted:  # a substitute thread has replaced this one
                with self._lock:
                    self._threads.discard(threading.current_thread())
                return


def _only_job(call: HandlerCall) -> Job | None:
    """The job of a call with one job; None for a batch of several."""
    return call.runs[0].job if len(call.runs) == 1 else None
