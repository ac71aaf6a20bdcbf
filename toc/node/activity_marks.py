"""What a process marks in the history of the dashboard: its start, and the servers that do not answer it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from toc.node.probes import Probe
from toc.runtime.process_info import toc_version
from toc.timer.activity_reporter import Mark


def find_marks(started_ms: int, probes: Sequence[Probe]) -> Iterator[Mark]:
    """The marks that hold now. Asks no server."""
    yield started_ms, f"start:{toc_version()}"
    for probe in probes:
        result = probe.current_result
        if not result.up:
            yield result.since_ms, f"away:{probe.server}"
