"""Apps: `web` on SQLite and on MySQL in turn; `small` on SQLite, for what is not about the database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.engines import library_on
from tests.contract.library import Library
from tests.http.web_world import WebWorld


@pytest.fixture(scope="session", params=["sqlite", "mysql"])
def _migrated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    with library_on(request.param, request, tmp_path_factory.mktemp("http")) as library:
        yield library


@pytest.fixture
def web(_migrated: Library) -> Iterator[WebWorld]:
    _migrated.reset()
    with WebWorld(_migrated) as world:
        yield world


@pytest.fixture(scope="session")
def _small_library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    folder: Path = tmp_path_factory.mktemp("http-small")
    library = Library([f"sqlite:///{folder}/toc.db"])
    yield library
    library.close()


@pytest.fixture
def small_library(_small_library: Library) -> Library:
    _small_library.reset()
    return _small_library


@pytest.fixture
def small(small_library: Library) -> Iterator[WebWorld]:
    with WebWorld(small_library) as world:
        yield world


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebWorld]:
    """One app for many tests: none of them changes a job that is not its own. Nothing resets it."""
    folder: Path = tmp_path_factory.mktemp("http-shared")
    library = Library([f"sqlite:///{folder}/toc.db"])
    limits = {"failed_logins_per_min": 100_000, "calls_per_s": 1e6, "calls_per_s_all": 1e6}
    with WebWorld(library, limits=limits) as world:
        yield world
    library.close()
