"""The processor time that all processes of this machine use: clients, workers, databases and Redis."""

from __future__ import annotations

import os
from pathlib import Path

from toc.bench.report import BenchReport

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
    """Measures the processor time of each round, in µs a job."""

    def __init__(self) -> None:
        self._us_per_job: list[tuple[float | None, float]] = []
        self.begin_round()

    def begin_round(self) -> None:
        self._began_s = machine_cpu_s()

    def end_round(self, jobs: int) -> None:
        ended_s = machine_cpu_s()
        if ended_s is not None and self._began_s is not None:
            self._us_per_job.append((None, (ended_s - self._began_s) / jobs * _US))

    def add_to_report(self, report: BenchReport, case: str) -> None:
        """Adds the rounds to the report; nothing where processor time is not known."""
        if self._us_per_job:
            what = "processor time of a job, all processes"
            report.add_measurement(case, what, "µs", self._us_per_job)
