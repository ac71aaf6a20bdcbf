"""`rig` is a slot on Redis 7, 8, 6.2 and on a Redis Cluster in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scripts.rig import Rig

SERVERS = ["redis_server", "redis8_server", "redis62_server", "redis_cluster"]


@pytest.fixture(params=SERVERS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    server = request.getfixturevalue(request.param)
    rig = Rig(server.url, server.version, is_cluster=request.param == "redis_cluster")
    yield rig
    rig.close()
