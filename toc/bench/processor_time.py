"""The processor time that all processes of this machine use: clients, workers, databases and Redis."""

from __future__ import annotations

import os
from pathlib import Path

_PROCESSORS = Path("/proc/stat")
_US = 1e6


def machine_cpu_s() -> float | None:
    """Processor time of everything on this machine so far, in seconds (Linux); None: not known."""
    try:
        first = _PROCESSORS.read_text().partition("\n")[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _wait, *others = map(int, first[1:8])
    ticks: int = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + sum(others)) / ticks


class ProcessorTime:
    """Measures processor time from its making on. `us_per_job`: the time of each round, in µs a job."""

    def __init__(self) -> None:
        self.us_per_job: list[tuple[float | None, float]] = []
        self.begin_round()

    def begin_round(self) -> None:
        self._began_s = machine_cpu_s()

    def end_round(self, jobs: int) -> None:
        ended_s = machine_cpu_s()
        if ended_s is not None and self._began_s is not None:
            self.us_per_job.append((None, (ended_s - self._began_s) / jobs * _US))
