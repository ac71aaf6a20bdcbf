"""What a node answers over HTTP."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from toc.errors import SettingsError
from toc.node.health import Part, worst
from toc.node.http import HttpServer

UP = Part("database_0", "up", 5, "answers")
DOWN = Part("database_1", "down", 5, "no answer", "jobs wait")
REDIS_DOWN = Part("redis", "down", None, "refused", "the scanner fires")


class Site:
    def __init__(self) -> None:
        self.parts = [UP]
        self.server = HttpServer("127.0.0.1", 0, lambda: self.parts)
        self.server.start()

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.server.url + path, timeout=10) as answer:  # noqa: S310 - our own
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.server.stop()


def test_metrics_and_live_and_nothing_else(site: Site) -> None:
    status, body = site.get("/metrics")
    assert status == 200
    assert b"toc_jobs_in_flight" in body
    assert site.get("/live")[0] == 200
    assert site.get("/")[0] == 404
    assert site.get("/health/../../etc/passwd")[0] == 404


def test_health_says_how_each_part_is(site: Site) -> None:
    site.parts = [UP, DOWN, REDIS_DOWN]
    status, body = site.get("/health")
    assert status == 200
    document = json.loads(body)
    assert document["state"] == "degraded"
    assert document["parts"][1] == {
        "part": "database_1", "state": "down", "since_ms": 5, "how": "no answer", "means": "jobs wait",
    }  # fmt: skip
    site.parts = [DOWN, REDIS_DOWN]
    assert site.get("/health")[0] == 503
    assert site.get("/live")[0] == 200


@pytest.mark.parametrize(
    ("parts", "state"),
    [
        ([UP], "up"),
        ([UP, REDIS_DOWN], "degraded"),
        ([UP, DOWN], "degraded"),
        ([DOWN, REDIS_DOWN], "down"),
    ],
)
def test_down_is_only_who_can_fire_nothing(parts: list[Part], state: str) -> None:
    assert worst(parts) == state


def test_a_port_that_is_taken_is_said_at_once(site: Site) -> None:
    port = int(site.server.url.rpartition(":")[2])
    with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}"):
        HttpServer("127.0.0.1", port, list)


def test_a_server_that_never_started_can_be_stopped() -> None:
    HttpServer("127.0.0.1", 0, list).stop()


def test_a_client_that_says_nothing_holds_up_nobody(site: Site) -> None:
    host, _, port = site.server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))):
        assert site.get("/live")[0] == 200
