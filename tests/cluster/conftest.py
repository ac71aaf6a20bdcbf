"""A ZooKeeper that a test may break, and members in it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers import Server, ServerUnavailableError, start_zookeeper
from toc.cluster.membership import ClusterView, Membership
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings

SESSION_S = 2


class Node:
    """A member, and every view that it was told."""

    def __init__(self, hosts: str, namespace: str, name: str, **cluster: object) -> None:
        self.settings = Settings(
            zookeeper_hosts=hosts,
            namespace=namespace,
            cluster={"session_timeout_s": SESSION_S, **cluster},
        )
        self.name = name
        self.text = b"{}"
        self.views: list[ClusterView] = []
        self.membership = Membership(
            self.settings, name, lambda: self.text, self.views.append, SystemClock()
        )

    @property
    def members(self) -> list[str]:
        return list(self.membership.view.members)

    def start(self) -> Node:
        self.membership.start()
        return self

    def start_elsewhere(self) -> subprocess.Popen[bytes]:
        """The same member in a process of its own, to be killed."""
        settings = self.settings.model_dump(mode="json", exclude_defaults=True)
        return subprocess.Popen([sys.executable, "-c", ELSEWHERE, json.dumps(settings), self.name])


ELSEWHERE = """
import json, sys, threading
from toc.cluster.membership import Membership
from toc.runtime.clock import SystemClock
from toc.runtime.settings import Settings

settings = Settings(**json.loads(sys.argv[1]))
Membership(settings, sys.argv[2], lambda: b"{}", print, SystemClock()).start()
threading.Event().wait(60)
"""


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[Server]:
    """A server of its own, for a test that breaks it."""
    try:
        server = start_zookeeper(tmp_path / "zookeeper")
    except ServerUnavailableError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    with server:
        yield server


MakeNode = Callable[..., Node]


@pytest.fixture
def make_node(request: pytest.FixtureRequest) -> Iterator[MakeNode]:
    """Members in a namespace of their own: of the test's `zookeeper`, else of the one that tests share."""
    own = "zookeeper" in request.fixturenames
    server = request.getfixturevalue("zookeeper" if own else "zookeeper_server")
    made: list[Node] = []
    namespace = f"t{secrets.token_hex(4)}"

    def make(name: str, hosts: str = server.url, **cluster: object) -> Node:
        made.append(Node(hosts, namespace, name, **cluster))
        return made[-1]

    yield make
    for node in made:
        node.membership.stop()
