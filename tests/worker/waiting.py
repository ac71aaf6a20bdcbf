"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S, POLL_S_MAX = 0.01, 0.05
"""Who has waited longer looks more rarely: most looks cost a statement, here and at the server."""
DEADLINE_S = 40.0
"""On a busy machine. Less than the 60 s after which a loader reads again: it must not hide a lost wake-up."""


def wait_until(
    condition: Callable[[], T], what: str = "the condition", seconds: float = DEADLINE_S
) -> T:
    """Polls until `condition` is true; returns what it gave. Fails after `seconds`."""
    start = time.monotonic()
    while True:
        found = condition()
        if found:
            return found
        waited_s = time.monotonic() - start
        if waited_s > seconds:
            raise AssertionError(f"{what}: not within {seconds:g} s, last seen: {found!r}")
        time.sleep(min(max(POLL_S, waited_s / 10), POLL_S_MAX))


def remains(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` holds all the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(POLL_S)
    return True
