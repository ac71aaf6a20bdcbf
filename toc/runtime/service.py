"""A service: a thread that repeats a bounded `run_once()`, with start and stop.

`run_once` does a bounded piece of work, never sleeps, and returns how long to wait before the next call.
Only the loop here waits. An exception is logged, counted, and followed by a pause that doubles up to
`PAUSE_S_MAX`: a service survives failures of its server. While a service keeps failing, it logs the failure
once a minute, because in an outage many services of each process fail.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol, TypeVar

from toc.errors import TocError
from toc.runtime import metrics
from toc.runtime.clock import SystemClock
from toc.runtime.log_throttle import LogThrottle

log = logging.getLogger(__name__)

_clock = SystemClock()  # services wait in real time, also when tests set the jobs' clock

PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 2.0
_started: weakref.WeakSet[Service] = weakref.WeakSet()  # of this process
_started_lock = threading.Lock()

Item_contra = TypeVar("Item_contra", contravariant=True)


class Inbox(Protocol[Item_contra]):
    """The entry of a stage: the only method that the previous stage calls."""

    def enqueue(self, item: Item_contra, /) -> None:
        """Queues an item. Any thread; never blocks. Permits bound the number of queued items."""


class Service:
    """One thread that calls `run_once` until it is stopped.

    Stopping without a start, and stopping twice, are legal. `stop` waits up to `timeout_s`.
    """

    step_s_max = 1800.0
    """A step that takes longer counts as hung. Far above the time limits of all calls that one step makes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._step_began_s: float | None = None  # None: it waits
        self._log_throttle = LogThrottle(log)

    def run_once(self) -> float:
        """Does one bounded step. Returns the seconds to wait before the next step (0: at once)."""
        raise NotImplementedError

    def start(self) -> None:
        with self._start_lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run_until_stopped, name=self.name, daemon=True
                )
                self._thread.start()
                with _started_lock:
                    _started.add(self)

    def wake(self) -> None:
        """Ends the present wait early."""
        self._wake.set()

    def signal_stop(self) -> None:
        """Asks the service's loop to end; does not wait."""
        self._stopping.set()
        self._wake.set()

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Ends the service's loop; True when the thread has ended."""
        self.signal_stop()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def describe_stall(self) -> str | None:
        """Why this service works no more, although nobody has stopped it; None: it works."""
        thread, began_s = self._thread, self._step_began_s
        if thread is None or self.stopping:
            return None
        if not thread.is_alive():
            return f"the thread {self.name} has ended"
        if began_s is not None and _clock.monotonic_s() > began_s + self.step_s_max:
            return f"a step of {self.name} takes longer than {self.step_s_max:g} s"
        return None

    def _run_until_stopped(self) -> None:
        pause_s = PAUSE_S_MIN
        while not self._stopping.is_set():
            # Cleared before the step: a wake during the step shortens the wait after the step.
            self._wake.clear()
            self._step_began_s = _clock.monotonic_s()
            try:
                wait_s = self.run_once()
                pause_s = PAUSE_S_MIN
            except Exception as error:  # noqa: BLE001 - whatever it is, the service goes on
                self._log_failure(error)
                metrics.SERVICE_ERRORS.labels(self.name).inc()
                self._stopping.wait(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
                continue
            self._step_began_s = None
            if wait_s > 0:
                self._wake.wait(wait_s)

    def _log_failure(self, error: Exception) -> None:
        if isinstance(error, TocError):
            self._log_throttle.warning(error.code, "%s fails, and tries on: %s", self.name, error)
        else:
            log.error("%s fails, and tries on: %s", self.name, error, exc_info=error)


def stop_services(services: Sequence[Service], timeout_s: float) -> bool:
    """Stops several services in parallel, within `timeout_s` in all; True when all threads have ended."""
    for service in services:
        service.signal_stop()
    deadline_s = _clock.monotonic_s() + timeout_s
    gone = [service.stop(max(0.0, deadline_s - _clock.monotonic_s())) for service in services]
    return all(gone)


def find_stalled_services() -> list[str]:
    """Why each service of this process that works no more does not; for a watchdog."""
    with _started_lock:
        started = list(_started)
    return [stall for service in started if (stall := service.describe_stall()) is not None]
