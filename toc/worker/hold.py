"""The hold: keeps the whole process from claiming new jobs while a last attempt runs alone.

Each database has a LeaseRecovery; one of them holds the process at a time. After a hold, none may begin for
REST times as long. So all holds together take at most a third of the process' time, and unrelated jobs are
late by one hold, not by all of them.
"""

from __future__ import annotations

import threading

from toc.runtime.clock import Clock

REST = 2.0  # after a hold, none may begin for so many times as long
REST_S_MAX = 60.0
BUSY_S = 0.1  # when to ask again while another lane holds


class ProcessHold:
    """Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._began_s, self._free_s = 0.0, float("-inf")
        self.is_active = False
        """While this is True the process claims no new jobs."""

    @property
    def wait_s(self) -> float:
        """Seconds after which to try again; 0.0: a hold may begin now."""
        if self.is_active:
            return BUSY_S
        return max(0.0, self._free_s - self._clock.monotonic_s())

    def try_begin(self) -> bool:
        """Begins a hold if it may begin now. True: the caller holds the process, and must call `end`."""
        with self._lock:
            if self.wait_s:
                return False
            self.is_active, self._began_s = True, self._clock.monotonic_s()
            return True

    def end(self) -> None:
        """Ends the hold. Only the caller whose `try_begin` returned True may call it."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._free_s = now_s + min(REST_S_MAX, REST * (now_s - self._began_s))
            self.is_active = False
