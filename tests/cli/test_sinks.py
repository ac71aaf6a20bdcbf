"""`toc sinks test`: one message through the real class to a real Redis."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis as redis_driver

from tests.cli.conftest import Toc
from tests.servers.process import free_port
from toc.cli import exit_codes


@pytest.fixture
def client(redis: Path, monkeypatch: pytest.MonkeyPatch) -> redis_driver.Redis:
    urls = {"orders": f"unix://{redis}", "away": f"redis://:s3cret@127.0.0.1:{free_port()}"}
    sinks = {"redis-stream": {name: {"url": url} for name, url in urls.items()}}
    monkeypatch.setenv("TOC_SINKS", json.dumps(sinks))
    found = redis_driver.Redis(unix_socket_path=str(redis))
    found.flushall()
    return found


def test_a_confirmed_message_is_there(toc: Toc, client: redis_driver.Redis) -> None:
    sink = "redis-stream:orders/test:{biz_type}:{biz_id}"
    sent = toc("sinks", "test", sink, "--json")
    assert sent.code == 0, sent.err
    message_id = sent.json["message_id"]
    assert sent.json == {"sink": sink, "confirmed": True, "message_id": message_id}
    ((_, fields),) = client.xrange("test:toc.ping:0")  # type: ignore[misc]
    assert (fields[b"job_id"].decode(), fields[b"type"]) == (message_id, b"toc.ping")
    body = json.loads(fields[b"body"])
    assert (body["type"], body["data"]["payload"]) == ("toc.ping", {})
    again = toc("sinks", "test", "redis-stream:orders")
    assert again.out.startswith("redis-stream:orders has confirmed the message ")
    assert message_id not in again.out
    assert client.xlen("orders") == 1


def test_a_message_that_is_refused(toc: Toc, client: redis_driver.Redis) -> None:
    client.set("no-stream", "text")
    refused = toc("sinks", "test", "redis-stream:orders/no-stream")
    assert refused.code == exit_codes.NO
    assert "redis-stream:orders/no-stream has not confirmed the message" in refused.err
    assert "WRONGTYPE" in refused.err


def test_a_broker_that_does_not_answer(toc: Toc, client: redis_driver.Redis) -> None:
    refused = toc("sinks", "test", "redis-stream:away", "--json")
    assert (refused.code, refused.out) == (exit_codes.NO, "")
    assert "has not confirmed the message" in refused.err
    assert "s3cret" not in refused.err


@pytest.mark.parametrize(
    ("sink", "code", "text"),
    [
        (
            "redis-stream:other",
            exit_codes.SETTINGS,
            "the settings have no [sinks.redis-stream.other]",
        ),
        ("pigeon:orders", exit_codes.USAGE, "no such kind of sink"),
        ("orders", exit_codes.USAGE, "must be KIND:NAME"),
        ("webhook:shop", exit_codes.USAGE, "toc webhooks test shop"),
    ],
)
def test_a_wrong_sink(
    toc: Toc, client: redis_driver.Redis, sink: str, code: int, text: str
) -> None:
    refused = toc("sinks", "test", sink)
    assert refused.code == code
    assert text in refused.err
