"""Runs calls of the center in threads, with a bound for each database.

A call knows its database before it starts: job ids and business ids decide it. So a slow database fills
only its own places, and calls for other databases go on. A call beyond the places is refused at once, since a
longer queue would only make all of them late.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from toc.http.problems import overloaded
from toc.runtime.settings import Settings

T = TypeVar("T")


class DatabaseCalls:
    """The threads, and the places of each database. For one event loop."""

    def __init__(self, settings: Settings) -> None:
        count = len(settings.databases)
        self._places_max = settings.web.limits.waiting_calls
        self._taken = [0] * count
        # No database can have all threads, so no call waits in the executor's own queue, which has no bound.
        self._free = [asyncio.Semaphore(settings.pool_size) for _ in range(count)]
        self._threads = ThreadPoolExecutor(settings.pool_size * count, "toc-web")

    @contextmanager
    def place(self, index: int) -> Iterator[None]:
        """A place for a call to a database, while the block runs. Raises HttpProblem if there is none."""
        if self._taken[index] >= self._places_max:
            raise overloaded("too many calls wait for a database")
        self._taken[index] += 1
        try:
            yield
        finally:
            self._taken[index] -= 1

    async def run(self, index: int, call: Callable[[], T]) -> T:
        """Runs a call to one database in a thread. If this task is cancelled, the call goes on to its end."""
        with self.place(index):
            await self._free[index].acquire()
            in_context = functools.partial(contextvars.copy_context().run, call)
            loop = asyncio.get_running_loop()
            try:
                running = self._threads.submit(in_context)
            except BaseException:
                self._free[index].release()
                raise
            running.add_done_callback(functools.partial(self._release_later, loop, index))
            return await asyncio.shield(asyncio.wrap_future(running))

    def _release_later(
        self, loop: asyncio.AbstractEventLoop, index: int, done: Future[Any]
    ) -> None:
        if not done.cancelled():
            done.exception()  # read, so that nobody complains about a call whose caller has gone
        try:
            loop.call_soon_threadsafe(self._free[index].release)
        except RuntimeError:  # the loop has ended
            return

    def close(self) -> None:
        """Waits for the calls that run. Blocks."""
        self._threads.shutdown()
