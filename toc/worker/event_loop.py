"""Runs `async def` handlers on one event loop, in a thread that starts with the first of them.

When the process ends, handlers that still run are cancelled. A handler that ends by this has not failed: its
job is given back, and the attempt does not count. Jobs in tasks that do not end stay claimed until their
leases end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from toc.handlers.current import running_job
from toc.handlers.verdicts import Verdict
from toc.worker.run import CancelledByShutdown, Run, failure_if_not_run
from toc.worker.running_handlers import RunningHandlers

CANCEL_S = 1.0  # how long cancelled tasks may take to end when the process ends
TIMEOUT_FIRST_S = 0.5  # a task counts as stuck so much later: its own timeout comes first


class AsyncHandlers:
    """Bounded to `tasks_max` handlers at a time. The callbacks are those of `HandlerPool`."""

    def __init__(
        self,
        running: RunningHandlers,
        may_start: Callable[[Run], bool],
        finish: Callable[[Run, object], None],
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
        self._cancelled: set[asyncio.Task[None]] = set()  # because the process ends

    def put(self, run: Run, /) -> None:
        self._ensure_loop().call_soon_threadsafe(self._spawn_task, run)

    def drain(self) -> None:
        """Passes each waiting run to `may_start`, which gives it back."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._waiting])

    def close(self) -> None:
        """Cancels what runs, and ends the thread."""
        if self.loop is not None and self._thread is not None:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(5.0)

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self.loop is None:
                loop = self.loop = asyncio.new_event_loop()
                self._task_slots = asyncio.Semaphore(self._tasks_max)
                self._thread = threading.Thread(
                    target=self._run_loop, args=(loop,), name="toc-handler-loop", daemon=True
                )
                self._thread.start()
            return self.loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        self._cancelled |= self._tasks
        for task in self._cancelled:
            task.cancel()
        if self._cancelled:
            loop.run_until_complete(asyncio.wait(self._cancelled, timeout=CANCEL_S))
        loop.close()

    def _spawn_task(self, run: Run) -> None:
        task = asyncio.get_running_loop().create_task(self._run_handler(run))
        self._tasks.add(task)
        self._waiting.add(task)
        task.add_done_callback(lambda task: self._on_task_done(task, run))

    def _on_task_done(self, task: asyncio.Task[None], run: Run) -> None:
        self._tasks.discard(task)
        if task in self._waiting:  # cancelled before its first step, by a drain: given back
            self._waiting.discard(task)
            self._may_start(run)

    async def _run_handler(self, run: Run) -> None:
        assert self._task_slots is not None  # noqa: S101 - made with the loop
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is one
        try:
            await self._task_slots.acquire()
        except asyncio.CancelledError:  # drained: `may_start` gives it back
            self._waiting.discard(task)
            self._may_start(run)
            return
        self._waiting.discard(task)
        try:
            if not self._may_start(run):
                return
            self._running.begin(id(run), run, TIMEOUT_FIRST_S)
            result = await self._await_result(run, task)
            self._running.end(id(run))
            self._finish(run, result)
        finally:
            self._task_slots.release()

    async def _await_result(self, run: Run, task: asyncio.Task[None]) -> object:
        """What the handler returned or raised; CancelledByShutdown when the ending process cancelled it."""
        limit = asyncio.timeout(run.spec.timeout_s)
        running_job.set(run.job)  # the task has a context of its own
        try:
            async with limit:
                return failure_if_not_run(await run.spec.function(run.job))
        except GeneratorExit:  # nothing refers to the task any more: the job's lease will end
            raise
        except BaseException as error:  # noqa: BLE001 - a handler's SystemExit must not end the loop
            if task in self._cancelled and not isinstance(error, Verdict):
                return CancelledByShutdown()
            if isinstance(error, TimeoutError) and limit.expired():
                late = TimeoutError(f"the handler did not end within {run.spec.timeout_s:g} s")
                return late.with_traceback(error.__traceback__)
            return error
        finally:
            running_job.set(None)
