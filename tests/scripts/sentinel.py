"""A sentinel that watches one master and promotes its replica."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import redis

from tests.servers import Server, programs
from tests.servers.process import START_SECONDS_MAX, free_port, wait_for
from tests.servers.redis import probe

SERVICE = "reminders"


def start_sentinel(
    directory: Path,
    master: Server,
    *lines: str,
    master_port: int = 0,
    password: str = "",
    own_password: str = "",
) -> Server:
    """Starts it, and waits until it knows of the master's replica. Its url is redis://host:port.

    `lines` are further ones of its configuration; `master_port` is another port of the master, for TLS.
    """
    directory.mkdir(parents=True, exist_ok=True)
    port, url_port = free_port(), master.url.rpartition(":")[2].partition("/")[0]
    config_lines = [
        f"port {port}",
        "bind 127.0.0.1",
        *lines,
        f"sentinel monitor {SERVICE} 127.0.0.1 {master_port or url_port} 1",
        f"sentinel down-after-milliseconds {SERVICE} 500",
        f"sentinel failover-timeout {SERVICE} 3000",
        *([f"sentinel auth-pass {SERVICE} {password}"] if password else []),
        *([f"requirepass {own_password}"] if own_password else []),
    ]
    config = directory / "sentinel.conf"  # which it rewrites
    config.write_text("\n".join(config_lines) + "\n")
    argv = [programs.find("redis-server", "redis"), str(config.absolute()), "--sentinel"]
    account = f":{own_password}@" if own_password else ""
    url = f"redis://{account}127.0.0.1:{port}"
    server = Server("Redis sentinel", url, argv, directory, lambda: probe(url)).start()
    try:
        with redis.Redis.from_url(url, socket_timeout=5) as client:
            wait_for(partial(_check_replica, client), repr(server), START_SECONDS_MAX)
    except BaseException:
        server.kill()
        raise
    return server


def _check_replica(client: redis.Redis) -> None:
    replicas = client.sentinel_slaves(SERVICE)
    if not any(replica["master-link-status"] == "ok" for replica in replicas):
        raise ConnectionError(f"no replica in step yet: {replicas}")
