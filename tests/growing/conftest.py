"""`pair`: two MySQL servers; `town`: a database on one of them that the other replicates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.growing.town import Pair, Town
from tests.invariants.conftest import _started, make_stack, own_mysql, own_redis
from tests.reliability.conftest import make_fleet, report
from tests.servers import start_mysql_replica, start_mysql_source

__all__ = ["make_fleet", "make_stack", "own_mysql", "own_redis", "report"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A server, and a replica of it. Moves make another of what they are: each `town` sets that right."""
    directory, small = tmp_path_factory.mktemp("pair"), "--innodb-buffer-pool-size=64M"
    for old in _started(lambda: start_mysql_source(directory / "old", small)):
        with start_mysql_replica(directory / "new", old, small) as new:
            yield Pair(old, new)
            new.kill()  # all has been read
            old.kill()


@pytest.fixture
def town(pair: Pair) -> Iterator[Town]:
    """A new database of a few shards on the old server, and the new one replicates it."""
    pair.restore()
    town = Town(pair)
    yield town
    town.close()
