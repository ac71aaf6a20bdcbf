"""Tests marked `alone` judge times: no other test of this checkout runs beside one of them.

Two locks, on files that are there anyway. The room is held by every test while it runs, and by one that is
alone for itself. The door is passed on the way in: nobody overtakes who waits there for an empty room.
"""

from __future__ import annotations

import fcntl
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

DOOR = Path(__file__)
ROOM = DOOR.with_name("conftest.py")


@contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    with path.open() as file:
        fcntl.flock(file, how)
        yield


# Around all of a test's life, and so outside its time limit.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    alone = item.get_closest_marker("alone") is not None
    with ExitStack() as inside:
        with locked(DOOR, fcntl.LOCK_EX):
            inside.enter_context(locked(ROOM, fcntl.LOCK_EX if alone else fcntl.LOCK_SH))
        return (yield)
