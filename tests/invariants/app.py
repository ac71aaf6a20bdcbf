"""A worker process for the invariants: `python -m tests.invariants.app FILE`, its plan as JSON.

Every handler start and end is one line in the journal, appended by a single write, so that the
order of lines is the order of events, whichever process wrote them. What a handler does is in the
job's attribute: `sleep_s` (a number, or one per attempt), `gate` (waits for a file to be there),
`fail` (raises in so many first attempts), `kill` (kills its own process).
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY

from toc.domain.job import Job
from toc.handlers.registry import Registry
from toc.node.node import Node
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings

GATE_S_MAX, POLL_S, WATCH_S = 60.0, 0.02, 0.05


class Journal:
    """Lines of words; the last two are the wall time in ns and the process id."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        line = " ".join(map(str, (*words, time.time_ns(), os.getpid())))
        os.write(self._file, f"{line}\n".encode())


class OffClock(SystemClock):
    """The clock of a machine that is wrong by so many ms."""

    def __init__(self, wrong_by_ms: int) -> None:
        self._wrong_by_ms = wrong_by_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self._wrong_by_ms


def behave(job: Job) -> None:
    """What the job's attribute says."""
    wants = job.attribute
    if wants.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    pause = wants.get("sleep_s", 0)
    if isinstance(pause, list):
        pause = pause[min(job.attempts, len(pause)) - 1]
    time.sleep(pause)
    gates = wants.get("gates", [])
    gate = gates[min(job.attempts, len(gates)) - 1] if gates else None
    deadline = time.monotonic() + GATE_S_MAX
    while gate and not Path(gate).exists() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if job.attempts <= wants.get("fail", 0):
        raise RuntimeError(f"attempt {job.attempts} fails")


def registry(types: dict[str, dict[str, Any]], journal: Journal) -> Registry:
    def handle(job: Job) -> None:
        journal.write("start", job.job_id, job.biz_id, job.attempts)
        behave(job)
        journal.write("end", job.job_id, job.biz_id, job.attempts)

    found = Registry()
    for name, terms in types.items():
        found.handler(name, **terms)(handle)
    return found


def watch(node: Node, journal: Journal) -> None:
    """The process' own figures, twenty times a second."""
    worker = node.worker
    assert worker is not None
    parent = os.getppid()
    while os.getppid() == parent:
        queued = worker.permits.unsettled_count
        refused = int(REGISTRY.get_sample_value("toc_settles_refused_total") or 0)
        peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        journal.write(
            "load", worker.jobs_in_flight, worker.pool.waiting_count, queued, peak_kb, refused
        )
        time.sleep(WATCH_S)
    os._exit(1)  # the tests were killed: nothing is left behind


def main(plan: dict[str, Any]) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    journal = Journal(plan["journal"])
    node = Node(
        Settings(**plan["settings"]),
        handlers=registry(plan["types"], journal),
        clock=OffClock(plan.get("wrong_by_ms", 0)),
    )
    for database in node.databases:
        database._supports_packets &= plan.get("packets", True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    node.start()
    journal.write("ready")
    threading.Thread(target=watch, args=(node, journal), daemon=True).start()
    ended.wait()
    node.stop()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
