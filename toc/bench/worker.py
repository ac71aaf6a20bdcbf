"""The worker's process of the benchmark: its handler only remembers when it was called."""

from __future__ import annotations

import resource
from typing import Any

from toc.bench.load import ASIDE_TYPE, BIZ_TYPE
from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.trial.child import lines_from_parent
from toc.trial.worker import Command, serve, settings_of, wall_ms

# job_id, action_ms, handler start in ms by this machine
_starts: list[tuple[int, int, float]] = []


def _noop(job: Job) -> None:
    _starts.append((job.job_id, job.action_ms, wall_ms()))


def _make_progress_command(node: Node) -> Command:
    def look(line: dict[str, Any]) -> dict[str, Any]:
        """How many handlers have started, and how many jobs are not settled yet."""
        del line
        worker = node.worker
        assert worker is not None  # noqa: S101 - a node with handlers has one
        return {"started": len(_starts), "in_flight": worker.in_flight}

    return look


def _make_take_command(node: Node) -> Command:
    del node

    def take(line: dict[str, Any]) -> dict[str, Any]:
        """Hands the starts over; the next ones are counted anew. `memory_kb`: the most it ever had."""
        del line
        starts = list(_starts)
        _starts.clear()
        return {"starts": starts, "memory_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}

    return take


def main() -> None:
    handlers = Registry()
    for biz_type in (BIZ_TYPE, ASIDE_TYPE):
        handlers.handler(biz_type)(_noop)
    serve(
        handlers,
        {"look": _make_progress_command, "take": _make_take_command},
        settings_of(next(lines_from_parent())),
    )


if __name__ == "__main__":
    main()
