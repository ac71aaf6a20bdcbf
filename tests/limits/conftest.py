"""A store of limits on a real Redis, at a time that the test sets."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.servers.endpoint import Endpoint
from tests.servers.fixtures import redis_client
from toc.testing.clock import TestClock
from toc.timer.limit_store import LimitStore
from toc.timer.timer_server import TimerServer

SETTLE_MS = 3000
PARTITIONS_MAX = 3


class LimitRig:
    """A store at a time of its own; `wipe` does to it what FLUSHALL does to a Redis."""

    def __init__(self, url: str, namespace: str) -> None:
        self.namespace = f"{namespace}-{secrets.token_hex(4)}"
        self.clock = TestClock()
        self._is_cluster = url.startswith("redis+cluster")
        self._plain_url = url.replace("redis+cluster://", "redis://")
        self.server = TimerServer(url, self.clock, 5)
        self.store = self.open_store()

    def open_store(self) -> LimitStore:
        return LimitStore(
            self.server, self.namespace, self.clock,
            settle_ms=SETTLE_MS, partitions_max=PARTITIONS_MAX,
        )  # fmt: skip

    def read_keys(self) -> list[bytes]:
        with redis_client(self._plain_url, is_cluster=self._is_cluster) as client:
            return sorted(client.scan_iter(match=f"*{self.namespace}*", count=1000))

    def ttl_ms(self, key: bytes) -> int:
        with redis_client(self._plain_url, is_cluster=self._is_cluster) as client:
            return int(client.pttl(key))

    def expire(self, key: bytes, after_ms: int) -> None:
        with redis_client(self._plain_url, is_cluster=self._is_cluster) as client:
            client.pexpire(key, after_ms)

    def wipe(self) -> None:
        with redis_client(self._plain_url, is_cluster=self._is_cluster) as client:
            for key in client.scan_iter(match=f"*{self.namespace}*", count=1000):
                client.delete(key)

    def spoil(self, key: bytes) -> None:
        """Replaces a key by one of another kind."""
        with redis_client(self._plain_url, is_cluster=self._is_cluster) as client:
            client.delete(key)
            client.lpush(key, "x")

    def close(self) -> None:
        self.server.close()


MakeLimitRig = Callable[[], LimitRig]


@pytest.fixture
def make_limit_rig(redis_server: Endpoint, redis_namespace: str) -> Iterator[MakeLimitRig]:
    rigs: list[LimitRig] = []

    def make() -> LimitRig:
        rigs.append(LimitRig(redis_server.url, redis_namespace))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()
