"""What a node answers over HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.worker.waiting import wait_until
from toc.errors import SettingsError
from toc.node import http as module
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
    with connected(site):
        assert site.get("/live")[0] == 200


def connected(site: Site) -> socket.socket:
    host, _, port = site.server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_whoever_comes_beyond_the_bound_is_sent_away(site: Site) -> None:
    with contextlib.ExitStack() as idle:
        for _ in range(module.REQUESTS_MAX):
            idle.enter_context(connected(site))
        with connected(site) as beyond:
            assert beyond.recv(1) == b""
    wait_until(lambda: answers(site), "their places to be free again")


def answers(site: Site) -> bool:
    try:
        return site.get("/live")[0] == 200
    except OSError:
        return False


@pytest.mark.parametrize("begins", [b"", b"GET /live HT", b"GET /live HTTP/1.1\r\nHost: "])
def test_a_request_has_one_deadline_however_busy_its_client(
    begins: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "REQUEST_S_MAX", 0.5)
    site = Site()
    with connected(site) as client:
        client.sendall(begins)
        client.settimeout(0.1)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 50:
                try:
                    if not client.recv(1):
                        break
                except TimeoutError:
                    client.sendall(b"x" if begins else b"")
                    sent += 1
        assert sent < 50
    with connected(site) as rude:  # resets
        rude.sendall(b"GET /metr")
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert site.get("/live")[0] == 200
    site.server.stop()
    assert capfd.readouterr().err == ""
    assert caplog.text == ""


def test_an_ipv6_address() -> None:
    try:
        server = HttpServer("::1", 0, list)
    except SettingsError:
        pytest.skip("this machine has no IPv6")
    server.start()
    assert server.url.startswith("http://[::1]:")
    with urllib.request.urlopen(f"{server.url}/live", timeout=10) as answer:  # noqa: S310 - our own
        assert answer.status == 200
    server.stop()


def test_on_every_address_it_is_called_by_its_name() -> None:
    server = HttpServer("0.0.0.0", 0, list)  # noqa: S104 - what is tested
    assert server.url.startswith(f"http://{socket.gethostname()}:")
    server.stop()
