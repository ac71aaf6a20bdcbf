"""Calls that wait in this process until a job has ended, and who wakes them (ADR 48)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from toc.errors import Overloaded


class JobEnds:
    """The calls that wait, by job. Thread-safe.

    Whoever ends jobs in this process calls `tell_ended`; a job that ends in another process is found by
    reading its row. `is_awaited`: whether a call waits at all, so that nobody looks up ids in vain.
    """

    def __init__(self) -> None:
        self.forget_waiters()

    def forget_waiters(self) -> None:
        """For a child process: the calls that wait are its parent's."""
        self._lock = threading.Lock()
        self._wakers: dict[int, list[Callable[[], object]]] = {}
        self._count = 0
        self.is_awaited = False

    @contextmanager
    def waiting(self, job_id: int, wake: Callable[[], object], waiters_max: int) -> Iterator[None]:
        """A place for a call that waits for a job. `wake()` is called, in any thread, when the job has ended.

        Raises Overloaded when so many calls wait already.
        """
        with self._lock:
            if self._count >= waiters_max:
                raise Overloaded("too many calls wait for jobs", "limits.waiters", waiters_max)
            self._count += 1
            self.is_awaited = True
            self._wakers.setdefault(job_id, []).append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                wakers = self._wakers[job_id]
                wakers.remove(wake)
                if not wakers:
                    del self._wakers[job_id]
                self.is_awaited = bool(self._wakers)

    def tell_ended(self, job_ids: Iterable[int]) -> None:
        """Wakes the calls that wait for these jobs."""
        with self._lock:
            found = [wake for job_id in job_ids for wake in self._wakers.get(job_id, ())]
        for wake in found:
            wake()


job_ends = JobEnds()
"""Of this process: its workers tell it of the jobs that they have settled."""
os.register_at_fork(after_in_child=job_ends.forget_waiters)
