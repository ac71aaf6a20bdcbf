"""Servers that failed are left alone for a while, and looked for beside the calls.

A server that hangs so holds up each caller once, for the socket's timeout, and no more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from toc.runtime.clock import SystemClock

log = logging.getLogger(__name__)

AGAIN_S = 1.0  # a server that failed is not asked again before
LOOK_S_MAX = 60.0  # a look that has not ended by then lost its thread: to a fork

Look = Callable[[list[str]], Iterable[tuple[str, Exception | None]]]
"""Asks servers, by name; what each met, None for one that may be asked again."""


class Lookout:
    """Knows which servers failed. Any thread; a look runs in a thread of its own, one at a time."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._clock = SystemClock()  # servers fail in real time, whatever time jobs are told
        self._lock = threading.Lock()
        self._down: dict[str, Exception] = {}
        self._look_s = 0.0  # not before this
        self._wanted = False

    def met(self, name: str) -> Exception | None:
        """What a server met that is not to be asked now."""
        return self._down.get(name)

    def failed(self, name: str, error: Exception) -> None:
        with self._lock:
            if name not in self._down:
                log.warning("Redis %s failed: %s", name, error)
                self._look_s = max(self._look_s, self._clock.monotonic_s() + AGAIN_S)
            self._down[name] = error

    def want(self) -> None:
        """There is something to look for, though no server failed."""
        self._wanted = True

    def look_if_due(self) -> None:
        """Starts a look where one is wanted and it is time. To be called after each use of servers."""
        if not (self._down or self._wanted):
            return
        with self._lock:
            now_s = self._clock.monotonic_s()
            if now_s < self._look_s:
                return
            self._look_s, self._wanted = now_s + LOOK_S_MAX, False
        threading.Thread(target=self._run, name="toc-redis-look", daemon=True).start()

    def _run(self) -> None:
        try:
            for name, error in self._look(list(self._down)):
                if error is not None:
                    self._down[name] = error
                elif self._down.pop(name, None) is not None:
                    log.info("Redis %s is asked again", name)
        finally:
            with self._lock:
                self._look_s = self._clock.monotonic_s() + AGAIN_S
