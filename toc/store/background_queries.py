"""Runs queries in background threads, for callers that must not wait for a database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from toc.errors import TocError
from toc.runtime.clock import SystemClock

log = logging.getLogger(__name__)

AT_ONCE_MAX = 4  # queries to one database; when it hangs, no more threads than that wait for it
CLOSE_S_MAX = 1.0


class BackgroundQueries:
    """The background queries that are running now. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[threading.Thread, int] = {}
        self._closed = False

    def submit(self, database: int, query: Callable[[], object]) -> threading.Event | None:
        """Calls `query()` in a thread. The event is set when it has ended; its errors are logged.

        None: not started, because `AT_ONCE_MAX` queries to this database are running, or no thread starts.
        """
        done = threading.Event()

        def run() -> None:
            try:
                query()
            except TocError as error:
                log.debug("database %d, asked in the background: %s", database, error)
            except Exception:
                log.exception("database %d, asked in the background", database)
            finally:
                with self._lock:
                    self._running.pop(threading.current_thread(), None)
                done.set()

        with self._lock:
            if self._closed or list(self._running.values()).count(database) >= AT_ONCE_MAX:
                return None
            # A daemon: the end of the process must not wait for a database that hangs.
            thread = threading.Thread(target=run, name=f"toc-beside-{database}", daemon=True)
            self._running[thread] = database
            try:
                thread.start()
            except RuntimeError as error:  # the system gives no more threads
                del self._running[thread]
                log.debug("database %d is not asked in the background: %s", database, error)
                return None
        return done

    def close(self) -> None:
        """Accepts no more queries, and waits up to CLOSE_S_MAX for the running ones."""
        with self._lock:
            self._closed, threads = True, list(self._running)
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + CLOSE_S_MAX
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline_s - clock.monotonic_s()))
