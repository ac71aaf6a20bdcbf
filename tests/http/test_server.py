"""The server of `toc web`: slow and silent clients, bounds, TLS, where it listens, and its process."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.processes import Process
from tests.contract.test_tls import Authority
from tests.http.served_world import declare_type, make_settings, make_token, open_client, serve
from toc.errors import SettingsError
from toc.http import connections
from toc.http.serve import WebServer, check_listening
from toc.runtime.settings import Settings
from toc.runtime.web_settings import WebSettings

NO_TYPES = b'{"types":[]}'
HEAD = b"GET /v1/types HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder: Path = tmp_path_factory.mktemp("served")
    return make_settings(folder, web={"limits": {"connections_max": 8, "call_s": 1}})


@pytest.fixture
def server(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setattr(connections.BoundedProtocol, "head_s_max", 0.5)
    with serve(settings) as server:
        yield server


def connect(server: WebServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)))
    raw.settimeout(100)
    return raw


def read_to_end(raw: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := raw.recv(65_536):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD, HEAD + b"X-A: b\r\n"])
def test_a_client_that_does_not_send_its_head_is_cut_off(server: WebServer, sent: bytes) -> None:
    with connect(server) as raw:
        raw.sendall(sent)
        assert read_to_end(raw) == b""


def test_the_next_head_of_a_kept_connection_has_a_deadline_too(server: WebServer) -> None:
    with connect(server) as raw:
        raw.sendall(HEAD + b"\r\n")
        assert raw.recv(65_536).startswith(b"HTTP/1.1 200")
        raw.sendall(HEAD)
        assert read_to_end(raw) in (b"", NO_TYPES)  # the body may come after the head


def test_a_body_that_does_not_come_ends_with_the_calls_deadline(server: WebServer) -> None:
    with connect(server) as raw:
        raw.sendall(
            b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        answer = raw.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 503")
    assert b'"code":"deadline"' in answer


def test_a_lease_call_whose_body_does_not_come_ends_too(server: WebServer) -> None:
    with connect(server) as raw:
        raw.sendall(
            b"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert raw.recv(65_536).startswith(b"HTTP/1.1 503")


def test_an_endless_head_is_refused(server: WebServer) -> None:
    chunks = {
        HEAD: (b"X-B: " + b"y" * 2000 + b"\r\n") * 30,
        HEAD + b"X-A: ": b"x" * 65_536,
        b"GET /": b"x" * 65_536,
    }
    for start, chunk in chunks.items():
        with connect(server) as raw:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                raw.sendall(start)
                for _ in range(64):
                    raw.sendall(chunk)
                pytest.fail("4 MB were read")
            assert b"HTTP/1.1 2" not in read_to_end(raw)


def test_silent_connections_keep_nobody_out(server: WebServer) -> None:
    silent = [connect(server) for _ in range(8)]
    try:
        with open_client(server.url) as client:
            assert client.get("/v1/types").status_code == 200
        with connect(server) as raw:
            raw.sendall(HEAD + b"Connection: close\r\n\r\n")
            assert read_to_end(raw).startswith(b"HTTP/1.1 200")
    finally:
        for each in silent:
            each.close()


@pytest.mark.parametrize(
    "request_text",
    [
        HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"GET /v1/types HTTP/1.1\r\n\r\n",
        b"GET /v1/types HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_not_a_proper_request_gets_no_answer_with_content(
    server: WebServer, request_text: bytes
) -> None:
    with connect(server) as raw:
        raw.sendall(request_text)
        answer = read_to_end(raw)
    assert b"HTTP/1.1 2" not in answer


# ---- where it listens


EVERYWHERE = "0.0.0.0"  # noqa: S104 - refused, not listened on


@pytest.mark.parametrize(
    ("web", "accepted"),
    [
        ({}, True),
        ({"host": "::1"}, True),
        ({"host": "localhost"}, True),
        ({"host": "127.9.9.9"}, True),
        ({"host": EVERYWHERE}, False),
        ({"host": "::"}, False),
        ({"host": "10.0.0.7"}, False),
        ({"host": "toc.example.com"}, False),
        ({"host": EVERYWHERE, "public_without_tls": True}, True),
        ({"host": EVERYWHERE, "tls_cert": "cert.pem"}, True),
    ],
)
def test_a_public_address_needs_tls_or_a_word(web: dict[str, object], accepted: bool) -> None:
    if accepted:
        check_listening(WebSettings(**web))  # type: ignore[arg-type]
    else:
        with pytest.raises(SettingsError, match=r"web\.tls_cert"):
            check_listening(WebSettings(**web))  # type: ignore[arg-type]


def test_a_port_that_is_taken_is_said_so(server: WebServer, settings: Settings) -> None:
    port = int(server.url.rpartition(":")[2])
    web = settings.web.model_copy(update={"port": port})
    with pytest.raises(SettingsError, match="cannot listen"):
        WebServer(settings.model_copy(update={"web": web}))


def test_tls(settings: Settings, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "web")
    cert, key = authority.sign("server", "IP:127.0.0.1")
    update = {"tls_cert": str(cert), "tls_key": str(key)}
    web = settings.web.model_copy(update=update)
    with serve(settings.model_copy(update={"web": web})) as server:
        assert server.url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context(cafile=str(authority.ca))
        with httpx.Client(verify=context, trust_env=False) as client:
            assert client.get(f"{server.url}/v1/types").status_code == 200
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url.replace("https", "http"), trust_env=False)
    broken = settings.web.model_copy(update={"tls_cert": __file__})
    with pytest.raises(SettingsError, match=r"web\.tls_cert"):
        WebServer(settings.model_copy(update={"web": broken})).start()


def test_the_address_behind_a_trusted_proxy_counts(settings: Settings) -> None:
    headers = {"X-Forwarded-For": "192.0.2.9"}
    web = settings.web.model_copy(update={"trusted_proxies": ("127.0.0.1",)})
    for each, expected in ((settings.web, "127.0.0.1"), (web, "192.0.2.9")):
        with (
            serve(settings.model_copy(update={"web": each})) as server,
            open_client(server.url) as client,
        ):
            seen = list[str]()
            audit = server.backend.access.audit
            audit.record_refused = lambda entry, seen=seen: seen.append(entry.address)  # type: ignore[method-assign, misc]
            assert client.get("/v1/types", headers=headers).status_code == 401
            assert seen == [expected]


# ---- the process


def test_the_process_serves_and_stops_in_good_order(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    declare_type(settings, "order.close")
    token = make_token(settings)
    settings_of_process = {
        "TOC_DATABASES": "".join(settings.databases[0]), "TOC_SHARDS": "4", "TOC_REDIS_URL": "none",
        "TOC_WEB__PORT": "0",
    }  # fmt: skip
    process = Process(tmp_path, settings_of_process, "web")
    try:
        process.says("HTTP on", 100)
        found = re.search(r"HTTP on (http://[0-9.:]+[0-9])", process.err)
        assert found is not None
        with open_client(found.group(1), token) as client:
            job = {"biz_id": 1, "biz_type": "order.close", "delay": 60}
            assert client.post("/v1/jobs", json=job).status_code == 201
            process.send(signal.SIGTERM)
            assert process.ended(100) == 0
        assert token not in process.err
    finally:
        process.kill()
