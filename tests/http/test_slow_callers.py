"""Slow bodies through a real server: the token's calls are bounded, and a revoked token ends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cli.processes import wait_until
from tests.http.served_world import declare_type, make_settings, make_token, revoke_token, serve
from tests.http.test_connections import JOB, post
from tests.http.test_server import connect
from toc.http.serve import WebServer
from toc.runtime.settings import Settings

MOST = 3


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    limits = {"open_calls_per_token": MOST, "call_s": 100}
    settings = make_settings(tmp_path_factory.mktemp("slow"), web={"limits": limits})
    declare_type(settings, "report")
    declare_type(settings, "pull.c", mode="pull")
    return settings


@pytest.fixture(scope="module")
def server(settings: Settings) -> Iterator[WebServer]:
    make_token(settings)  # without any, calls from this machine need none
    with serve(settings) as server:
        yield server


def new_token(settings: Settings, server: WebServer) -> tuple[str, bytes]:
    token = make_token(settings)
    server.backend.access.refresh_now()
    return token, f"Authorization: Bearer {token}\r\n".encode()


def begin(raw: socket.socket, path: bytes, header: bytes) -> None:
    """Sends a call but for the end of its body."""
    raw.sendall(post(path, JOB, header)[:-1])


def wait_for_open_calls(server: WebServer, count: int) -> None:
    calls = server.backend.access.limits._open_calls
    wait_until(lambda: calls.total() == count, f"{count} open calls", 100)


def answer(raw: socket.socket) -> bytes:
    return raw.recv(65_536).split(b"\r\n")[0]


@pytest.mark.parametrize("path", [b"/v1/jobs", b"/v1/leases"])
def test_a_token_has_so_many_open_calls_and_others_go_on(
    settings: Settings, server: WebServer, path: bytes
) -> None:
    (_, greedy), (_, other) = new_token(settings, server), new_token(settings, server)
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(MOST)]
        for raw in slow:
            begin(raw, path, greedy)
        wait_for_open_calls(server, MOST)
        more = stack.enter_context(connect(server))
        begin(more, path, greedy)
        assert answer(more) == b"HTTP/1.1 429 Too Many Requests"
        quick = stack.enter_context(connect(server))
        quick.sendall(post(b"/v1/jobs", JOB, other))
        assert answer(quick) == b"HTTP/1.1 201 Created"
    wait_for_open_calls(server, 0)


def test_a_token_that_is_revoked_while_its_body_comes_is_refused(
    settings: Settings, server: WebServer
) -> None:
    token, header = new_token(settings, server)
    with connect(server) as raw:
        begin(raw, b"/v1/jobs", header)
        wait_for_open_calls(server, 1)
        revoke_token(settings, token)
        server.backend.access.refresh_now()
        raw.sendall(JOB[-1:])
        assert answer(raw) == b"HTTP/1.1 401 Unauthorized"
