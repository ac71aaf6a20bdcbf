"""A center survives a fork: the child opens connections of its own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.integration.world import World

MINUTE = timedelta(minutes=1)


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        status = 1
        try:
            os.write(writer, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0
    return json.loads(text)


@pytest.mark.filterwarnings("default")  # of the child's end: its parent's sockets are not its own
def test_parent_and_child_do_not_share_a_connection(world: World) -> None:
    center = world.center
    before = center.schedule(1, MINUTE)
    sockets = center._open_connections()

    def work() -> list[Any]:
        job_id = center.schedule(2, MINUTE)
        job = center.get(before)
        return [job_id, job is not None, center._open_connections() is sockets]

    job_id, found, same = in_child(work)
    assert (found, same) == (True, False)
    assert center._open_connections() is sockets
    # The parent's own connections are as they were.
    for n in range(3, 6):
        assert world.reminder(center.schedule(n, MINUTE)) == 60_000
    assert center.get(job_id).biz_id == 2  # type: ignore[union-attr]
    assert world.reminder(job_id) == 60_000
    assert world.library.count() == 5


@pytest.mark.filterwarnings("default")
def test_a_fork_while_a_call_holds_the_lock(world: World) -> None:
    center = world.center
    with center._lock:  # as if another thread were just connecting
        assert isinstance(in_child(lambda: center.schedule(1, MINUTE)), int)
    assert center.get(center.schedule(2, MINUTE)) is not None
