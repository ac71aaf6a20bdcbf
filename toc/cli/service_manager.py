"""Tells systemd that this process is up, stops, and is well (sd_notify). Does nothing elsewhere.

A unit with Type=notify sets NOTIFY_SOCKET; with WatchdogSec=, WATCHDOG_USEC too: systemd then restarts a
process that has not said WATCHDOG=1 for that time. https://www.freedesktop.org/software/systemd/man/sd_notify.html
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Self

from toc.runtime.log_throttle import LogThrottle

log = logging.getLogger(__name__)


class ServiceManager:
    """Reports this process to systemd. A context manager: after its end nothing more is sent to the watchdog.

    `find_faults()`: why systemd should restart this process; empty if there is no reason. That a server does
    not answer is no reason: a new process would meet the same server.
    """

    def __init__(
        self, find_faults: Callable[[], Sequence[str]], environ: Mapping[str, str] = os.environ
    ) -> None:
        self._find_faults = find_faults
        self._address = environ.get("NOTIFY_SOCKET", "")
        watched = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watchdog_us = environ.get("WATCHDOG_USEC", "") if watched else ""
        # Half of the time, as systemd advises. 0: nobody watches.
        self._watchdog_s = int(watchdog_us) / 2_000_000 if watchdog_us.isdecimal() else 0.0
        self._is_stopping = False
        self._over = threading.Event()
        self._log_throttle = LogThrottle(log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()

    def say_ready(self) -> None:
        """The start is over. From now on the watchdog hears whether this process is well."""
        self._send("READY=1")
        if self._address and self._watchdog_s:
            threading.Thread(target=self._keep_telling, name="toc-watchdog", daemon=True).start()

    def say_stopping(self) -> None:
        """The stop begins. Its time limit is the unit's TimeoutStopSec=, not the watchdog's."""
        self._is_stopping = True
        self._send("STOPPING=1")

    def _keep_telling(self) -> None:
        while not self._over.is_set():
            faults = [] if self._is_stopping else self._find_faults()
            if faults:
                log.error(
                    "this process has faults, so it no longer reports to systemd's watchdog: %s",
                    "; ".join(faults),
                )
            else:
                self._send("WATCHDOG=1")
            self._over.wait(self._watchdog_s)

    def _send(self, text: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is in Linux' abstract namespace.
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
                connection.connect(address)
                connection.send(text.encode())
        except OSError as error:
            self._log_throttle.warning("notify", "systemd cannot be told %s: %s", text, error)
