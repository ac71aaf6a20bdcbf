"""Runs handlers: threads for plain functions, one event loop for `async def`.

A thread cannot be killed. A handler that runs beyond its timeout is counted as stuck and gets a
substitute thread, so that its neighbours go on; its job is not settled before it ends. When its
lease is over another claim may take the job; its own late outcome is then refused by the token.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from toc.runtime import metrics
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.worker.run import Run

log = logging.getLogger(__name__)

Finish = Callable[[Run, object], None]
"""Called once per run with what the handler returned or raised; never with a started run twice."""

WATCH_S = 0.5


class HandlerPool(Service):
    """Bounded concurrency for handlers. As a service it watches for stuck ones.

    `may_start(run)` is asked immediately before each handler; False means it was given back.
    `too_many_stuck()` is called once when `stuck_max` handlers are beyond their timeout.
    """

    def __init__(
        self,
        clock: Clock,
        may_start: Callable[[Run], bool],
        finish: Finish,
        too_many_stuck: Callable[[], None],
        *,
        threads: int,
        async_tasks: int,
        stuck_max: int,
    ) -> None:
        super().__init__("toc-handler-watch")
        self._clock, self._may_start, self._finish = clock, may_start, finish
        self._too_many_stuck, self._stuck_max = too_many_stuck, stuck_max
        self._queue: SimpleQueue[Run | None] = SimpleQueue()
        self._thread_count = threads
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        # What each thread runs, and since when: read by the watch.
        self._running: dict[int, tuple[Run, float]] = {}
        self._stuck: set[int] = set()
        self._async_tasks = async_tasks
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread: threading.Thread | None = None
        self._free: asyncio.Semaphore | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: set[asyncio.Task[None]] = set()  # not started yet

    def submit(self, run: Run) -> None:
        """Queues a claimed job. The caller keeps the number of jobs bounded."""
        if run.spec.is_async:
            loop = self._ensure_loop()
            loop.call_soon_threadsafe(self._spawn, run)
        else:
            self._queue.put(run)

    def drain(self) -> None:
        """Offers everything that waits to `may_start` now, without waiting for a thread (for a stop)."""
        while True:
            try:
                run = self._queue.get_nowait()
            except Empty:
                break
            if run is not None:
                self._may_start(run)
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._waiting])

    @property
    def waiting(self) -> int:
        """Jobs in the queue that no thread has taken yet."""
        return self._queue.qsize()

    @property
    def stuck(self) -> int:
        with self._lock:  # what it says and what the metric says are one
            return len(self._stuck)

    @property
    def stuck_jobs(self) -> set[int]:
        """Whose handlers run beyond their timeout."""
        with self._lock:
            return {self._running[key][0].job.job_id for key in self._stuck}

    # ---- life

    def start(self) -> None:
        with self._lock:
            while len(self._threads) < self._thread_count:
                self._add_thread()
        super().start()

    def close(self) -> None:
        """Ends the threads and the loop; handlers that still run are left behind."""
        self.stop()
        with self._lock:
            threads, self._threads = list(self._threads), set()
        for _ in threads:
            self._queue.put(None)
        for thread in threads:
            if thread.ident not in self._running:
                thread.join(1.0)
        loop, loop_thread = self._event_loop, self._loop_thread
        if loop is not None and loop_thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            loop_thread.join(5.0)

    def run_once(self) -> float:
        """Looks for handlers beyond their timeout. Returns the watch's period in seconds."""
        now_s = self._clock.monotonic_s()
        for key, (run, since_s) in list(self._running.items()):
            if key in self._stuck or now_s - since_s <= run.spec.timeout_s:
                continue
            log.warning(
                "handler of %s runs beyond its timeout of %g s (job %d): its thread is counted as stuck",
                run.job.biz_type,
                run.spec.timeout_s,
                run.job.job_id,
            )
            with self._lock:
                if key not in self._running:
                    continue  # it ended just now
                self._stuck.add(key)
                if not run.spec.is_async:
                    self._add_thread()
                metrics.HANDLERS_STUCK.set(len(self._stuck))
                alarm = len(self._stuck) == self._stuck_max
            if alarm:
                self._too_many_stuck()
        return WATCH_S

    # ---- threads

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._work, name="toc-handler", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _work(self) -> None:
        key = threading.get_ident()
        while (run := self._queue.get()) is not None:
            if not self._may_start(run):
                continue
            self._running[key] = (run, self._clock.monotonic_s())
            result: object
            try:
                result = run.spec.function(run.job)
                if result is not None and inspect.isawaitable(result):
                    result = TypeError("the handler gave an awaitable: declare it with `async def`")
            except BaseException as error:  # noqa: BLE001 - a handler's SystemExit must not end the thread
                result = error
            with self._lock:
                substituted = self._ended(key)
            self._finish(run, result)
            if substituted:  # a substitute does this thread's work since
                with self._lock:
                    self._threads.discard(threading.current_thread())
                return

    def _ended(self, key: int) -> bool:
        """Under the lock: a handler has ended. Whether it was stuck."""
        del self._running[key]
        stuck = key in self._stuck
        if stuck:
            self._stuck.discard(key)
            metrics.HANDLERS_STUCK.set(len(self._stuck))
        return stuck

    # ---- event loop

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._event_loop is None:
                loop = self._event_loop = asyncio.new_event_loop()
                self._free = asyncio.Semaphore(self._async_tasks)
                self._loop_thread = threading.Thread(
                    target=self._run_loop, args=(loop,), name="toc-handler-loop", daemon=True
                )
                self._loop_thread.start()
            return self._event_loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            loop.run_until_complete(asyncio.wait(self._tasks, timeout=1.0))
        loop.close()

    def _spawn(self, run: Run) -> None:
        task = asyncio.get_running_loop().create_task(self._work_async(run))
        self._tasks.add(task)
        self._waiting.add(task)
        task.add_done_callback(lambda task: self._done(task, run))

    def _done(self, task: asyncio.Task[None], run: Run) -> None:
        self._tasks.discard(task)
        if task in self._waiting:  # cancelled before its first step, by a drain: given back
            self._waiting.discard(task)
            self._may_start(run)

    async def _work_async(self, run: Run) -> None:
        assert self._free is not None  # noqa: S101 - made with the loop
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is one
        try:
            await self._free.acquire()
        except asyncio.CancelledError:  # drained: `may_start` gives it back
            self._waiting.discard(task)
            self._may_start(run)
            return
        self._waiting.discard(task)
        try:
            if not self._may_start(run):
                return
            key = id(run)
            self._running[key] = (
                run,
                self._clock.monotonic_s() + WATCH_S,
            )  # the time-out below comes first
            result: object
            try:
                async with asyncio.timeout(run.spec.timeout_s):
                    result = await run.spec.function(run.job)
            except TimeoutError as error:
                result = TimeoutError(str(error) or f"no answer within {run.spec.timeout_s:g} s")
            except BaseException as error:  # noqa: BLE001 - also the cancellation at close
                result = error
            with self._lock:
                self._ended(key)
            self._finish(run, result)
        finally:
            self._free.release()
