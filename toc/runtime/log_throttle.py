"""Limits repeated warnings, as in an outage: each is logged once a minute, with a count."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Hashable

from toc.runtime.clock import SystemClock

EVERY_S = 60.0

_clock = SystemClock()  # log lines are throttled by real time, also when tests set the jobs' clock


class LogThrottle:
    """Logs each warning at most once per `EVERY_S`. Thread-safe. Keys must come from small, closed sets."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._said_s: dict[Hashable, float] = {}
        self._unsaid: Counter[Hashable] = Counter()

    def warning(self, key: Hashable, text: str, *args: object) -> None:
        """As Logger.warning; calls with the same `key` count as the same warning."""
        now_s = _clock.monotonic_s()
        with self._lock:
            said_s = self._said_s.get(key)
            if said_s is not None and now_s < said_s + EVERY_S:
                self._unsaid[key] += 1
                return
            self._said_s[key] = now_s
            unsaid = self._unsaid.pop(key, 0)
        if unsaid:
            text, args = f"{text} (and %d times more since it was last said)", (*args, unsaid)
        self._log.warning(text, *args)
