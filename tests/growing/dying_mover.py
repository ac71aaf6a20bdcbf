"""A mover in a process of its own, killed (kill -9) when it has told of a step.

The parent imports once what a move needs, and forks a child for each: it reads one plan a line, and writes
how that child ended.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from toc.store.database_mover import DatabaseMover
from toc.store.move_server_session import MoveServerSession

ROOT = Path(__file__).resolve().parents[2]


def mover_dies(step: str, urls: Mapping[str, str], schema: str, index: int = 0) -> None:
    """Returns when the mover is dead. Its traceback, if it has one, is in the captured output."""
    plan = {"step": step, "urls": dict(urls), "schema": schema, "index": index}
    parent = _start_parent()
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(json.dumps(plan) + "\n")
    parent.stdin.flush()
    assert json.loads(parent.stdout.readline()) == -signal.SIGKILL, step


@cache
def _start_parent() -> subprocess.Popen[str]:
    parent = subprocess.Popen(
        [sys.executable, "-m", __name__],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, parent)
    return parent


def _end(parent: subprocess.Popen[str]) -> None:
    with parent:
        parent.kill()


def _move(plan: dict[str, Any]) -> None:
    def tell(step: str, text: str) -> None:
        if step == plan["step"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def session(role: str) -> MoveServerSession:
        return MoveServerSession(plan["index"], role, plan["urls"][role], plan["schema"])

    mover = DatabaseMover(session("old"), session("new"), lambda server: session(server.role), tell)
    mover.start_or_resume(lambda: None)


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _move(json.loads(line))
            return  # too far: the plan's step never came
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
