"""`toc nodes` and `toc status`: nodes as processes, a real ZooKeeper."""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tests.cli.conftest import Result, Toc
from tests.cli.processes import Process, wait_until
from tests.servers.endpoint import Endpoint
from tests.servers.zookeeper import foreign_members
from toc.node.dev_servers import PrivateRedis
from toc.runtime.process_info import process_name

Start = Callable[..., Process]
Servers = dict[str, str]

HANDLERS = """
import toc

@toc.handler("quick", timeout=5)
def quick(job: toc.Job) -> None:
    print("quick", job.biz_id, flush=True)
"""


@pytest.fixture
def cluster(
    servers: Servers,
    zookeeper_server: Endpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Servers:
    """The settings of `servers`, and a ZooKeeper; in force here too."""
    (tmp_path / "shop.py").write_text(HANDLERS)
    more = {"TOC_ZOOKEEPER_HOSTS": zookeeper_server.url, "TOC_CLUSTER__SESSION_TIMEOUT_S": "2"}
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    return servers | more


def begin(start: Start, settings: Servers, *arguments: str) -> Process:
    process = start(settings, "worker", "--app", "shop", *arguments)
    process.says("runs quick")
    return process


def when(toc: Toc, condition: Callable[[Result], object], *arguments: object) -> Result:
    """The answer of a command once it is as wanted."""
    answers: list[Result] = []

    def asked() -> object:
        answers.append(toc(*arguments))
        return condition(answers[-1])

    wait_until(asked, f"toc {arguments}")
    return answers[-1]


def test_nodes_share_everything_and_say_so(start: Start, cluster: Servers, toc: Toc) -> None:
    alone = toc("nodes", "--json")
    assert alone.code == 1  # nobody owns anything
    assert len(alone.json["without_owner"]) == 8
    first = begin(start, cluster)
    second = begin(start, cluster, "--http-port", "0")
    found = when(
        toc,
        lambda result: (
            [len(n["shards"]) for n in result.json["nodes"]] != [4]
            and result.code == 0
            and all(len(owners) == 1 for owners in result.json["owners"].values())
        ),
        "nodes",
        "--json",
    ).json
    one, two = found["nodes"]
    assert [one["leads"], two["leads"]] == [True, False]
    assert one["http"] is None
    assert two["http"].startswith("http://127.0.0.1:")
    assert sorted(one["shards"] + two["shards"]) == [0, 1, 2, 3]
    assert sorted(one["slots"]["default"] + two["slots"]["default"]) == [0, 1, 2, 3]
    assert found["owners"].keys() == {
        *(f"slot of default {n}" for n in range(4)),
        *(f"shard {n}" for n in range(4)),
    }
    assert found["owners"]["shard 0"][0]["since"].endswith("Z")
    doctor = toc("doctor", "--json").json["checks"]
    found_first = next(c["found"] for c in doctor if c["subject"] == "zookeeper")
    assert found_first == "2 nodes there"
    table = toc("nodes").out
    assert one["node"] in table
    assert "2 nodes; 0 of 8 slots and shards have no owner" in table
    lines = toc("nodes", "--owners").out.splitlines()
    assert sum("slot of default" in line or "shard" in line for line in lines) == 8 + 1

    second.send(signal.SIGTERM)  # gives its share away first
    assert second.ended() == 0
    when(toc, lambda result: len(result.json["nodes"]) == 1 and result.code == 0, "nodes", "--json")
    assert first.code is None


def test_jobs_of_every_slot_are_fired_by_somebody(
    start: Start, cluster: Servers, toc: Toc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So many slots that a node without any is out of the question.
    more = {
        "TOC_DATABASES": f"sqlite:///{tmp_path}/many.db",
        "TOC_SHARDS": "32",
        "TOC_NAMESPACE": "many",
    }
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    assert toc("migrate").code == 0
    processes = [begin(start, cluster | more) for _ in range(2)]
    when(
        toc,
        lambda result: result.code == 0 and all(n["shards"] for n in result.json["nodes"]),
        "nodes",
        "--json",
    )
    amount = 40
    for biz_id in range(amount):
        assert toc("schedule", biz_id, "0s", "--type", "quick").code == 0

    def fired() -> list[int]:
        return [process.out.count("quick") for process in processes]

    wait_until(lambda: sum(fired()) == amount, f"{amount} jobs to fire")
    assert min(fired()) > 0


def test_without_zookeeper_in_the_settings_there_are_no_nodes(servers: Servers, toc: Toc) -> None:
    result = toc("nodes")
    assert result.code == 4
    assert "zookeeper_hosts is 'none', so each node owns everything" in result.err


def test_a_zookeeper_that_is_away_is_one_line(
    servers: Servers, toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_ZOOKEEPER_HOSTS", "127.0.0.1:1")
    monkeypatch.setenv("TOC_CONNECT_TIMEOUT_S", "1")
    result = toc("nodes")
    assert result.code == 3
    assert result.err == "toc: ZooKeeper does not answer: no answer within 1 s\n"
    doctor = toc("doctor", "--json")
    assert doctor.code == 1
    (check,) = [c for c in doctor.json["checks"] if c["subject"] == "zookeeper"]
    assert (check["level"], check["found"]) == (
        "fail",
        "ZooKeeper does not answer: no answer within 1 s",
    )
    parts = {part["part"]: part for part in toc("status", "--json").json["parts"]}
    assert parts["zookeeper"]["state"] == "down"
    assert "deputies fire them" in parts["zookeeper"]["means"]
    monkeypatch.setenv("TOC_REDIS_URL", "none")
    parts = {part["part"]: part for part in toc("status", "--json").json["parts"]}
    assert "the others' scanners take its shards" in parts["zookeeper"]["means"]


@pytest.fixture
def own_redis(cluster: Servers, tmp_path: Path) -> Iterator[tuple[PrivateRedis, Servers]]:
    directory = tmp_path / "redis"
    directory.mkdir()
    with PrivateRedis(directory) as redis:
        yield redis, cluster | {"TOC_REDIS_URL": f"unix://{directory}/redis.sock"}


def test_status_asks_the_nodes(
    start: Start,
    own_redis: tuple[PrivateRedis, Servers],
    toc: Toc,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    redis, settings = own_redis
    monkeypatch.setenv("TOC_REDIS_URL", settings["TOC_REDIS_URL"])
    for _ in range(2):
        begin(start, settings, "--http-port", "0")
    nodes = when(toc, lambda result: result.code == 0, "nodes", "--json").json["nodes"]
    asked = [word for node in nodes for word in ("--node", node["http"])]
    up = when(toc, lambda result: result.code == 0, "status", "--json", *asked).json
    assert up["state"] == "up"
    assert len(up["nodes"]) == 2
    parts = {part["part"]: part for part in up["parts"]}
    assert parts.keys() == {
        "database_0", "database_1", "redis", "zookeeper", "loader", "overdue", "watch", "jobs"
    }  # fmt: skip
    assert parts["redis"]["seen_by"] == 2
    assert parts["redis"]["since"].endswith("Z")
    assert "as seen by 2 nodes" in toc("status", *asked).out

    redis.kill()
    down = when(
        toc,
        lambda result: [p["seen_by"] for p in result.json["parts"] if p["state"] == "down"] == [2],
        "status",
        "--json",
        *asked,
    )
    assert down.code == 1
    assert down.json["state"] == "degraded"  # jobs go on
    first = down.json["parts"][0]  # the worst comes first
    assert (first["part"], first["state"]) == ("redis", "down")
    assert "the scanner fires from the databases" in first["means"]


def test_status_without_nodes_asks_the_servers(servers: Servers, toc: Toc) -> None:
    result = toc("status", "--json")
    assert result.code == 0
    parts = {part["part"]: part for part in result.json["parts"]}
    assert parts.keys() == {"database_0", "database_1", "redis", "zookeeper", "jobs"}
    assert all(part["since"] is None for part in parts.values())
    assert "as seen from here" in toc("status").out
    assert toc("schedule", 5, "0s", "--type", "quick").code == 0

    def is_overdue(result: Result) -> bool:
        (jobs,) = [part for part in result.json["parts"] if part["part"] == "jobs"]
        return "overdue: job" in jobs["how"]

    jobs = when(toc, is_overdue, "status", "--json")
    assert jobs.code == 0  # not for long enough to mean anything


@pytest.mark.parametrize("url", ["file:///etc/passwd", "127.0.0.1:9"])
def test_status_asks_only_http(servers: Servers, toc: Toc, url: str) -> None:
    result = toc("status", "--node", url)
    assert result.code == 2
    assert "is not an http address" in result.err


def test_a_node_that_does_not_answer_is_said(servers: Servers, toc: Toc) -> None:
    result = toc("status", "--node", "http://127.0.0.1:1")
    assert result.code == 1
    assert "no answer from http://127.0.0.1:1" in result.out


def test_what_is_not_known_of_jobs_is_said(
    servers: Servers, toc: Toc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, away = f"sqlite:///{tmp_path}/0.db", f"sqlite:///{tmp_path}/nowhere/{{}}.db"
    monkeypatch.setenv("TOC_DATABASES", f"{there},{away.format(1)}")
    result = toc("status", "--json")
    assert (result.code, result.json["state"]) == (1, "degraded")
    parts = {part["part"]: part for part in result.json["parts"]}
    assert parts["database_1"]["means"].endswith("all others go on")
    assert parts["jobs"]["state"] == "degraded"
    assert parts["jobs"]["how"] == "not known: database_1 does not answer"

    monkeypatch.setenv("TOC_DATABASES", f"{away.format(0)},{away.format(1)}")
    result = toc("status", "--json")
    assert (result.code, result.json["state"]) == (1, "down")
    parts = {part["part"]: part for part in result.json["parts"]}
    assert "no job is fired" in parts["database_0"]["means"]
    assert parts["jobs"]["how"] == "not known: database_0, database_1 do not answer"


class Trap(BaseHTTPRequestHandler):
    """A server that somebody wants to have asked."""

    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.send_response(302)
        self.send_header("Location", "/secret")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing."""


@pytest.fixture
def trap() -> Iterator[str]:
    Trap.paths.clear()
    with HTTPServer(("127.0.0.1", 0), Trap) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_address_that_a_member_gives_is_shown_and_never_asked(
    cluster: Servers, toc: Toc, trap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace = f"t{secrets.token_hex(4)}"
    monkeypatch.setenv("TOC_NAMESPACE", namespace)
    hosts = cluster["TOC_ZOOKEEPER_HOSTS"]
    text = json.dumps({
        "version": "1\x1b[2J", "handles": [], "http": trap, "shards": {}, "slots": {}
    }).encode()  # fmt: skip
    name = f"{process_name()}:0123456789ab"
    with foreign_members(hosts, namespace, 1, name=name, text=text):
        assert toc("status").code == 0
        shown = toc("nodes")
        assert trap in shown.out
        assert "\x1b" not in shown.out
    assert Trap.paths == []


def test_who_is_asked_sends_nobody_elsewhere(servers: Servers, toc: Toc, trap: str) -> None:
    assert f"no answer from {trap}" in toc("status", "--node", trap).out
    assert Trap.paths == ["/health"]


def test_doctor_says_who_may_write_to_zookeeper(
    cluster: Servers, toc: Toc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_NAMESPACE", f"t{secrets.token_hex(4)}")

    def access() -> dict[str, str]:
        checks = toc("doctor", "--json").json["checks"]
        (found,) = [c for c in checks if (c["subject"], c["check"]) == ("zookeeper", "access")]
        return dict(found)

    checks = toc("doctor", "--json").json["checks"]
    tls = [c["level"] for c in checks if (c["subject"], c["check"]) == ("zookeeper", "tls")]
    assert tls == ["ok"]  # it is on this machine
    assert access()["level"] == "warn"
    assert "everyone who reaches ZooKeeper may write to it" in access()["found"]
    with foreign_members(cluster["TOC_ZOOKEEPER_HOSTS"], os.environ["TOC_NAMESPACE"], 1):
        monkeypatch.setenv("TOC_CLUSTER__AUTH", "toc:secret")
        found = access()
        assert found["level"] == "warn"
        assert found["found"].count("world:anyone may all") == 2
        assert "secret" not in str(found)
    monkeypatch.setenv("TOC_NAMESPACE", f"t{secrets.token_hex(4)}")
    assert access()["level"] == "ok"
