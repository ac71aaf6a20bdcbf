"""The servers that all other tests stand on: they answer, and they are what their names say."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.servers import (
    Server,
    ServerFailedError,
    ServerUnavailableError,
    start_mariadb,
    start_mysql,
    start_redis,
)
from tests.servers.endpoint import Endpoint
from tests.servers.process import free_port


def fetch_row(url: str, sql: str) -> tuple[object, ...]:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        return tuple(connection.execute(text(sql)).one())


def test_mysql_is_durable(mysql_server: Endpoint) -> None:
    assert mysql_server.version.startswith("9.")
    sql = "SELECT @@log_bin, @@sync_binlog, @@innodb_flush_log_at_trx_commit"
    assert fetch_row(mysql_server.url, sql) == (1, 1, 1)


def test_mariadb_is_durable(mariadb_server: Endpoint) -> None:
    assert mariadb_server.version.startswith("10.11.")
    assert "MariaDB" in mariadb_server.version
    assert fetch_row(mariadb_server.url, "SELECT @@innodb_flush_log_at_trx_commit") == (1,)


@pytest.mark.parametrize("engine", ["mysql", "mariadb"])
def test_a_database_is_new_and_empty(engine: str, request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue(f"{engine}_database")
    tables = "information_schema.tables WHERE table_schema = DATABASE()"
    row = fetch_row(url, f"SELECT DATABASE(), COUNT(*) FROM {tables}")
    assert row == (url.rpartition("/")[2], 0)


@pytest.mark.parametrize(
    ("name", "version"), [("redis", "7."), ("redis8", "8."), ("redis62", "6.2.")]
)
def test_redis_is_its_flavour(name: str, version: str, request: pytest.FixtureRequest) -> None:
    server: Endpoint = request.getfixturevalue(f"{name}_server")
    assert server.version.startswith(version)


def test_cluster_spreads_keys_over_its_masters(
    redis_cluster: Endpoint, redis_namespace: str
) -> None:
    with redis.RedisCluster.from_url(redis_cluster.url) as client:
        masters = {node.name for node in client.get_primaries()}
        assert len(masters) == 3
        keys = [f"{redis_namespace}:{number}" for number in range(30)]
        for key in keys:
            client.set(key, "here")
        assert [client.get(key) for key in keys] == [b"here"] * 30
        assert {client.get_node_from_key(key).name for key in keys} == masters


def start_durable_redis(directory: Path) -> Server:
    return start_redis(directory, "7", "--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture(params=[start_mysql, start_mariadb, start_durable_redis])
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server that the test may break."""
    start: Callable[[Path], Server] = request.param
    try:
        server = start(tmp_path / "a directory")
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with server:
        yield server


def write(server: Server) -> None:
    if server.url.startswith("redis"):
        with redis.Redis.from_url(server.url) as client:
            client.set("kept", 1)
    else:
        engine = create_engine(server.url, poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text("CREATE DATABASE kept"))


def is_written(server: Server) -> bool:
    if server.url.startswith("redis"):
        with redis.Redis.from_url(server.url) as client:
            return bool(client.get("kept") == b"1")
    return fetch_row(server.url, "SHOW DATABASES LIKE 'kept'") == ("kept",)


def test_a_killed_server_starts_again_with_its_data(own_server: Server) -> None:
    write(own_server)
    url, pid = own_server.url, own_server.pid
    own_server.kill()
    with pytest.raises(ServerFailedError, match="not running"):
        _ = own_server.pid
    own_server.start()
    assert own_server.url == url
    assert own_server.pid != pid
    assert is_written(own_server)


def test_a_frozen_server_answers_only_once_thawed(tmp_path: Path) -> None:
    with (
        start_redis(tmp_path, "6.2") as server,
        redis.Redis.from_url(server.url, socket_timeout=0.2, retry=None) as client,
    ):
        server.freeze()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.thaw()
        assert client.ping()


def test_a_frozen_server_can_be_stopped(own_server: Server) -> None:
    own_server.freeze()
    own_server.stop()
    own_server.stop()


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailedError, match="nonsense"):
        start_redis(tmp_path, "6.2", "--nonsense", "yes")


def test_free_ports_are_below_the_ephemeral_range() -> None:
    assert free_port() < 32_768
