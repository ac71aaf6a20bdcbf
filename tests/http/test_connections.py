"""Hostile bytes on connections of a real server: pipelines, upgrades, trailers, lengths, handshakes."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.processes import wait_until
from tests.contract.test_tls import Authority
from tests.http.served_world import declare_type, make_settings, make_token, serve
from tests.http.test_server import connect, read_to_end
from toc.http import connections, listening
from toc.http.serve import WebServer
from toc.runtime.settings import Settings

JOB = json.dumps({"biz_id": 1, "biz_type": "report", "delay": 60}).encode()
WAIT = json.dumps({"types": ["pull.c"], "max": 1, "wait_s": 60}).encode()
HOST = b"Host: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, bytes]:
    settings = make_settings(tmp_path_factory.mktemp("connections"))
    declare_type(settings, "report")
    declare_type(settings, "pull.c", mode="pull")
    return settings, f"Authorization: Bearer {make_token(settings)}\r\n".encode()


@pytest.fixture(scope="module")
def server(made: tuple[Settings, bytes]) -> Iterator[WebServer]:
    with serve(made[0]) as server:
        yield server


@pytest.fixture
def raw(server: WebServer) -> Iterator[socket.socket]:
    with connect(server) as raw:
        yield raw


def post(path: bytes, body: bytes, *headers: bytes) -> bytes:
    head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + JSON + b"".join(headers)
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(body: bytes, *headers: bytes, trailers: bytes = b"") -> bytes:
    head = b"POST /v1/jobs HTTP/1.1\r\n" + HOST + JSON + b"".join(headers)
    return (
        head + b"Transfer-Encoding: chunked\r\n\r\n"
        b"%x\r\n" % len(body) + body + b"\r\n0\r\n" + trailers + b"\r\n"
    )


def wait_for_waiters(server: WebServer, count: int) -> None:
    leases = server.backend._lease_node.server
    wait_until(lambda: leases.waiters_count == count, f"{count} waiting consumers", 100)


def read_answers(raw: socket.socket, count: int) -> list[bytes]:
    """The status lines of so many answers."""
    found = b""
    while found.count(b"HTTP/1.1 ") < count or not found.endswith(b"}"):
        part = raw.recv(65_536)
        if not part:
            break
        found += part
    return [b"HTTP/1.1 " + each.split(b"\r\n")[0] for each in found.split(b"HTTP/1.1 ")[1:]]


def test_requests_behind_one_that_waits_are_not_collected(
    made: tuple[Settings, bytes], server: WebServer, raw: socket.socket
) -> None:
    raw.sendall(post(b"/v1/leases", WAIT, made[1]))
    wait_for_waiters(server, 1)
    with pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012 - any of the calls
        for _ in range(2000):
            raw.sendall((b"GET /v1/health HTTP/1.1\r\n" + HOST + b"\r\n") * 1000)
    wait_for_waiters(server, 0)


def test_a_few_requests_may_follow_each_other(
    made: tuple[Settings, bytes], raw: socket.socket
) -> None:
    raw.sendall(post(b"/v1/jobs", JOB, made[1]) * 20)
    assert read_answers(raw, 20) == [b"HTTP/1.1 201 Created"] * 20


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"toc"])
def test_an_offer_to_upgrade_changes_nothing(
    made: tuple[Settings, bytes], raw: socket.socket, protocol: bytes
) -> None:
    offer = (b"Connection: Upgrade, HTTP2-Settings\r\n", b"Upgrade: " + protocol + b"\r\n")
    request = post(
        b"/v1/jobs", JOB, made[1], *offer, b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
    )
    raw.sendall(request + b"GET /v1/types HTTP/1.1\r\n" + HOST + b"\r\n")
    first, second = read_answers(raw, 2)
    assert first == b"HTTP/1.1 201 Created"
    assert (
        second == b"HTTP/1.1 401 Unauthorized"
    )  # read as a request of its own, with its own headers


def test_what_follows_a_body_is_no_header(
    made: tuple[Settings, bytes], server: WebServer, raw: socket.socket
) -> None:
    raw.sendall(chunked(JOB, trailers=made[1]))
    assert read_answers(raw, 1) == [b"HTTP/1.1 401 Unauthorized"]
    with connect(server) as other:
        other.sendall(chunked(JOB, made[1], trailers=b"X-A: b\r\n"))
        assert read_answers(other, 1) == [b"HTTP/1.1 201 Created"]


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"GET http://evil.example/v1/health HTTP/1.1\r\n" + HOST + b"\r\n", b"404"),
        (b"GET /v1/health HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"GET /v1/health HTTP/1.1\r\nHost: localhost@evil.example\r\n\r\n", b"421"),
        (b"GET /v1/health HTTP/1.1\r\n" + HOST + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /v1/health HTTP/1.1\r\n" + HOST + b"a: b\r\n" * 30_000 + b"\r\n", b""),
        (b"GET /v1/health HTTP/1.1\r\n" + HOST + b"a: " + b"b" * 100_000 + b"\r\n\r\n", b""),
        (b"POST /v1/jobs HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", b"400"),
        (b"POST /v1/jobs HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", b"400"),
        (b"POST /v1/jobs HTTP/1.1\r\n" + HOST + b"Content-Length: +1\r\n\r\n1", b"400"),
        (b"POST /v1/jobs HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", b"501"),
        (b"POST /v1/jobs HTTP/1.1\r\n" + HOST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", b"400"),
    ],
)  # fmt: skip
def test_heads_that_are_refused(raw: socket.socket, request_text: bytes, status: bytes) -> None:
    """Status b"": 400 or 431, or no answer, because the client still sends."""
    smuggled = b"GET /v1/health HTTP/1.1\r\n" + HOST + b"\r\n"
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        raw.sendall(request_text)
        raw.sendall(smuggled if status in (b"400", b"") else b"")
    if status:
        answers = read_answers(raw, 1)
        assert len(answers) == 1
        assert answers[0].split()[1] in ((status, b"400") if status == b"501" else (status,))
    else:
        assert b"HTTP/1.1 2" not in read_to_end(raw)


def test_a_request_with_two_lengths_is_refused_and_ends_the_connection(
    made: tuple[Settings, bytes], raw: socket.socket
) -> None:
    request = chunked(JOB, made[1], b"Content-Length: 5\r\n")
    raw.sendall(request + b"GET /v1/health HTTP/1.1\r\n" + HOST + b"\r\n")
    answer = read_to_end(raw)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"code":"ambiguous_length"' in answer
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_broken_body_ends_the_connection_without_an_error_in_the_log(
    made: tuple[Settings, bytes], server: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    for path in (b"/v1/jobs", b"/v1/health"):
        with connect(server) as raw:
            head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + JSON + made[1]
            raw.sendall(head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
            assert b"HTTP/1.1 2" not in read_to_end(raw)
    with connect(server) as raw:  # after the answer has begun to be made
        raw.sendall(b"GET /v1/health HTTP/1.1\r\n" + HOST + b"\r\n")
        raw.recv(9)
        raw.sendall(b"\x00\x01\r\n\r\n")
        read_to_end(raw)
    assert not caplog.records


def test_a_body_that_nobody_reads_has_an_end(
    server: WebServer, raw: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections.BoundedProtocol, "head_s_max", 0.5)
    raw.sendall(b"POST /v1/jobs HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n")
    assert read_answers(raw, 1) == [b"HTTP/1.1 401 Unauthorized"]
    with pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012 - any of the calls
        while True:
            raw.sendall(b"1\r\nx\r\n")
            time.sleep(0.01)


# ---- TLS


@pytest.fixture
def secure(
    made: tuple[Settings, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[WebServer, Path]]:
    authority = Authority(tmp_path, "web")
    cert, key = authority.sign("server", "IP:127.0.0.1")
    web = made[0].web.model_copy(update={"port": 0, "tls_cert": str(cert), "tls_key": str(key)})
    with serve(made[0].model_copy(update={"web": web})) as server:
        yield server, authority.ca


def dial(server: WebServer) -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
    raw.settimeout(100)
    return raw


def call_over_tls(server: WebServer, ca: Path) -> bytes:
    context = ssl.create_default_context(cafile=str(ca))
    with context.wrap_socket(dial(server), server_hostname="127.0.0.1") as tls:
        tls.sendall(b"GET /v1/health HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n")
        return tls.recv(65_536)


def test_handshakes_that_do_not_end_are_limited(
    secure: tuple[WebServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, ca = secure
    monkeypatch.setattr(listening, "HANDSHAKES_MAX", 5)
    monkeypatch.setattr(listening.TlsListener, "handshake_s_max", 600.0)  # ends none of them
    silent = [dial(server) for _ in range(12)]
    try:
        for each in silent[:6]:  # the oldest ones
            assert read_to_end(each) == b""
        assert call_over_tls(server, ca).startswith(b"HTTP/1.1 200")
    finally:
        for each in silent:
            each.close()


def test_a_handshake_has_a_deadline(
    secure: tuple[WebServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, ca = secure
    monkeypatch.setattr(listening.TlsListener, "handshake_s_max", 0.5)
    with dial(server) as raw:
        raw.sendall(b"\x16\x03\x01")
        assert read_to_end(raw) == b""
    assert call_over_tls(server, ca).startswith(b"HTTP/1.1 ")


def test_what_is_not_tls_is_closed(secure: tuple[WebServer, Path]) -> None:
    with dial(secure[0]) as raw:
        raw.sendall(b"GET /v1/health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert b"HTTP/1.1" not in read_to_end(raw)


# ---- open files


@pytest.mark.parametrize(("hard", "expected"), [(4096, "2200"), (512, "may have 512")])
def test_there_are_file_numbers_for_all_connections(hard: int, expected: str) -> None:
    code = (
        "import resource as r; from toc.http.listening import provide_file_numbers as provide\n"
        f"r.setrlimit(r.RLIMIT_NOFILE, (256, {hard})); provide(2000)\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100
    )
    assert expected in done.stdout + done.stderr
