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


def is_alone(item: pytest.Item | None) -> bool:
    return item is not None and item.get_closest_marker("alone") is not None


_inside = ExitStack()
_held: list[int] = []  # how the room is held: not at all, or in one way


# Around all of a test's life, and so outside its time limit.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    how = fcntl.LOCK_EX if is_alone(item) else fcntl.LOCK_SH
    if _held != [how]:
        with locked(DOOR, fcntl.LOCK_EX):
            _inside.enter_context(locked(ROOM, how))
        _held.append(how)
    try:
        return (yield)
    finally:
        # The room is emptied once for all that follow each other: that takes as long as the others' tests.
        if not (is_alone(item) and is_alone(nextitem)):
            _inside.close()
            _held.clear()
