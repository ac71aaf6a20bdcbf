"""SIGTERM ends `toc web` within its bound: with consumers that wait, and with a database that hangs."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.cli.processes import Process
from tests.http.served_world import declare_type, make_token
from tests.http.test_connections import JOB, WAIT, post
from tests.reliability.wire import Wire
from tests.servers.fixtures import _database as temporary_database
from toc.runtime.settings import Settings
from toc.store import migrate

CONSUMERS = 100
LONG_S = 300  # the time limit of a database's answer here: far beyond the bound of a stop


@pytest.fixture
def wire_and_url(request: pytest.FixtureRequest) -> Iterator[tuple[Wire, str]]:
    with temporary_database(request.getfixturevalue("mysql_server")) as url:
        parsed = make_url(url)
        with Wire(f"{parsed.host}:{parsed.port}") as wire:
            host, port = wire.url.split(":")
            through = parsed.set(host=host, port=int(port))
            yield wire, through.render_as_string(hide_password=False)


def test_a_stop_ends_with_waiting_consumers_and_a_database_that_hangs(
    wire_and_url: tuple[Wire, str], tmp_path: Path
) -> None:
    wire, url = wire_and_url
    settings = Settings(databases=(url,), shards=4, redis_url="none")
    migrate.upgrade(settings)
    declare_type(settings, "report")
    declare_type(settings, "pull.c", mode="pull")
    token = f"Authorization: Bearer {make_token(settings)}\r\n".encode()
    process = Process(
        tmp_path,
        {
            "TOC_DATABASES": url, "TOC_SHARDS": "4", "TOC_REDIS_URL": "none", "TOC_WEB__PORT": "0",
            "TOC_READ_TIMEOUT_S": str(LONG_S), "TOC_WEB__LIMITS__CALL_S": str(LONG_S),
        },
        "web",
    )  # fmt: skip
    with ExitStack() as stack:
        stack.callback(process.kill)
        process.says("HTTP on", 100)
        found = re.search(r"HTTP on http://([0-9.]+):([0-9]+)", process.err)
        assert found is not None
        address = (found[1], int(found[2]))

        def dial() -> socket.socket:
            raw = stack.enter_context(socket.create_connection(address))
            raw.settimeout(100)
            return raw

        waiting = [dial() for _ in range(CONSUMERS)]
        for raw in waiting:
            raw.sendall(post(b"/v1/leases", WAIT, token))
        with dial() as probe:  # answered after the requests that came before it
            probe.sendall(post(b"/v1/jobs", JOB, token))
            assert probe.recv(65_536).startswith(b"HTTP/1.1 201")
        wire.cut()
        dial().sendall(post(b"/v1/jobs", JOB, token))  # a thread waits for the database
        process.send(signal.SIGTERM)
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda raw: raw.recv(65_536), waiting))
        assert all(each.startswith(b"HTTP/1.1 200") for each in answers)
        assert process.ended(100) == 1
        assert "ends without them" in process.err
