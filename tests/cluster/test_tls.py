"""TLS to ZooKeeper: certificates of a real authority, a server that takes nothing else at that port."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_tls import Authority
from tests.servers import Server, ServerUnavailableError, start_zookeeper
from tests.servers.process import free_port
from tests.worker.waiting import wait_until
from toc.cluster.roster import read_roster
from toc.cluster.zookeeper_client import ZooKeeperClient
from toc.errors import ClusterUnavailable, SettingsError
from toc.runtime.settings import Settings

# kazoo leaves the socket of a handshake that failed to the garbage collector, which closes it.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

CONFIG = """\
secureClientPort={port}
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location={keys}
ssl.keyStore.type=PEM
ssl.trustStore.location={ca}
ssl.trustStore.type=PEM
ssl.clientAuth=need
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory, "ours")


@pytest.fixture(scope="module")
def served(directory: Path, authority: Authority) -> Iterator[tuple[Server, str]]:
    """A ZooKeeper whose certificate is for 127.0.0.1 alone, and its TLS address."""
    cert, key = authority.sign("server", "IP:127.0.0.1")
    keys = directory / "server-keys.pem"
    keys.write_text(cert.read_text() + key.read_text())
    port = free_port()
    config = CONFIG.format(port=port, keys=keys, ca=authority.ca)
    try:
        server = start_zookeeper(directory / "zookeeper", config=config)
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with server:
        yield server, f"127.0.0.1:{port}"


Make = Callable[..., Settings]


@pytest.fixture
def make(served: tuple[Server, str], authority: Authority) -> Make:
    cert, key = authority.sign("client")

    def settings(hosts: str = served[1], **changes: Any) -> Settings:
        cluster = {
            "tls": "verify_identity", "tls_ca": str(authority.ca), "tls_cert": str(cert),
            "tls_key": str(key), "auth": "toc:secret",
        } | changes  # fmt: skip
        given = {name: value for name, value in cluster.items() if value is not None}
        return Settings(zookeeper_hosts=hosts, cluster=given, connect_timeout_s=2)

    return settings


def test_a_server_with_a_certificate_of_ours_is_used(make: Make) -> None:
    assert read_roster(make()) == []


def test_one_file_may_hold_both_certificate_and_key(
    make: Make, authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.sign("both")
    (tmp_path / "both.pem").write_text(cert.read_text() + key.read_text())
    assert read_roster(make(tls_cert=str(tmp_path / "both.pem"), tls_key=None)) == []


def test_a_server_for_another_host_is_refused(make: Make, served: tuple[Server, str]) -> None:
    hosts = served[1].replace("127.0.0.1", "localhost")
    with pytest.raises(ClusterUnavailable):
        read_roster(make(hosts))
    assert read_roster(make(hosts, tls="verify_ca")) == []


def test_a_server_of_another_authority_is_refused(make: Make, tmp_path: Path) -> None:
    other = Authority(tmp_path, "theirs")
    for tls in ("verify_ca", "verify_identity"):
        with pytest.raises(ClusterUnavailable):
            read_roster(make(tls=tls, tls_ca=str(other.ca)))
    assert read_roster(make(tls="required", tls_ca=None)) == []


def test_with_an_authority_of_ours_those_of_the_system_are_not_believed(
    make: Make, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Authority(tmp_path, "theirs")
    monkeypatch.setenv(
        "SSL_CERT_FILE", str(authority.ca)
    )  # one of the system's signed the server's
    for tls in ("verify_ca", "verify_identity"):
        with pytest.raises(ClusterUnavailable):
            read_roster(make(tls=tls, tls_ca=str(other.ca)))
    assert read_roster(make(tls_ca=None)) == []
    with pytest.raises(ValueError, match="any public certificate for any host would be taken"):
        make(tls="verify_ca", tls_ca=None)


def test_who_shows_no_certificate_or_speaks_no_tls_is_refused(make: Make) -> None:
    with pytest.raises(ClusterUnavailable):
        read_roster(make(tls_cert=None, tls_key=None))
    with pytest.raises(ClusterUnavailable):
        read_roster(make(tls="off", tls_ca=None, tls_cert=None, tls_key=None))


def test_it_is_connected_again_after_a_restart(make: Make, served: tuple[Server, str]) -> None:
    server, _ = served
    zookeeper = ZooKeeperClient(make(), lambda: None)
    zookeeper.wait_until_connected(10)
    server.kill()
    wait_until(lambda: zookeeper.session_id is None)
    server.start()
    wait_until(lambda: zookeeper.session_id is not None)
    zookeeper.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tls_ca": "/nowhere.pem"}, "cluster.tls_ca: '/nowhere.pem' cannot be used"),
        ({"tls_cert": "/nowhere.pem"}, "cluster.tls_cert: '/nowhere.pem' cannot be used"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(make: Make, changes: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        read_roster(make(**changes))


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"tls": "required", "tls_ca": "ca"}, "no certificate is verified"),
        ({"tls_cert": "cert"}, "tls_cert is set, but with tls = 'off' there may be connections"),
        ({"tls": "required", "tls_key": "key"}, "tls_key is set without tls_cert"),
    ],
)
def test_settings_that_contradict_each_other(cluster: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Settings(cluster=cluster)
