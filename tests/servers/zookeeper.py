"""ZooKeeper from the machine's Debian: one server alone, or three as an ensemble.

A url has the form that kazoo takes: "host:port", with commas between the servers of an ensemble, and
no scheme. Sessions may be as short as a second, and end within half a second of their time.
"""

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kazoo.client import KazooClient

from tests.servers import programs
from tests.servers.process import START_SECONDS_MAX, Server, ServerFailedError, free_port, wait_for

NODES = 3
ANSWER_SECONDS_MAX = 1.0
EXPIRE_ATTEMPTS_MAX = 20

ALONE = "org.apache.zookeeper.server.ZooKeeperServerMain"
OF_AN_ENSEMBLE = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

JVM = (
    "-Xmx128m",
    # A server of a test lives for seconds: what counts is how soon it is there.
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dzookeeper.jmx.log4j.disable=true",
    # Servers that start together ask each other again this often, not up to a minute apart.
    "-Dzookeeper.fastleader.maxNotificationInterval=400",
)

CONFIG = """\
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=40000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
"""

# In ticks: 10 s to join and load what the leader has; 2 s of a leader's silence and another is
# elected. (One that is killed is noticed at once.)
ENSEMBLE_CONFIG = """\
initLimit=20
syncLimit=4
"""


def start_zookeeper(
    directory: Path, *, port: int = 0, config: str = "", jvm: Sequence[str] = ()
) -> Server:
    """Start one ZooKeeper. Port 0 takes a free one. `config`: more lines of its; `jvm`: Java's options."""
    return _server("ZooKeeper", ALONE, directory, port or free_port(), config, jvm).start()


def _server(
    name: str, main: str, directory: Path, port: int, config: str = "", jvm: Sequence[str] = ()
) -> Server:
    directory = directory.absolute()
    argv = [*programs.zookeeper_command(), *JVM, *jvm, main, str(directory / "zoo.cfg")]
    (directory / "data").mkdir(parents=True, exist_ok=True)
    config = CONFIG.format(data=directory / "data", port=port) + config
    (directory / "zoo.cfg").write_text(config)
    url = f"127.0.0.1:{port}"
    return Server(name, url, argv, directory, lambda: probe(url))


def probe(url: str) -> str:
    """Ask each server of `url`; answer the version once all of them serve sessions."""
    states = [_state(address) for address in url.partition("/")[0].split(",")]
    return states[0].version


@dataclass(frozen=True)
class State:
    version: str
    mode: str  # standalone, leader or follower
    epoch: int  # counts the leaders; a follower may not know of the last one until that writes


def _state(address: str) -> State:
    """What a server says of itself. ConnectionError: it does not serve.

    A server of an ensemble serves once it has joined a quorum, and no longer when it knows that it
    has lost it.
    """
    answer = _ask(address, b"srvr")  # of all four-letter words the one that is always allowed
    version = re.search(r"^Zookeeper version: ([\d.]+)", answer)
    mode = re.search(r"^Mode: (\w+)", answer, re.MULTILINE)
    zxid = re.search(r"^Zxid: 0x([0-9a-f]+)", answer, re.MULTILINE)
    if version is None or mode is None or zxid is None:
        raise ConnectionError(f"{address} does not serve: {answer.strip()}")
    return State(version[1], mode[1], int(zxid[1], 16) >> 32)


def _ask(address: str, word: bytes) -> str:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), ANSWER_SECONDS_MAX) as connection:
        connection.sendall(word)
        with connection.makefile(errors="replace") as file:
            return file.read()


class ZooKeeperEnsemble:
    """Three servers, of which one leads. `nodes` are Servers, to be broken one by one."""

    def __init__(self, nodes: Sequence[Server]) -> None:
        self.nodes = list(nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """All three: a client takes one of them, and another when that is lost."""
        return ",".join(node.url for node in self.nodes)

    @property
    def version(self) -> str:
        return self.nodes[0].version

    def leader(self) -> Server:
        """Who leads now. ConnectionError: nobody that answers, as while they elect one.

        A frozen server makes this wait a second for its answer.
        """
        leaders = self._leaders()
        if not leaders:
            raise ConnectionError(f"none of {self.url} leads now")
        return leaders[max(leaders)]

    def _leaders(self) -> dict[int, Server]:
        """Who says that it leads, by epoch: one that was frozen thinks so until it is told."""
        leaders = {}
        for node in self.nodes:
            with suppress(OSError):
                state = _state(node.url)
                if state.mode == "leader":
                    leaders[state.epoch] = node
        return leaders

    def start(self) -> Self:
        """Start those that do not run, together, and wait until all three are one quorum.

        It is what puts an ensemble together again: also one whose thawed server is yet to learn
        what it has missed.
        """
        starting = [node for node in self.nodes if not node.is_running]
        try:
            for node in starting:
                node.launch()
            for node in starting:
                node.wait()
            wait_for(self._check_joined, f"ZooKeepers {self.url}", START_SECONDS_MAX)
        except BaseException:
            for node in starting:
                node.kill()
            raise
        return self

    def _check_joined(self) -> None:
        probe(self.url)
        leaders = list(self._leaders().values())
        monitored = [_ask(leader.url, b"mntr").splitlines() for leader in leaders]
        if len(leaders) != 1 or f"zk_synced_followers\t{NODES - 1}" not in monitored[0]:
            raise ConnectionError(f"not joined yet: {leaders} lead")

    def stop(self) -> None:
        for node in self.nodes:
            node.terminate()
        for node in self.nodes:
            node.stop()


def start_zookeeper_ensemble(directory: Path) -> ZooKeeperEnsemble:
    """Start three servers and wait until each of them serves."""
    ports = [[free_port() for _ in ("quorum", "election", "client")] for _ in range(NODES)]
    peers = [f"server.{n}=127.0.0.1:{q}:{e}\n" for n, (q, e, _) in enumerate(ports, start=1)]
    config = ENSEMBLE_CONFIG + "".join(peers)
    nodes = []
    for number, (_, _, port) in enumerate(ports, start=1):
        home = directory / str(number)
        nodes.append(_server(f"ZooKeeper {number}", OF_AN_ENSEMBLE, home, port, config))
        (home / "data/myid").write_text(f"{number}\n")
    return ZooKeeperEnsemble(nodes).start()


def expire_session(client: KazooClient) -> None:
    """End the session of a connected client, as the servers do when its time is up.

    The documented way: a second connection takes the session over and closes it. The client is cut
    off by that and connects again, to be told that it is LOST, then connects with a new session.
    When this returns the servers have dropped the session; the client may not know yet.
    """
    session = client.client_id
    if session is None:
        raise ConnectionError("the client is not connected: it has no session to expire")
    hosts = ",".join(f"{host}:{port}" for host, port in client.hosts)
    for _ in range(EXPIRE_ATTEMPTS_MAX):
        second = KazooClient(hosts, client_id=session)
        try:
            second.start()
            # None: cut off already, by the client that took it back. Another: it was refused.
            is_gone = second.client_id not in (None, session)
        finally:
            second.stop()
            second.close()
        if is_gone:
            return
    raise ServerFailedError(f"session {session[0]:#x} outlived {EXPIRE_ATTEMPTS_MAX} attempts")


@contextmanager
def foreign_members(
    url: str,
    namespace: str,
    count: int,
    *,
    ephemeral: bool = True,
    name: str = "",
    text: bytes = b"{}",
) -> Iterator[list[str]]:
    """Members that nobody's process stands behind, written by somebody who only reaches ZooKeeper.

    Each names itself as a node of the same handlers as the first real one, so it owns its share of
    everything. `ephemeral`: they last as long as the context; else they stay until it removes them.
    """
    client = KazooClient(hosts=url, timeout=10)
    client.start(timeout=20)
    members = f"/toc/{namespace}/members"
    made: list[str] = []
    try:
        client.ensure_path(members)
        real = [known for known in client.get_children(members) if "~" in known]
        group = real[0].rpartition("-")[0].partition("~")[2] if real else "0" * 8
        for n in range(count):
            path = f"{members}/{name or f'forged:{n}:{n:012x}'}~{group}-"
            made.append(client.create(path, text, ephemeral=ephemeral, sequence=True))
        yield made
        if not ephemeral:
            for path in made:
                client.delete(path)
    finally:
        client.stop()
        client.close()
