"""The same servers as containers, for machines with a Docker engine."""

import gc
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial

from tests.servers.endpoint import Remote, probe
from tests.servers.process import ServerFailedError, wait_for

# The image is here by then; a database makes its data first. Below the time limit of a test, which would hide
# the reason.
START_SECONDS_MAX = 100.0
LOG_BYTES_MAX = 3000


@dataclass(frozen=True)
class Image:
    name: str
    port: int
    url: str
    environment: Mapping[str, str] = field(default_factory=dict)


_MYSQL_URL = "mysql+pymysql://root@{host}:{port}"
_REDIS_URL = "redis://{host}:{port}/0"
_ZOOKEEPER = {  # as zookeeper.CONFIG says it to a local one
    "ZK_SERVER_HEAP": "128",
    "ZOO_TICK_TIME": "500",
    "ZOO_CFG_EXTRA": "minSessionTimeout=1000 maxSessionTimeout=40000",
    "ZOO_MAX_CLIENT_CNXNS": "0",
    "ZOO_ADMINSERVER_ENABLED": "false",
    "ZOO_4LW_COMMANDS_WHITELIST": "*",
}

IMAGES: Mapping[str, Image] = {
    "mysql": Image("mysql:9", 3306, _MYSQL_URL, {"MYSQL_ALLOW_EMPTY_PASSWORD": "yes"}),
    "mariadb": Image(
        "mariadb:10.11", 3306, _MYSQL_URL, {"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD": "yes"}
    ),
    "redis": Image("redis:7", 6379, _REDIS_URL),
    "redis8": Image("redis:8", 6379, _REDIS_URL),
    "redis62": Image("redis:6.2", 6379, _REDIS_URL),
    "zookeeper": Image("zookeeper:3.9", 2181, "{host}:{port}", _ZOOKEEPER),
}


@cache
def engine_answers() -> bool:
    """Whether a Docker engine answers; TOC_TEST_LOCAL says not to ask."""
    if os.environ.get("TOC_TEST_LOCAL"):
        return False
    import docker  # noqa: PLC0415 - 0.3 s, and most runs need it only here

    # Where nothing answers, the client leaves its socket to the garbage collector, which complains.
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        try:
            with closing(docker.from_env(timeout=5)) as client:
                return bool(client.ping())
        except docker.errors.DockerException:
            return False
        finally:
            gc.collect()


@contextmanager
def run(name: str) -> Iterator[Remote]:
    """A container of the server `name`, on a port of this machine, gone at the end."""
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - as above

    image = IMAGES[name]
    container = DockerContainer(image.name).with_exposed_ports(image.port)
    for key, value in image.environment.items():
        container = container.with_env(key, value)
    with container:
        host = container.get_container_host_ip()
        url = image.url.format(host=host, port=container.get_exposed_port(image.port))
        try:
            version = wait_for(partial(probe, url), image.name, START_SECONDS_MAX)
        except ServerFailedError as error:
            log = b"".join(container.get_logs())[-LOG_BYTES_MAX:].decode(errors="replace")
            raise ServerFailedError(f"{error}\n{log}") from error
        yield Remote(url, version)
