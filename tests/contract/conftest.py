"""One suite, several engines: `library` is the store on SQLite, MariaDB and MySQL in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.library import Library
from tests.servers.fixtures import _database as temporary_database

ENGINES = ["sqlite", "mariadb", "mysql", "mysql behind a proxy"]
"""The proxy lets one statement through at a time."""


@pytest.fixture(scope="session", params=ENGINES)
def migrated(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Library]:
    """The databases, made once for all tests: tables cost more than the tests do."""
    if request.param == "sqlite":
        library = Library([f"sqlite:///{tmp_path_factory.mktemp('contract')}/toc.db"])
        yield library
        library.close()
        return
    engine, *apart = request.param.split()
    server = request.getfixturevalue(f"{engine}_server")
    with temporary_database(server) as url:
        library = Library([url], packets=not apart)
        yield library
        library.close()


@pytest.fixture
def library(migrated: Library) -> Library:
    """Empty tables and a clock at its start."""
    migrated.reset()
    return migrated
