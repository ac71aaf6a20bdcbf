"""A thread that reads while somebody looks, once for all who look at this process."""

from __future__ import annotations

import logging
import threading
from typing import Generic, TypeVar

from toc.runtime.clock import Clock

log = logging.getLogger(__name__)

WATCHED_S = 60.0  # the reading goes on for so long after the last visit

Found = TypeVar("Found")


class WatchedReader(Generic[Found]):
    """Has what was read last. Its thread starts with a visit, and ends when nobody looks any more.

    A subclass reads in `read_until_over`.
    """

    def __init__(self, name: str, clock: Clock, stop_s: float) -> None:
        self._name, self._clock, self._stop_s = name, clock, stop_s
        self._lock = threading.Lock()
        self._news = threading.Condition(self._lock)
        self._found: Found | None = None
        self._last_visit_s = float("-inf")
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def wait_for_news(self, wait_s: float) -> Found | None:
        """What was read last; waits for the first time. None: it did not come in time. Blocks."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s - self._last_visit_s > WATCHED_S:
                self._found = None  # nobody looked: it is old
            self._last_visit_s = now_s
            if self._thread is None and not self._stop.is_set():
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._news.wait_for(lambda: self._found is not None, wait_s)
            return self._found

    def stop(self) -> None:
        """Ends the thread."""
        self._stop.set()
        thread = self._thread
        if thread is not None:
            thread.join(self._stop_s)

    def read_until_over(self) -> None:
        """Reads and publishes, until `is_over`. In the thread."""
        raise NotImplementedError

    def publish(self, found: Found) -> None:
        """Shows it to all who look."""
        with self._lock:
            self._found = found
            self._news.notify_all()

    def is_over(self) -> bool:
        """Whether nobody looks any more; the thread must end then."""
        with self._lock:
            unwatched_s = self._clock.monotonic_s() - self._last_visit_s
            if unwatched_s <= WATCHED_S and not self._stop.is_set():
                return False
            self._thread = None
            return True

    def _run(self) -> None:
        try:
            self.read_until_over()
        except Exception:
            log.exception("%s has ended; the next visit starts it again", self._name)
            with self._lock:
                self._thread = None
