"""Stops a serving process: the first signal asks the process to stop, the second signal ends it."""

from __future__ import annotations

import logging
import os
import select
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

log = logging.getLogger(__name__)

# SIGHUP: the terminal was closed.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class StopRequest:
    """A context manager that catches SIGTERM, SIGINT and (unless it is ignored) SIGHUP. For the main thread.

    `at_once` is called when a second signal comes, right before the process ends.
    """

    def __init__(self, at_once: Callable[[], None] = lambda: None) -> None:
        self._at_once = at_once
        self._asked = False
        # A pipe and not an Event: a handler that runs while the main thread holds the Event's lock
        # would wait for it forever.
        self._read, self._write = os.pipe()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            # nohup ignores SIGHUP on purpose. SIGINT is ignored in each background process of a script, where
            # Ctrl-C and `kill -INT` must stop a server all the same.
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def request_stop(self) -> None:
        """Ends `wait_for_stop`, as a signal does. Any thread may call this method."""
        os.write(self._write, b"!")

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Waits for a signal or `request_stop`; False when `timeout_s` is over first."""
        return bool(select.select([self._read], [], [], timeout_s)[0])

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._asked:
            self._at_once()
            os._exit(128 + number)
        self._asked = True
        self.request_stop()
