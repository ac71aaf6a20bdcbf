"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.01
DEADLINE_S = 40.0
"""On a busy machine. Less than the 60 s after which a loader reads again: it must not hide a lost wake-up."""


def wait_until(
    condition: Callable[[], T], what: str = "the condition", seconds: float = DEADLINE_S
) -> T:
    """Polls until `condition` is true; returns what it gave. Fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:g} s, last seen: {found!r}")
        time.sleep(POLL_S)


def remains(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` holds all the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(POLL_S)
    return True
