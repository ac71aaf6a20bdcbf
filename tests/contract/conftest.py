"""One suite, several engines: `library` is the store on SQLite, MariaDB and MySQL in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.engines import library_on
from tests.contract.library import Library

ENGINES = ["sqlite", "mariadb", "mysql", "mysql behind a proxy"]
"""The proxy lets one statement through at a time."""


def _made_once(name: str) -> Any:
    """A fixture: the databases of one engine, made once per process. Tables cost more than the tests do."""

    @pytest.fixture(scope="session", name=f"library on {name}")
    def made(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[Library]:
        engine, *apart = name.split()
        folder = tmp_path_factory.mktemp("contract")
        with library_on(engine, request, folder, packets=not apart) as library:
            yield library

    return made


on_sqlite, on_mariadb, on_mysql, on_proxy = map(_made_once, ENGINES)


@pytest.fixture(scope="session", params=ENGINES)
def migrated(request: pytest.FixtureRequest) -> Library:
    """The databases of one engine. They stay when the tests of the next engine begin."""
    found: Library = request.getfixturevalue(f"library on {request.param}")
    return found


@pytest.fixture
def library(migrated: Library) -> Library:
    """Empty tables and a clock at its start."""
    migrated.reset()
    return migrated
