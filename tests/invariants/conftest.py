"""`make_stack`: MySQL, a Redis that the test may break, and worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.invariants.harness import Stack
from tests.servers import Server, ServerUnavailableError, start_mysql, start_redis

MakeStack = Callable[..., Stack]


def _started(start: Callable[[], Server]) -> Iterator[Server]:
    try:
        server = start()
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Server]:
    """A Redis that the test may break."""
    yield from _started(lambda: start_redis(tmp_path / "redis"))


@pytest.fixture
def own_mysql(tmp_path: Path) -> Iterator[Server]:
    """A MySQL that the test may break."""
    yield from _started(lambda: start_mysql(tmp_path / "mysql"))


@pytest.fixture
def make_stack(
    tmp_path: Path, request: pytest.FixtureRequest, own_redis: Server
) -> Iterator[MakeStack]:
    """`make_stack(timer={…}, …)`: settings above the quick ones, on one database or several."""
    stacks: list[Stack] = []

    def make(**settings: Any) -> Stack:
        databases = settings.pop("databases", None) or [
            settings.pop("database", None) or request.getfixturevalue("mysql_database")
        ]
        redis_url = settings.pop("redis_url", own_redis.url)
        stacks.append(Stack(tmp_path, databases, redis_url, **settings))
        return stacks[-1]

    yield make
    for stack in stacks:
        stack.close()
