"""Each limit of a connection by itself: how many there are, how long one lasts, unread answers."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.cli.processes import wait_until
from tests.http.served_world import declare_type, make_settings, make_token
from tests.http.test_connections import HOST, JSON, WAIT, post, wait_for_waiters
from tests.http.test_server import connect, read_to_end
from toc.http import connections, serve
from toc.http.app import OPENAPI_PATH
from toc.http.serve import WebServer
from toc.runtime.settings import Settings

MOST = 4
FAR_S = 600.0  # no test takes so long: a limit that is set to it ends nothing
SOON_S = 0.5
HEALTH = b"GET /v1/health HTTP/1.1\r\n" + HOST + b"\r\n"
LARGE = b"GET " + OPENAPI_PATH.encode() + b" HTTP/1.1\r\n" + HOST


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, bytes]:
    settings = make_settings(
        tmp_path_factory.mktemp("limits"), web={"limits": {"connections_max": MOST}}
    )
    declare_type(settings, "pull.c", mode="pull")
    return settings, f"Authorization: Bearer {make_token(settings)}\r\n".encode()


@pytest.fixture(autouse=True)
def _all_limits_are_far(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test brings one of them near, so that no other one ends what that one must end."""
    monkeypatch.setattr(connections.BoundedProtocol, "head_s_max", FAR_S)
    monkeypatch.setattr(serve, "KEEP_ALIVE_S", FAR_S)
    monkeypatch.setattr(serve, "STOP_S", 20)


@pytest.fixture
def server(made: tuple[Settings, bytes]) -> Iterator[WebServer]:
    server = WebServer(made[0])
    # Small buffers of the kernel: a large answer that the client does not read stays in the server.
    server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    server.start()
    protocol_of(server).request_s_max = FAR_S
    yield server
    assert server.stop()


def protocol_of(server: WebServer) -> Any:
    """The class of this server's connections."""
    return server._server.config.http_protocol_class


def connection_of(server: WebServer, raw: socket.socket) -> Any:
    """The server's end of a connection."""
    ends = server._server.server_state.connections
    return next(each for each in list(ends) if each.client == raw.getsockname())  # type: ignore[union-attr]


def connect_without_reading(server: WebServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.settimeout(100)
    raw.connect((host, int(port)))
    return raw


def wait_for_connections(server: WebServer, count: int) -> None:
    state = server._server.server_state
    wait_until(lambda: len(state.connections) == count, f"{count} connections", 60)


def wait_for_an_unread_answer(server: WebServer) -> None:
    """Waits until the only connection has made its answer, part of which nobody has taken yet."""

    def is_unread() -> bool:
        return any(
            each.is_idle and each.transport.get_write_buffer_size()
            for each in list(server._server.server_state.connections)
            if isinstance(each, connections.BoundedProtocol) and each.cycle is not None
        )

    wait_until(is_unread, "an answer that waits for its reader", 60)


# ---- how many


def test_the_connection_that_was_idle_for_longest_is_closed(server: WebServer) -> None:
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(MOST)]
        for raw in idle:
            raw.sendall(HEALTH)
            assert raw.recv(65_536).startswith(b"HTTP/1.1 200")
        for number, raw in enumerate(
            idle
        ):  # else two of them may have become idle in one millisecond
            connection_of(server, raw).since_s = float(number)
        one_more = stack.enter_context(connect(server))
        assert read_to_end(idle[0]) == b""
        for raw in (one_more, *idle[1:]):
            raw.sendall(HEALTH)
            assert raw.recv(65_536).startswith(b"HTTP/1.1 200")
        wait_for_connections(server, MOST)


def test_a_connection_with_a_call_is_not_closed_for_a_new_one(
    made: tuple[Settings, bytes], server: WebServer
) -> None:
    with ExitStack() as stack:
        for _ in range(MOST):
            raw = stack.enter_context(connect(server))
            raw.sendall(post(b"/v1/leases", WAIT, made[1]))
        wait_for_waiters(server, MOST)
        assert read_to_end(stack.enter_context(connect(server))) == b""
        wait_for_connections(server, MOST)
    wait_for_waiters(server, 0)


# ---- how long, and how much


def test_a_request_has_a_deadline(made: tuple[Settings, bytes], server: WebServer) -> None:
    protocol_of(server).request_s_max = SOON_S
    with connect(server) as raw:
        raw.sendall(post(b"/v1/leases", WAIT, made[1]))
        assert read_to_end(raw) == b""
    wait_for_waiters(server, 0)


def test_a_large_head_is_refused_though_it_comes_at_once(server: WebServer) -> None:
    with connect(server) as raw:
        raw.sendall(b"GET /v1/health HTTP/1.1\r\n" + HOST + b"X-A: " + b"x" * 55_000 + b"\r\n\r\n")
        assert read_to_end(raw).startswith(b"HTTP/1.1 400")


# ---- answers that nobody reads


def test_a_closing_connection_ends_though_its_answer_is_not_read(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections.BoundedProtocol, "head_s_max", SOON_S)
    with connect_without_reading(server) as raw:
        raw.sendall(LARGE + b"Connection: close\r\n\r\n")
        wait_for_an_unread_answer(server)
        wait_for_connections(server, 0)


def test_an_idle_connection_ends_though_its_answer_is_not_read(
    made: tuple[Settings, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "KEEP_ALIVE_S", SOON_S)
    server = WebServer(made[0])
    server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    server.start()
    protocol_of(server).request_s_max = FAR_S
    with connect_without_reading(server) as raw:
        raw.sendall(LARGE + b"\r\n")
        wait_for_an_unread_answer(server)
        wait_for_connections(server, 0)
    assert server.stop()


def test_a_spoiled_connection_ends_though_its_answer_is_not_read(
    made: tuple[Settings, bytes], server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect_without_reading(server) as raw:
        raw.sendall(LARGE + b"\r\n")
        wait_for_an_unread_answer(server)
        head = b"POST /v1/jobs HTTP/1.1\r\n" + HOST + JSON + made[1]
        raw.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        (connection,) = server._server.server_state.connections
        wait_until(lambda: not connection.is_idle, "the second request", 60)  # type: ignore[union-attr]
        monkeypatch.setattr(connections.BoundedProtocol, "head_s_max", SOON_S)
        raw.sendall(b"zz\r\n")  # no length of a chunk
        wait_for_connections(server, 0)


def test_a_stop_does_not_wait_for_an_answer_that_is_not_read(
    server: WebServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with connect_without_reading(server) as raw:
        raw.sendall(LARGE + b"\r\n")
        wait_for_an_unread_answer(server)
        monkeypatch.setattr(connections.BoundedProtocol, "head_s_max", SOON_S)
        with caplog.at_level(logging.ERROR):
            assert server.stop()
    assert "graceful" not in caplog.text  # what uvicorn says when it has waited for STOP_S
