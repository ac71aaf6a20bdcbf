"""The worker's process of the benchmark: its handler only remembers when it was called."""

from __future__ import annotations

import time
from typing import Any

from toc.bench.load import BIZ_TYPE
from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.trial.child import heard
from toc.trial.worker import Command, serve, settings_of, wall_ms

LOOK_S = 0.005  # often enough for a drain of seconds, rarely enough not to disturb it
QUIET_S = 0.3  # a job too many would come within this

# job_id, action_ms, handler start in ms by this machine
_starts: list[tuple[int, int, float]] = []


def _noop(job: Job) -> None:
    _starts.append((job.job_id, job.action_ms, wall_ms()))


def _finish(node: Node) -> Command:
    def finish(line: dict[str, Any]) -> dict[str, Any]:
        """Waits until `count` handlers have started and all is settled; hands the starts over."""
        end_s = time.monotonic() + line["timeout_s"]
        while time.monotonic() < end_s:
            if (
                len(_starts) >= line["count"]
                and node.worker is not None
                and node.worker.in_flight == 0
            ):
                break
            time.sleep(LOOK_S)
        settled_ms = wall_ms()
        time.sleep(QUIET_S)
        starts = list(_starts)
        _starts.clear()
        return {"settled_ms": settled_ms, "starts": starts}

    return finish


def main() -> None:
    handlers = Registry()
    handlers.handler(BIZ_TYPE)(_noop)
    serve(handlers, {"finish": _finish}, settings_of(next(heard())))


if __name__ == "__main__":
    main()
