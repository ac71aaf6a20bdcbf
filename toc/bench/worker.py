"""The worker's process of the benchmark: its handler only records when it was called."""

from __future__ import annotations

import resource
import time
from typing import Any

from toc.bench.child_node import run_node_for_parent, settings_from_message, wall_ms
from toc.bench.child_process import read_parent_messages
from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.node.node import Node

# job_id, action_ms, handler start in ms by this machine
_starts: list[tuple[int, int, float]] = []


def _record_start(job: Job) -> None:
    _starts.append((job.job_id, job.action_ms, wall_ms()))


def _count_starts(node: Node) -> dict[str, Any]:
    """How many handlers have started, and how many jobs are not settled yet."""
    worker = node.worker
    assert worker is not None  # noqa: S101 - a node with handlers has one
    return {"started": len(_starts), "in_flight": worker.jobs_in_flight}


def _hand_over_starts(node: Node) -> dict[str, Any]:
    """Returns the recorded starts, and forgets them. `memory_kb`: the peak since the process began."""
    del node
    starts = list(_starts)
    _starts.clear()
    return {"starts": starts, "memory_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def _read_cpu_s(node: Node) -> dict[str, Any]:
    """CPU seconds of this process, all threads."""
    del node
    return {"cpu_s": time.process_time()}


def main() -> None:
    first = next(read_parent_messages())
    settings = settings_from_message(first)
    handlers = Registry()
    for biz_type in first["biz_types"]:
        handlers.handler(biz_type)(_record_start)
    commands = {"count": _count_starts, "take": _hand_over_starts, "cpu": _read_cpu_s}
    run_node_for_parent(handlers, settings, commands)


if __name__ == "__main__":
    main()
