"""Sessions that stand still in the middle of a transaction are ended by the server.

A process that is frozen there (SIGSTOP, a machine that hangs, a network that swallows) holds the locks
of its rows, and nobody could take its jobs over for as long as the server believes in it: hours.
MySQL knows no time-out for idle transactions, only one for idle sessions. So the sessions that do
transactions get a short one, and one that has been idle in the pool for half of it is not used again.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.exc import DisconnectionError

from toc.runtime.clock import SystemClock

_SINCE_S = "toc_idle_since_s"
_REAL_CLOCK = (
    SystemClock()
)  # the server waits by real time, also where a test lets time stand still


def end_idle_sessions(engine: Engine, seconds: int) -> None:
    """Sessions of this engine end, and are rolled back, after `seconds` without a statement."""

    def connected(raw: Any, record: Any) -> None:
        cursor = raw.cursor()
        cursor.execute(f"SET SESSION wait_timeout = {seconds:d}")
        cursor.close()

    def given_back(raw: Any, record: Any) -> None:
        record.info[_SINCE_S] = _REAL_CLOCK.monotonic_s()

    def taken(raw: Any, record: Any, proxy: Any) -> None:
        since_s = record.info.get(_SINCE_S)
        if since_s is not None and _REAL_CLOCK.monotonic_s() - since_s > seconds / 2:
            raise DisconnectionError("idle for too long")  # the pool makes another one

    event.listen(engine, "connect", connected)
    event.listen(engine, "checkin", given_back)
    event.listen(engine, "checkout", taken)
