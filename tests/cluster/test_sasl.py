"""Login by SASL: a server that knows its accounts from a JAAS file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError

from tests.servers import Server, ServerUnavailableError, start_zookeeper
from tests.worker.waiting import wait_until
from toc.cluster.members import restrict_acls
from toc.cluster.zookeeper_client import ZooKeeperClient
from toc.errors import ClusterUnavailable, SettingsError
from toc.runtime.settings import Settings

JAAS = """\
Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_toc="secret"
  user_other="secret2";
};
"""
CONFIG = "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("sasl")
    (directory / "jaas.conf").write_text(JAAS)
    jvm = [f"-Djava.security.auth.login.config={directory}/jaas.conf"]
    try:
        server = start_zookeeper(directory / "zookeeper", config=CONFIG, jvm=jvm)
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with server:
        yield server


@pytest.fixture
def connect(served: Server) -> Iterator[Any]:
    made: list[ZooKeeperClient] = []

    def connected(**cluster: Any) -> ZooKeeperClient:
        settings = Settings(zookeeper_hosts=served.url, cluster=cluster, connect_timeout_s=3)
        made.append(ZooKeeperClient(settings, lambda: None))
        made[-1].start_connecting()
        return made[-1]

    yield connected
    for zookeeper in made:
        zookeeper.close()


def test_only_the_account_may_read_or_write(connect: Any) -> None:
    ours = connect(auth="toc:secret", auth_by="sasl")
    ours.wait_until_connected(10)
    ours.create_path("members")
    assert restrict_acls(ours) == []
    assert ours.read_foreign_acls("") == ours.read_foreign_acls("members") == []
    assert ours.read_child_names("members") == []
    other = connect(auth="other:secret2", auth_by="sasl")
    other.wait_until_connected(10)
    with pytest.raises(SettingsError, match="refuses"):
        other.read_child_names("members")
    with pytest.raises(NoAuthError):
        other._client.create(f"{other.full_path('members')}/x", b"")


def test_a_wrong_password_is_tried_again_and_never_lets_in(
    connect: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toc.runtime.log_throttle.EVERY_S", 0.001)
    ours = connect(auth="toc:secret", auth_by="sasl")
    ours.wait_until_connected(10)
    ours.create_path("members")
    assert restrict_acls(ours) == []
    wrong = connect(auth="toc:wrong", auth_by="sasl")
    wait_until(lambda: wrong.start_connecting() or caplog.text.count("not in its JAAS file") > 1)
    # A session is there for a moment, before the login fails: it may read nothing.
    with pytest.raises((SettingsError, ClusterUnavailable)):
        wrong.read_child_names("members")
    assert "toc:wrong" not in caplog.text


def test_without_the_extra_it_is_said(monkeypatch: pytest.MonkeyPatch, connect: Any) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"pip install 'toc\[sasl\]'"):
        connect(auth="toc:secret", auth_by="sasl")
    with pytest.raises(ValueError, match="but auth is not set"):
        Settings(cluster={"auth_by": "sasl"})
