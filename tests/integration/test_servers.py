"""The servers that all other tests stand on: they answer, and they are what their names say."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import redis
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from tests.servers import (
    RedisFlavour,
    Server,
    ServerFailedError,
    ServerUnavailableError,
    ZooKeeperEnsemble,
    expire_session,
    process,
    start_mariadb,
    start_mysql,
    start_redis,
    start_redis_cluster,
    start_redis_replica,
    start_zookeeper,
)
from tests.servers.endpoint import Endpoint, probe
from tests.servers.fixtures import zookeeper_client
from tests.servers.process import free_port, wait_for
from tests.servers.redis import check_in_sync
from tests.servers.zookeeper import _ask

S = TypeVar("S")


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


def test_a_cluster_with_replicas_survives_the_loss_of_a_master(tmp_path: Path) -> None:
    with started(partial(start_redis_cluster, tmp_path, replicas=True)) as cluster:
        assert len(cluster.nodes) == 6
        assert cluster.replicas == cluster.nodes[3:]
        ports = [node.url.rpartition(":")[2].partition("/")[0] for node in cluster.nodes]
        for place, replica in enumerate(cluster.replicas):
            with redis.Redis.from_url(replica.url) as client:
                info = client.info("replication")
            assert (info["role"], info["master_link_status"]) == ("slave", "up")
            assert str(info["master_port"]) == ports[place]
        with redis.RedisCluster.from_url(cluster.nodes[1].url) as client:
            assert len(client.get_replicas()) == 3
            client.set("{a}key", "here")
            owner = str(client.get_node_from_key("{a}key").port)
            client.wait(1, 1000, target_nodes=client.get_node_from_key("{a}key"))
        lost = ports.index(owner)
        cluster.nodes[lost].kill()
        with redis.Redis.from_url(cluster.replicas[lost].url) as client:
            wait_for(partial(check_master, client), "the replica to take over", 15)
            assert client.get("{a}key") == b"here"
        cluster.nodes[lost].start()
        with redis.Redis.from_url(cluster.nodes[lost].url) as client:
            wait_for(partial(check_in_sync, client), "the old master to follow", 15)


def check_master(client: redis.Redis) -> None:
    info = client.info("replication")
    if info["role"] != "master" or client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
        raise ConnectionError(str(info))


@pytest.mark.parametrize("flavour", ["6.2", "7", "8"])
def test_a_replica_has_a_copy_and_refuses_writes(flavour: RedisFlavour, tmp_path: Path) -> None:
    with started(partial(start_redis, tmp_path / "master", flavour)) as master:
        with redis.Redis.from_url(master.url) as client:
            client.set("key", "here")
        with (
            start_redis_replica(tmp_path / "replica", master, flavour) as replica,
            redis.Redis.from_url(replica.url) as client,
        ):
            assert client.get("key") == b"here"
            with pytest.raises(redis.ReadOnlyError):
                client.set("key", "there")
            master.kill()
            assert client.get("key") == b"here"


def test_zookeeper_keeps_short_sessions(zookeeper_server: Endpoint, zookeeper_root: str) -> None:
    assert zookeeper_server.version.startswith("3.")
    assert probe(zookeeper_server.url) == zookeeper_server.version
    client = KazooClient(f"{zookeeper_server.url}{zookeeper_root}", timeout=1.0)
    client.start()
    try:
        assert client.get_children("/") == []
        (session,) = [
            line
            for line in _ask(zookeeper_server.url, b"cons").splitlines()
            if f"sid={client.client_id[0]:#x}," in line
        ]
        assert ",to=1000," in session
    finally:
        client.stop()
        client.close()


@pytest.fixture(params=["zookeeper_server", "zookeeper_ensemble"])
def zookeeper(request: pytest.FixtureRequest) -> Endpoint:
    server: Endpoint = request.getfixturevalue(request.param)
    return server


def test_an_expired_session_is_lost_with_what_it_held(
    zookeeper: Endpoint, zookeeper_root: str
) -> None:
    with zookeeper_client(zookeeper.url) as client, zookeeper_client(zookeeper.url) as other:
        states: list[str] = []
        lost, back = threading.Event(), threading.Event()

        def listen(state: str) -> None:
            states.append(state)
            if state == KazooState.LOST:
                lost.set()
            elif lost.is_set() and state == KazooState.CONNECTED:
                back.set()

        client.create(f"{zookeeper_root}/held", ephemeral=True)
        session, _ = client.client_id
        client.add_listener(listen)
        expire_session(client)
        assert lost.wait(10)
        assert back.wait(10)
        assert states[-2:] == [KazooState.LOST, KazooState.CONNECTED]
        assert client.client_id[0] != session
        other.sync(zookeeper_root)
        assert other.exists(f"{zookeeper_root}/held") is None


def test_only_a_connected_client_has_a_session_to_expire() -> None:
    client = KazooClient(f"127.0.0.1:{free_port()}")
    with pytest.raises(ConnectionError, match="no session"):
        expire_session(client)
    client.close()


@pytest.fixture
def ensemble(
    zookeeper_ensemble: ZooKeeperEnsemble, zookeeper_root: str
) -> Iterator[ZooKeeperEnsemble]:
    """The ensemble, for a test that breaks it: put together again before the root is removed."""
    assert zookeeper_root
    yield zookeeper_ensemble
    for node in zookeeper_ensemble.nodes:
        if node.is_running:
            node.thaw()
    zookeeper_ensemble.start()


def test_an_ensemble_survives_the_loss_of_its_leader(
    ensemble: ZooKeeperEnsemble, zookeeper_root: str
) -> None:
    with zookeeper_client(ensemble.url) as client:
        client.set(zookeeper_root, b"here")
        session = client.client_id
        leader = ensemble.leader()
        leader.kill()
        follower = wait_for(ensemble.leader, "another leader", 15)
        assert follower is not leader
        assert client.retry(client.get, zookeeper_root)[0] == b"here"
        assert client.client_id == session
        leader.start()
        with zookeeper_client(leader.url) as again:
            assert again.get(zookeeper_root)[0] == b"here"
        assert ensemble.leader() is follower


def test_an_ensemble_replaces_a_frozen_leader(ensemble: ZooKeeperEnsemble) -> None:
    leader = ensemble.leader()
    leader.freeze()
    assert wait_for(ensemble.leader, "another leader", 15) is not leader
    leader.thaw()
    assert ensemble.leader() is not leader  # though that one thinks so still
    ensemble.start()
    # It may have been taken for joined while it still thought that it leads.
    assert wait_for(partial(probe, leader.url), "it to follow", 15) == ensemble.version
    assert wait_for(ensemble.leader, "the leader", 15) is not leader


def test_a_server_without_quorum_does_not_serve(
    ensemble: ZooKeeperEnsemble, zookeeper_root: str
) -> None:
    with zookeeper_client(ensemble.url) as client:
        client.set(zookeeper_root, b"here")
    first, second, third = ensemble.nodes
    first.stop()
    second.kill()
    wait_for(partial(check_not_serving, third), "the last one to notice", 15)
    with pytest.raises(ConnectionError, match="does not serve"):
        probe(third.url)
    with pytest.raises(ConnectionError, match="leads now"):
        ensemble.leader()
    third.stop()
    ensemble.start()
    assert probe(ensemble.url) == ensemble.version
    with zookeeper_client(second.url) as client:
        assert client.get(zookeeper_root)[0] == b"here"


def check_not_serving(server: Server) -> None:
    with suppress(ConnectionError):
        probe(server.url)
        raise TimeoutError(f"{server} serves still")


def start_durable_redis(directory: Path) -> Server:
    return start_redis(directory, "7", "--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture(params=[start_mysql, start_mariadb, start_durable_redis, start_zookeeper])
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server that the test may break."""
    start: Callable[[Path], Server] = request.param
    with started(partial(start, tmp_path / "a directory")) as server:
        yield server


def started(start: Callable[[], S]) -> S:
    try:
        return start()
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


def write(server: Server) -> None:
    if "://" not in server.url:
        with zookeeper_client(server.url) as client:
            client.create("/kept", b"1")
    elif server.url.startswith("redis"):
        with redis.Redis.from_url(server.url) as client:
            client.set("kept", 1)
    else:
        engine = create_engine(server.url, poolclass=NullPool)
        with engine.begin() as connection:
            connection.execute(text("CREATE DATABASE kept"))


def is_written(server: Server) -> bool:
    if "://" not in server.url:
        with zookeeper_client(server.url) as client:
            return bool(client.get("/kept")[0] == b"1")
    if server.url.startswith("redis"):
        with redis.Redis.from_url(server.url) as client:
            return bool(client.get("kept") == b"1")
    return fetch_row(server.url, "SHOW DATABASES LIKE 'kept'") == ("kept",)


def test_a_server_that_ended_starts_again_with_its_data(own_server: Server) -> None:
    """However it ended: killed, stopped, or frozen and stopped."""
    write(own_server)
    url, pid = own_server.url, own_server.pid
    own_server.kill()
    with pytest.raises(ServerFailedError, match="not running"):
        _ = own_server.pid
    own_server.start()
    assert own_server.url == url
    assert own_server.pid != pid
    assert is_written(own_server)
    own_server.stop()
    with pytest.raises(Exception, match=r"refused|Can't connect"):
        probe(url)
    own_server.start()
    assert own_server.url == url
    assert is_written(own_server)
    own_server.freeze()
    own_server.stop()
    own_server.stop()


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


@pytest.mark.parametrize("start", [start_mysql, start_mariadb])
def test_a_server_has_a_temporary_directory_of_its_own(
    start: Callable[[Path], Server], tmp_path: Path
) -> None:
    """Another one that starts would delete its temporary tables in a common one."""
    with start(tmp_path / "one") as server:
        (found,) = fetch_row(server.url, "SELECT @@tmpdir")
    assert found == str(tmp_path / "one" / "tmp")


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailedError, match="nonsense"):
        start_redis(tmp_path, "6.2", "--nonsense", "yes")


def test_free_ports_are_below_the_ephemeral_range() -> None:
    assert free_port() < 32_768


def test_a_free_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(process, "PORTS", range(port, port + 1))
    with pytest.raises(ServerFailedError, match="no free port"):
        free_port()
