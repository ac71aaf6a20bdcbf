"""`world`: shards with rows on SQLite, MariaDB and MySQL in turn, made once; `desk`: empty ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import make_url

from tests.admin.desk import Desk
from tests.admin.world import World, server_world, sqlite_world
from tests.contract.conftest import library, migrated, on_mariadb, on_mysql, on_proxy, on_sqlite
from tests.contract.library import Library
from tests.integration import world as integration
from tests.servers.endpoint import Endpoint
from tests.servers.fixtures import _database as temporary_database

# The store on four engines, for the tests of sets.
__all__ = ["library", "migrated", "on_mariadb", "on_mysql", "on_proxy", "on_sqlite"]

ENGINES = ["sqlite", "mariadb", "mysql"]


@pytest.fixture(scope="session")
def sqlite_rows(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The rows on SQLite; for tests that only read."""
    return sqlite_world(tmp_path_factory.mktemp("world"))


def world_on(
    engine: str, request: pytest.FixtureRequest, stack: ExitStack, tmp: pytest.TempPathFactory
) -> World:
    if engine == "sqlite":
        return sqlite_world(tmp.mktemp("world"))
    server = request.getfixturevalue(f"{engine}_server")

    def name(_part: str) -> str:
        url = stack.enter_context(temporary_database(server))
        return make_url(url).database or ""

    world = server_world(server, name)
    stack.callback(world.close)
    return world


@pytest.fixture(scope="session", params=ENGINES)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """For tests that only read."""
    with ExitStack() as stack:
        yield world_on(request.param, request, stack, tmp_path_factory)


@pytest.fixture(params=ENGINES)
def own_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """For a test that breaks it."""
    with ExitStack() as stack:
        yield world_on(request.param, request, stack, tmp_path_factory)


@pytest.fixture
def desk(library: Library, redis_server: Endpoint) -> Iterator[Desk]:
    world = integration.World(library, redis_server.url)
    world.center.find(42)  # the first one who connects writes the routing's fingerprint
    yield Desk(world)
    world.close()
