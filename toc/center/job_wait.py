"""Waiting until a job has ended: reads its row with growing pauses, and at once if it ends in this process.

A call reads the row at once, then after PAUSE_S_MIN, and after pauses that grow to PAUSE_S_MAX. So a call
costs its database about one read of a row a second, and learns of a job that ended elsewhere at most
PAUSE_S_MAX late. `limits.waiters` bounds the calls that wait in a process; `limits.wait_s` bounds their wait.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

from toc.domain.argument_checks import is_number
from toc.domain.job import Job
from toc.errors import InvalidInput
from toc.runtime.clock import SystemClock
from toc.runtime.job_ends import job_ends
from toc.runtime.setting_groups import LimitSettings

PAUSE_S_MIN, PAUSE_S_MAX, GROWTH = 0.02, 1.0, 1.5


def check_timeout(timeout: Any, limits: LimitSettings) -> float:
    """The timeout in seconds. Raises InvalidInput for one that is negative or above `limits.wait_s`."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if not is_number(seconds) or not 0 <= seconds <= limits.wait_s:
        rule = f"must be 0 to {limits.wait_s:g} seconds (limits.wait_s), or such a timedelta"
        raise InvalidInput("timeout", timeout, rule)
    return float(seconds)


def wait_for_end(
    job_id: int, timeout_s: float, read: Callable[[], Job | None], waiters_max: int
) -> Job | None:
    """Waits until a job has ended, or the timeout is over; returns the job as `read()` has read it last.

    None: there is no such job. Raises Overloaded, and what `read` raises.
    """
    ended = threading.Event()
    with job_ends.waiting(job_id, ended.set, waiters_max):
        for pause_s in _pauses(timeout_s):
            job = read()
            if pause_s is None or not _is_live(job):
                return job
            ended.wait(pause_s)
            ended.clear()
    raise AssertionError("the last pause is None")


async def wait_for_end_async(
    job_id: int, timeout_s: float, read: Callable[[], Awaitable[Job | None]], waiters_max: int
) -> Job | None:
    """As `wait_for_end`, for `async` code: no thread waits."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(ended.set)

    with job_ends.waiting(job_id, wake, waiters_max):
        for pause_s in _pauses(timeout_s):
            job = await read()
            if pause_s is None or not _is_live(job):
                return job
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await ended.wait()
            ended.clear()
    raise AssertionError("the last pause is None")


def _is_live(job: Job | None) -> bool:
    return job is not None and job.status.live


def _pauses(timeout_s: float) -> Iterator[float | None]:
    """The pauses after each read, in seconds; None: the timeout is over."""
    clock = SystemClock()  # a caller waits in real time, also in tests that set the jobs' clock
    end_s, pause_s = clock.monotonic_s() + timeout_s, PAUSE_S_MIN
    while (left_s := end_s - clock.monotonic_s()) > 0:
        yield min(pause_s, left_s)
        pause_s = min(pause_s * GROWTH, PAUSE_S_MAX)
    yield None
