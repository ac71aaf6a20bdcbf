"""What a node answers over HTTP."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.worker.waiting import wait_until
from toc.errors import SettingsError
from toc.node import http_server as module
from toc.node.health import HealthPart, overall_state
from toc.node.http_server import HttpServer

SOON_S = module.HEAD_S_MAX / 2
"""One that waited for the end of another connection would wait for nearly all of that time."""

UP = HealthPart("database_0", "up", 5, "answers")
DOWN = HealthPart("database_1", "down", 5, "no answer", "jobs wait")
REDIS_DOWN = HealthPart("redis", "down", None, "refused", "the scanner fires")


class Site:
    def __init__(self) -> None:
        self.parts = [UP]
        self.server = HttpServer("127.0.0.1", 0, lambda: self.parts)
        self.server.start()

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        request = urllib.request.Request(self.server.url + path, headers=headers)  # noqa: S310 - our own
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own
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


@pytest.mark.parametrize("path", ["/metrics", "/health", "/live"])
def test_no_page_reads_it_under_a_name_of_its_own(site: Site, path: str) -> None:
    port = site.server.url.rpartition(":")[2]
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[::1", ""):
        assert site.get(path, Host=host)[0] == 421, host
    for host in ("localhost", f"LOCALHOST:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert site.get(path, Host=host)[0] == 200, host


def test_in_a_network_it_has_any_name() -> None:
    server = HttpServer("0.0.0.0", 0, list)  # noqa: S104 - what is tested
    server.start()
    port = server.url.rpartition(":")[2]
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/live", headers={"Host": "worker-1.example:9100"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own
        assert answer.status == 200
    server.stop()


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
def test_down_is_only_who_can_fire_nothing(parts: list[HealthPart], state: str) -> None:
    assert overall_state(parts) == state


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


@pytest.mark.parametrize("begins", [b"", b"GET /live HT", b"GET /metrics HTTP/1.1\r\nHost: "])
def test_live_answers_at_once_whoever_holds_connections_open(site: Site, begins: bytes) -> None:
    """A supervisor that gets no answer would kill a process that is well."""
    with contextlib.ExitStack() as idle:
        for n in range(100):
            silent = idle.enter_context(connected(site))
            with contextlib.suppress(ConnectionError):  # it made place for another already
                silent.sendall(begins)
            if n % 10 == 5:
                began_s = time.monotonic()
                assert site.get("/live")[0] == 200
                assert time.monotonic() - began_s < SOON_S
    assert len(site.server._server._connections) <= module.CONNECTIONS_MAX


def test_live_answers_while_others_do_not_read_their_answers(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.parts = [HealthPart("database_0", "up", 5, "x" * 20_000_000)]  # more than any socket keeps
    with contextlib.ExitStack() as slow:
        for _ in range(module.CONNECTIONS_MAX + 4):
            client = slow.enter_context(connected(site))
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: site.get("/metrics")[0] == 503, "all places for answers to be taken")
        began_s = time.monotonic()
        assert site.get("/live")[0] == 200
        assert time.monotonic() - began_s < SOON_S
    site.parts = [UP]
    wait_until(lambda: site.get("/metrics")[0] == 200, "their places to be free again")


def test_a_head_has_an_end(site: Site) -> None:
    with connected(site) as client, contextlib.suppress(ConnectionError):
        client.sendall(b"GET /live HTTP/1.1\r\n")
        client.sendall(b"X-Long: " + b"x" * 1000 * 1000 + b"\r\n\r\n")
        answer = client.recv(100)
        assert answer.startswith((b"HTTP/1.0 431", b"HTTP/1.0 400")), answer
    with connected(site) as client, contextlib.suppress(ConnectionError):
        client.sendall(b"GET /live HTTP/1.1\r\n" + b"X: y\r\n" * 90 + b"Z: " + b"z" * 16_000)
        assert client.recv(100).startswith(b"HTTP/1.0 431")
    assert site.get("/live")[0] == 200


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
