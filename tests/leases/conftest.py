"""`make_rig` builds rigs on MySQL and a real Redis, and closes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.leases.rig import LeaseRig
from tests.servers.endpoint import Endpoint

MakeLeaseRig = Callable[..., LeaseRig]


@pytest.fixture
def make_rig(
    mysql_database: str, redis_server: Endpoint, redis_namespace: str
) -> Iterator[MakeLeaseRig]:
    """`make_rig(redis_url=…, urls=…, **settings)`: by default one MySQL database."""
    rigs: list[LeaseRig] = []

    def make(**settings: Any) -> LeaseRig:
        urls = settings.pop("urls", [mysql_database])
        rigs.append(
            LeaseRig(urls, settings.pop("redis_url", redis_server.url), redis_namespace, **settings)
        )
        return rigs[-1]

    yield make
    for rig in reversed(rigs):
        rig.close()


@pytest.fixture
def rig(make_rig: MakeLeaseRig) -> LeaseRig:
    """A rig with one pull type."""
    rig = make_rig()
    rig.declare()
    return rig
