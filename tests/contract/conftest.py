"""One suite, several engines: `library` is the store on SQLite, MariaDB and MySQL in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.engines import library_on
from tests.contract.library import Library

ENGINES = ["sqlite", "mariadb", "mysql", "mysql behind a proxy"]
"""The proxy lets one statement through at a time."""


@pytest.fixture(scope="session", params=ENGINES)
def migrated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    """The databases, made once for all tests: tables cost more than the tests do."""
    engine, *apart = request.param.split()
    folder = tmp_path_factory.mktemp("contract")
    with library_on(engine, request, folder, packets=not apart) as library:
        yield library


@pytest.fixture
def library(migrated: Library) -> Library:
    """Empty tables and a clock at its start."""
    migrated.reset()
    return migrated
