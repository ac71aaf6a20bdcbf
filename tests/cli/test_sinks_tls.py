"""`toc sinks test` over TLS: who has the right certificate gets the message, and nobody else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from tests.cli.conftest import Toc
from tests.contract.test_tls import Authority
from tests.deep import deep
from tests.invariants.conftest import _started
from tests.servers.process import free_port
from tests.servers.rabbitmq import RabbitmqServer
from tests.servers.redis import start_redis
from tests.sinks.brokers import RabbitmqQueue
from toc.cli import exit_codes


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours", "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "theirs", "theirs")


def outcomes(
    toc: Toc, monkeypatch: pytest.MonkeyPatch, kind: str, urls: dict[str, str]
) -> dict[str, str]:
    """What `toc sinks test` says of each URL: "" if the message is confirmed, else the reason."""
    sinks = {kind: {name: {"url": url, "timeout_s": 10} for name, url in urls.items()}}
    monkeypatch.setenv("TOC_SINKS", json.dumps(sinks))
    found = {}
    for name in urls:
        sent = toc("sinks", "test", f"{kind}:{name}")
        assert sent.code in (0, exit_codes.NO), sent.err
        found[name] = "" if sent.code == 0 else sent.err
    return found


def test_redis_streams(
    toc: Toc, ours: Authority, theirs: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = ours.sign("redis", "IP:127.0.0.1")
    port = free_port()
    options = ["--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key]
    options += ["--tls-ca-cert-file", ours.ca, "--tls-auth-clients", "no"]
    for plain in _started(lambda: start_redis(tmp_path / "redis", "7", *map(str, options))):
        urls = {
            "good": f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={ours.ca}",
            "authority": f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={theirs.ca}",
            "host": f"rediss://localhost:{port}/0?ssl_ca_certs={ours.ca}",
            "unnamed": f"rediss://127.0.0.1:{port}/0",
        }
        said = outcomes(toc, monkeypatch, "redis-stream", urls)
        assert {name for name, reason in said.items() if not reason} == {"good"}, said
        with redis.Redis.from_url(plain.url) as client:
            assert client.keys() == [b"good"]


@deep
def test_rabbitmq(
    toc: Toc, ours: Authority, theirs: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = ours.sign("rabbit", "IP:127.0.0.1")
    port = free_port()
    lines = [
        f"listeners.ssl.default = 127.0.0.1:{port}",
        f"ssl_options.cacertfile = {ours.ca}",
        f"ssl_options.certfile = {cert}",
        f"ssl_options.keyfile = {key}",
        "ssl_options.verify = verify_none",
    ]
    for server in _started(lambda: RabbitmqServer(tmp_path / "rabbitmq", *lines).start()):
        queue = RabbitmqQueue(server.url, "orders")
        urls = {
            "orders": f"amqps://guest:guest@127.0.0.1:{port}/?cafile={ours.ca}",
            "authority": f"amqps://guest:guest@127.0.0.1:{port}/?cafile={theirs.ca}",
            "host": f"amqps://guest:guest@localhost:{port}/?cafile={ours.ca}",
            "unnamed": f"amqps://guest:guest@127.0.0.1:{port}/",
        }
        said = outcomes(toc, monkeypatch, "rabbitmq", urls)
        assert {name for name, reason in said.items() if not reason} == {"orders"}, said
        assert all("CERTIFICATE_VERIFY_FAILED" in reason for reason in said.values() if reason)
        assert len(queue.read()) == 1
