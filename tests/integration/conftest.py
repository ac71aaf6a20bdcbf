"""Worlds: SQLite or MySQL below, Redis beside. `own_redis` may be stopped and started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.engines import library_on
from tests.contract.library import Library
from tests.integration.world import World
from tests.servers import Server, ServerUnavailableError, start_redis
from tests.servers.endpoint import Endpoint


@pytest.fixture(scope="session", params=["sqlite", "mysql"])
def _migrated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("integration")) as library:
        yield library


@pytest.fixture
def world(_migrated: Library, redis_server: Endpoint) -> Iterator[World]:
    _migrated.reset()
    world = World(_migrated, redis_server.url)
    yield world
    world.close()


@pytest.fixture
def small_library(tmp_path: Path) -> Iterator[Library]:
    """SQLite, for tests that are not about the database."""
    library = Library([f"sqlite:///{tmp_path}/toc.db"])
    yield library
    library.close()


@pytest.fixture
def small(small_library: Library, redis_server: Endpoint) -> Iterator[World]:
    world = World(small_library, redis_server.url)
    yield world
    world.close()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Server]:
    try:
        server = start_redis(tmp_path / "redis", "7")
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with server:
        yield server
