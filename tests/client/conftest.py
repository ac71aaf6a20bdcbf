"""Worlds: `remote` on SQLite and on MySQL in turn; `small` on SQLite, for what is not about the database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.remote_world import RemoteWorld
from tests.contract.engines import library_on
from tests.contract.library import Library


@pytest.fixture(scope="session", params=["sqlite", "mysql"])
def _migrated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("client")) as library:
        yield library


@pytest.fixture
def remote(_migrated: Library) -> Iterator[RemoteWorld]:
    _migrated.reset()
    with RemoteWorld(_migrated) as world:
        yield world


@pytest.fixture(scope="session")
def _small_library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    library = Library([f"sqlite:///{tmp_path_factory.mktemp('client-small')}/toc.db"])
    yield library
    library.close()


@pytest.fixture
def small(_small_library: Library) -> Iterator[RemoteWorld]:
    _small_library.reset()
    with RemoteWorld(_small_library) as world:
        yield world
