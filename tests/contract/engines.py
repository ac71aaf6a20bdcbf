"""A library on an engine that a test names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from tests.contract.library import Library
from tests.servers.fixtures import _database as temporary_database


@contextmanager
def library_on(
    engine: str,
    request: pytest.FixtureRequest,
    folder: Path,
    *,
    databases: int = 1,
    packets: bool = True,
) -> Iterator[Library]:
    """On new databases of "mysql", "mariadb" or "sqlite", whose files are in `folder`."""
    with ExitStack() as stack:
        if engine == "sqlite":
            urls = [f"sqlite:///{folder}/{index}.db" for index in range(databases)]
        else:
            server = request.getfixturevalue(f"{engine}_server")
            urls = [stack.enter_context(temporary_database(server)) for _ in range(databases)]
        yield stack.enter_context(closing(Library(urls, packets=packets)))
