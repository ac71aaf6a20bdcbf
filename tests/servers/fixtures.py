"""The servers as pytest fixtures: each started when first asked for, once a session.

Where a server comes from, in this order:

1. TOC_TEST_MYSQL_URL, TOC_TEST_MARIADB_URL, TOC_TEST_REDIS_URL, TOC_TEST_REDIS8_URL,
   TOC_TEST_REDIS62_URL, TOC_TEST_REDIS_CLUSTER_URL, TOC_TEST_ZOOKEEPER_URL: a server that runs
   already;
2. a container, where a Docker engine answers and TOC_TEST_LOCAL is not set (not for the cluster:
   its nodes would tell clients addresses that only containers reach);
3. a process on this machine, of what `python -m tests.servers install` brought.

The ZooKeeper ensemble and RabbitMQ are always the third: tests break them.

A test whose server cannot be had is skipped on a laptop and fails where CI is set.
"""

import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest
import redis
from kazoo.client import KazooClient
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from tests.servers import containers
from tests.servers.endpoint import Endpoint, from_environment
from tests.servers.mysql import start_mariadb, start_mysql
from tests.servers.process import Server, ServerUnavailableError
from tests.servers.rabbitmq import start_rabbitmq
from tests.servers.redis import RedisCluster, start_redis, start_redis_cluster
from tests.servers.zookeeper import (
    ZooKeeperEnsemble,
    start_zookeeper,
    start_zookeeper_ensemble,
)

REDIS_FIXTURES = ("redis_server", "redis8_server", "redis62_server", "redis_cluster")
ZOOKEEPER_FIXTURES = ("zookeeper_server", "zookeeper_ensemble")

QUICK = ("--innodb-flush-method=nosync", "--innodb-buffer-pool-size=128M")
"""Of servers that no test kills: nobody waits for the disk. A commit still writes, and all settings of
durability are those of a server without it. Otherwise each new table waits several times. And little memory:
each process of a run has servers of its own."""
NO_TLS = ("--tls-version=",)
"""To connect with TLS takes 4 ms of a processor more. tests/contract/test_tls.py has servers with TLS."""

S = TypeVar("S", bound=Server | RedisCluster | ZooKeeperEnsemble)


@contextmanager
def _served(name: str, start: Callable[[], Server | RedisCluster]) -> Iterator[Endpoint]:
    remote = from_environment(name)
    if remote is not None:
        yield remote
    elif name in containers.IMAGES and containers.engine_answers():
        with containers.run(name) as remote:
            yield remote
    else:
        with _served_here(start) as server:
            yield server


@contextmanager
def _served_here(start: Callable[[], S]) -> Iterator[S]:
    try:
        server = start()
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """MySQL 9; `url` names no database."""
    directory = tmp_path_factory.mktemp("mysql")
    with _served("mysql", lambda: start_mysql(directory, *QUICK, *NO_TLS)) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """MariaDB 10.11; `url` names no database."""
    directory = tmp_path_factory.mktemp("mariadb")
    with _served("mariadb", lambda: start_mariadb(directory, *QUICK)) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Redis 7."""
    with _served("redis", lambda: start_redis(tmp_path_factory.mktemp("redis"), "7")) as server:
        yield server


@pytest.fixture(scope="session")
def redis8_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Redis 8."""
    with _served("redis8", lambda: start_redis(tmp_path_factory.mktemp("redis8"), "8")) as server:
        yield server


@pytest.fixture(scope="session")
def redis62_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Redis 6.2."""
    directory = tmp_path_factory.mktemp("redis62")
    with _served("redis62", lambda: start_redis(directory, "6.2")) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """A Redis Cluster of three masters; `url` is one of them, to start from."""
    directory = tmp_path_factory.mktemp("redis_cluster")
    with _served("redis_cluster", lambda: start_redis_cluster(directory)) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """One ZooKeeper; `url` is "host:port", as kazoo takes it."""
    directory = tmp_path_factory.mktemp("zookeeper")
    with _served("zookeeper", lambda: start_zookeeper(directory)) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three ZooKeepers. A test that breaks one calls `start()` at its end: that starts what is down,
    and waits until it has joined."""
    directory = tmp_path_factory.mktemp("zookeeper_ensemble")
    with _served_here(lambda: start_zookeeper_ensemble(directory)) as ensemble:
        yield ensemble


@pytest.fixture(scope="session")
def rabbitmq_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """RabbitMQ. A test that breaks it calls `start()` at its end."""
    with _served_here(lambda: start_rabbitmq(tmp_path_factory.mktemp("rabbitmq"))) as server:
        yield server


@pytest.fixture
def mysql_database(mysql_server: Endpoint) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database on MySQL, dropped at the end."""
    with _database(mysql_server) as url:
        yield url


@pytest.fixture
def mariadb_database(mariadb_server: Endpoint) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database on MariaDB, dropped at the end."""
    with _database(mariadb_server) as url:
        yield url


@contextmanager
def _database(server: Endpoint) -> Iterator[str]:
    name = f"toc_test_{secrets.token_hex(6)}"
    url = make_url(server.url)
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.begin() as connection:
            # A test that leaves a transaction open would make this wait for its lock, for a year.
            connection.execute(text("SET SESSION lock_wait_timeout = 10"))
            connection.execute(text(f"DROP DATABASE {name}"))


@pytest.fixture
def redis_namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A random word for a test's keys. At the end every key that holds it, anywhere in its name, is
    deleted: on the Redis servers that the test asks for, or on Redis 7 if it asks for none."""
    names = [name for name in REDIS_FIXTURES if name in request.fixturenames] or ["redis_server"]
    servers = {name: request.getfixturevalue(name) for name in names}
    namespace = f"toc-test-{secrets.token_hex(6)}"
    yield namespace
    for name, server in servers.items():
        with redis_client(server.url, is_cluster=name == "redis_cluster") as client:
            for key in client.scan_iter(match=f"*{namespace}*", count=1000):
                client.delete(key)  # one by one: a cluster's keys are of many slots


def redis_client(url: str, *, is_cluster: bool) -> redis.Redis | redis.RedisCluster:
    return redis.RedisCluster.from_url(url) if is_cluster else redis.Redis.from_url(url)


@pytest.fixture
def zookeeper_root(request: pytest.FixtureRequest) -> Iterator[str]:
    """A new path for all that a test keeps in ZooKeeper, say as a client's chroot. At the end it is
    deleted, with all below: on the ZooKeepers that the test asks for, or on the one server if it
    asks for none."""
    asked = [name for name in ZOOKEEPER_FIXTURES if name in request.fixturenames]
    servers = [request.getfixturevalue(name) for name in asked or ["zookeeper_server"]]
    root = f"/toc-test-{secrets.token_hex(6)}"
    for server in servers:
        with zookeeper_client(server.url) as client:
            client.create(root)  # kazoo warns of a chroot that does not exist
    yield root
    for server in servers:
        with zookeeper_client(server.url) as client:
            client.delete(root, recursive=True)


@contextmanager
def zookeeper_client(url: str) -> Iterator[KazooClient]:
    """A connected client, ended with its session."""
    client = KazooClient(url)
    try:
        client.start()
        yield client
    finally:
        client.stop()
        client.close()
