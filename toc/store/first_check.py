"""Checks a database at its first use, if it did not answer when this process started."""

from __future__ import annotations

import threading
from collections.abc import Callable

from toc.errors import TocError
from toc.runtime.clock import Clock

# A failed check is repeated after its duration, and after this time at most.
CHECK_AGAIN_S_MAX = 3.0


class FirstCheck:
    """Runs a check until the check has passed once. Thread-safe: other threads wait for the check."""

    def __init__(self, check: Callable[[], None], clock: Clock) -> None:
        self._check, self._clock = check, clock
        self._lock = threading.Lock()
        self._passed = False
        self._checking_thread: int | None = None
        # The error of the last check, and until when callers get this error.
        self._error: tuple[TocError, float] | None = None

    def run_until_passed(self) -> bool:
        """Runs the check if it has not passed. False: the check itself is the caller. Raises its TocError."""
        if self._checking_thread == threading.get_ident():  # the check's own statements
            return False
        self._raise_recent_error()
        with self._lock:
            self._raise_recent_error()
            if self._passed:
                return True
            self._checking_thread, started_s = threading.get_ident(), self._clock.monotonic_s()
            try:
                self._check()
                self._passed = True
            except TocError as error:
                # When the database hangs, the callers that wait for this check must not each wait as long.
                now_s = self._clock.monotonic_s()
                self._error = error, now_s + min(now_s - started_s, CHECK_AGAIN_S_MAX)
                raise
            finally:
                self._checking_thread = None
        return True

    def _raise_recent_error(self) -> None:
        """Raises the error of the last check again, while it is recent."""
        if self._error is not None:
            error, until_s = self._error
            if self._clock.monotonic_s() < until_s:
                raise error.with_traceback(None)
            self._error = None
