"""A mover in a process of its own, killed (kill -9) when it has told of a step."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from tests.forked_functions import run_forked
from toc.store.database_mover import DatabaseMover
from toc.store.move_server_session import MoveServerSession


def mover_dies(step: str, urls: Mapping[str, str], schema: str, index: int = 0) -> None:
    """Returns when the mover is dead. Its traceback, if it has one, is in the captured output."""
    assert run_forked(_move_until, step, dict(urls), schema, index) == -signal.SIGKILL, step


def _move_until(step: str, urls: Mapping[str, str], schema: str, index: int) -> None:
    def tell(told: str, text: str) -> None:
        if told == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def session(role: str) -> MoveServerSession:
        return MoveServerSession(index, role, urls[role], schema)

    mover = DatabaseMover(session("old"), session("new"), lambda server: session(server.role), tell)
    mover.start_or_resume(lambda: None)
