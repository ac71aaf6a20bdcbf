"""Circuit breaker: failing servers are skipped, and probed in the background.

So a server that hangs blocks each caller at most once, for the socket's timeout.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from toc.runtime.clock import SystemClock

log = logging.getLogger(__name__)

PROBE_AFTER_S = 1.0  # the time from a failure, or from the end of a probe, to the next probe
# A probe that has not ended after this time lost its thread to a fork: another probe may start.
PROBE_S_MAX = 60.0

Probe = Callable[[list[str]], Iterable[tuple[str, Exception | None]]]
"""Probes the named servers. Yields (name, error) for each; error None: the server may be called again."""


class CircuitBreaker:
    """Knows which servers failed. Any thread; probes run in a thread of their own, one at a time."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        # Servers fail in real time, even when a test sets the jobs' clock.
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._errors: dict[str, Exception] = {}
        self._next_probe_s = 0.0
        self._probe_requested = False

    def error_of_failed_server(self, name: str) -> Exception | None:
        """The error of a server that must be skipped now; None for a server that may be called."""
        return self._errors.get(name)

    def record_failure(self, name: str, error: Exception) -> None:
        with self._lock:
            if name not in self._errors:
                log.warning(
                    "Redis %s failed and is skipped until it answers again: %s", name, error
                )
                self._next_probe_s = max(
                    self._next_probe_s, self._clock.monotonic_s() + PROBE_AFTER_S
                )
            self._errors[name] = error

    def request_probe(self) -> None:
        """Makes the next `start_probe_if_due` start a probe though no server failed (hash slots moved)."""
        self._probe_requested = True

    def start_probe_if_due(self) -> None:
        """Starts a probe if a probe is needed and due. To be called after each use of servers."""
        if not (self._errors or self._probe_requested):
            return
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s < self._next_probe_s:
                return
            self._next_probe_s, self._probe_requested = now_s + PROBE_S_MAX, False
        threading.Thread(target=self._run_server_probe, name="toc-redis-probe", daemon=True).start()

    def _run_server_probe(self) -> None:
        try:
            for name, error in self._probe(list(self._errors)):
                if error is not None:
                    self._errors[name] = error
                elif self._errors.pop(name, None) is not None:
                    log.info("Redis %s answers again", name)
        finally:
            with self._lock:
                self._next_probe_s = self._clock.monotonic_s() + PROBE_AFTER_S
