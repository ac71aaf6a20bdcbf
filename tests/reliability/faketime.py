"""Processes that live in another time, by the program faketime."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache

import pytest

NAMES = ("LD_PRELOAD", "FAKETIME", "FAKETIME_DONT_FAKE_MONOTONIC", "DONT_FAKE_MONOTONIC")


@cache
def faked(offset: str) -> dict[str, str]:
    """The environment of a process whose wall clock is off, as "+3600s". Skips where there is no faketime.

    Only the wall clock: no machine's monotonic clock knows an hour. And by its environment alone: the
    program itself stays as the process' parent, and would be killed in its place.
    """
    program = shutil.which("faketime")
    if program is None:
        pytest.skip("the program faketime is not here")
    said = subprocess.run(
        [program, "--exclude-monotonic", "-f", offset, "env"],
        check=True, capture_output=True, text=True, timeout=20,
    ).stdout  # fmt: skip
    pairs = (line.partition("=") for line in said.splitlines())
    return {name: value for name, _, value in pairs if name in NAMES}
