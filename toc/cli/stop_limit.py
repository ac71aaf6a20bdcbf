"""Ends a process that does not come to its end by itself."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


def limit_stop(seconds: float, code: int, at_once: Callable[[], None] = lambda: None) -> None:
    """Ends this process with the exit code `code` in so many seconds, whatever its threads do then.

    `at_once` is called right before that, as that of `StopRequest`.

    Python waits at its end for all threads of a pool; one that waits for a database may take as long as the
    time limit of an answer. Call this when the stop begins.
    """
    timer = threading.Timer(seconds, _end_process, (code, at_once))
    timer.daemon = True
    timer.name = "toc-stop-limit"
    timer.start()


def _end_process(code: int, at_once: Callable[[], None]) -> None:
    threads = threading.enumerate()
    names = ", ".join(sorted(each.name for each in threads if not each.daemon))
    log.error("these threads still wait, and the process ends without them: %s", names)
    try:
        at_once()
    finally:
        logging.shutdown()
        os._exit(code)
