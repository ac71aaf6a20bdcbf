"""The case http, small: all jobs arrive, figures are there, nothing is left. Never how fast it is."""

from __future__ import annotations

import asyncio
import secrets

import pytest
import redis

from tests.bench.run import run
from tests.servers.endpoint import Endpoint
from toc.bench import over_http
from toc.bench.common import BenchOptions
from toc.bench.web_connection import BenchRequestFailed, WebConnection
from toc.errors import SettingsError
from toc.runtime.settings import Settings

SMALL = BenchOptions(jobs=120, rates=(40,), seconds=1, batch=40, rounds=1)


def test_the_case_http(mysql_server: Endpoint, redis_server: Endpoint) -> None:
    url = f"{mysql_server.url}/shop{secrets.token_hex(4)}"
    settings = Settings(databases=(url,), redis_url=redis_server.url, shards=2)
    with redis.Redis.from_url(redis_server.url) as client:
        before = set(client.scan_iter(match="*bench_*"))
        report = run(settings, SMALL, ["http"], print)
        assert set(client.scan_iter(match="*bench_*")) == before
    assert not report.failed_checks
    assert {figure.case for figure in report.figures} == {"http"}
    figures = {figure.what: figure for figure in report.figures}
    for what in (
        "POST, 32 connections beside async calls",
        "POST, 32 connections beside threads",
        "POST, 40 a call",
        "leases with finish, one replica, beside one worker",
    ):
        ratio = figures[what].ratio
        assert ratio is not None
        assert ratio.middle > 0
    assert figures["lateness at a consumer, p99 at 40 jobs/s"].toc.middle >= 0
    assert (
        len(report.samples["Lateness at 40 jobs/s: answer at the consumer minus action_time"]) == 40
    )


def test_without_the_extra_the_other_cases_keep_their_figures(
    redis_server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise SettingsError(f"no extra for {name}")

    monkeypatch.setattr(over_http, "import_web_module", fail)
    settings = Settings(
        databases=("sqlite:///never-made.db",), redis_url=redis_server.url, shards=2
    )
    report = run(settings, SMALL, ["schedule_many", "http"], lambda line: None)
    assert {figure.case for figure in report.figures} == {"schedule_many"}
    assert report.notes == ["case http not measured: no extra for toc.http.serve"]


def test_a_refused_request_ends_the_benchmark() -> None:
    async def ask() -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"{}")
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nnope")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            connection = await WebConnection.open(f"http://127.0.0.1:{port}", "t")
            try:
                await connection.post("/v1/jobs", b"{}")
            finally:
                connection.close()

    with pytest.raises(BenchRequestFailed, match="/v1/jobs: nope"):
        asyncio.run(ask())
