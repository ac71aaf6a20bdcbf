"""The process that runs what the tests ask for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.simulation.__main__ import WORLD
from tests.simulation.broken import ROOT

COMMAND = (sys.executable, "-m", "tests.simulation")


class Ran(NamedTuple):
    status: int
    said: str


class Simulator:
    """One process for all: Python, libraries and Redis are started once. Each command is a fork of it.

    `imported`: a module of the project that it imports too.
    """

    def __init__(self, *imported: str) -> None:
        self._imported = imported
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, *words: str) -> Ran:
        if self._process is None:
            pipe = subprocess.PIPE
            argv = [*COMMAND, "--stdin", *self._imported]
            self._process = subprocess.Popen(argv, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
            return Ran(*json.loads(process.stdout.readline()))
        except BaseException:  # out of time, say: its answer would be taken for the next one's
            self.close()
            raise

    def close(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="session")
def simulate() -> Iterator[Simulator]:
    """Runs of toc as it is: imported once."""
    simulator = Simulator(WORLD)
    yield simulator
    simulator.close()


@pytest.fixture(scope="session")
def simulate_copy() -> Iterator[Simulator]:
    """Runs of variants that change more than functions: each imports a copy of its own."""
    simulator = Simulator()
    yield simulator
    simulator.close()
