"""The run stage: runs handlers, in threads for plain functions, on an event loop for `async def`.

A thread cannot be killed. A handler that runs beyond its timeout is counted as stuck, and a substitute
thread is started so that other jobs still run; its job is settled only when it ends. When its lease is
over, another claim may take the job; the database then refuses the late outcome by its token.

A consumer in another process would take this stage's place (it is an `Inbox[Run]`); a handler that takes many
jobs at once would take several runs from the queue here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from toc.handlers.current import running_job
from toc.runtime.clock import Clock
from toc.runtime.service import Service
from toc.worker.event_loop import AsyncHandlers
from toc.worker.run import Run, failure_if_not_run
from toc.worker.running_handlers import RunningHandlers

OnFinished = Callable[[Run, object], None]
"""Called once per started run with what the handler returned or raised."""

WATCH_S = 0.5


class HandlerPool(Service):
    """Runs handlers with bounded concurrency. Its own thread looks for stuck handlers.

    `may_start(run)` is called immediately before each handler; False: it has given the job back.
    `too_many_stuck()` is called once, when `stuck_max` handlers are beyond their timeout.
    """

    def __init__(
        self,
        clock: Clock,
        may_start: Callable[[Run], bool],
        finish: OnFinished,
        too_many_stuck: Callable[[], None],
        *,
        threads: int,
        async_tasks: int,
        stuck_max: int,
    ) -> None:
        super().__init__("toc-handler-watch")
        self._may_start, self._finish = may_start, finish
        self._too_many_stuck, self._stuck_max = too_many_stuck, stuck_max
        self._queue: SimpleQueue[Run | None] = SimpleQueue()
        self._thread_count = threads
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._draining = False
        self.running = RunningHandlers(clock)
        self.async_handlers = AsyncHandlers(self.running, may_start, finish, async_tasks)

    def put(self, run: Run, /) -> None:
        """Queues a claimed job. Permits bound the number of jobs. Any thread."""
        if self._draining:  # claimed before the stop: it will not run here
            self._may_start(run)
        elif run.spec.is_async:
            self.async_handlers.put(run)
        else:
            self._queue.put(run)

    def drain(self) -> None:
        """Empties the queue: passes each waiting run to `may_start`, which gives it back (for a stop)."""
        self._draining = True
        while True:
            try:
                run = self._queue.get_nowait()
            except Empty:
                break
            if run is not None:
                self._may_start(run)
        self.async_handlers.drain()

    @property
    def waiting(self) -> int:
        """Jobs in the queue that no thread has taken yet."""
        return self._queue.qsize()

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
            if not self.running.is_running(thread.ident):
                thread.join(1.0)
        self.async_handlers.close()

    def run_once(self) -> float:
        """Looks for handlers beyond their timeout. Returns the period of this check in seconds."""
        for run, stuck in self.running.find_stuck():
            if not run.spec.is_async:
                with self._lock:
                    self._add_thread()
            if stuck == self._stuck_max:
                self._too_many_stuck()
        return WATCH_S

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._run_handlers, name="toc-handler", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _run_handlers(self) -> None:
        key = threading.get_ident()
        while (run := self._queue.get()) is not None:
            if not self._may_start(run):
                continue
            self.running.begin(key, run)
            result: object
            try:
                running_job.set(run.job)
                result = failure_if_not_run(run.spec.function(run.job))
            except BaseException as error:  # noqa: BLE001 - a handler's SystemExit must not end the thread
                result = error
            finally:
                running_job.set(None)
            substituted = self.running.end(key)
            self._finish(run, result)
            if substituted:  # a substitute thread has replaced this one
                with self._lock:
                    self._threads.discard(threading.current_thread())
                return
