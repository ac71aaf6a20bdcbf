"""What tests know of a server, wherever it runs."""

import os
from dataclasses import dataclass
from typing import Protocol

from tests.servers import mysql, redis, zookeeper


class Endpoint(Protocol):
    """Where a server is, and which it is. Only a Server can be killed, frozen and started again."""

    @property
    def url(self) -> str: ...

    @property
    def version(self) -> str: ...


@dataclass(frozen=True)
class Remote:
    """A server that somebody else runs."""

    url: str
    version: str


def variable(name: str) -> str:
    """The environment variable that gives the server `name`: "redis8" has TOC_TEST_REDIS8_URL."""
    return f"TOC_TEST_{name.upper()}_URL"


def from_environment(name: str) -> Remote | None:
    url = os.environ.get(variable(name))
    return Remote(url, probe(url)) if url else None


def probe(url: str) -> str:
    """Connect, and answer the version. Only ZooKeeper's addresses have no scheme."""
    if "://" not in url:
        return zookeeper.probe(url)
    probe_engine = redis.probe if url.startswith("redis") else mysql.probe
    return probe_engine(url)
