"""A few threads for the calls to one database, with a bound on the calls that wait.

Each database has a pool of its own, so a database that hangs holds up only the calls for its own jobs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from toc.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")


class CallPool:
    """`threads` run at most `calls_max` calls, those that wait included. Used from event loops."""

    def __init__(self, name: str, threads: int, calls_max: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._calls_max = calls_max
        self._calls, self._lock = 0, threading.Lock()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `call` in a thread. Raises Overloaded when too many calls are in progress.

        If the caller is cancelled, a call that runs goes on, and counts until it has ended.
        """
        with self._lock:
            if self._calls >= self._calls_max:
                raise Overloaded("a database is slow", "leases.calls_max", self._calls_max)
            self._calls += 1
        try:
            future = self._executor.submit(call, *args, **kwargs)
        except RuntimeError:  # this process stops
            self._note_end()
            raise
        future.add_done_callback(lambda _: self._note_end())
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Cancels the calls that wait; those in progress end by themselves."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _note_end(self) -> None:
        with self._lock:
            self._calls -= 1
