"""Redis streams: what arrives, the bound of the stream, keys of another kind, a Redis that is killed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.servers.endpoint import Endpoint
from tests.servers.process import Server, ServerUnavailableError
from tests.servers.redis import start_redis
from tests.sinks.brokers import read_stream
from tests.sinks.conftest import MakeSinkRig, declare
from tests.worker.rig import NOW, Rig, metric
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.errors import InvalidInput
from toc.sinks import SinkDestination
from toc.sinks.redis_stream import RedisStreamSink
from toc.testing import check_sink

PAGE = Path(__file__).parents[2] / "docs/how-to/sinks.md"
LABEL = "redis-stream:orders"


@pytest.fixture
def durable_redis(tmp_path: Path) -> Iterator[Server]:
    """A Redis that answers when its file has the entry, and is the test's own to kill."""
    try:
        server = start_redis(
            tmp_path / "redis", "7", "--appendonly", "yes", "--appendfsync", "always"
        )
    except ServerUnavailableError as error:
        pytest.skip(str(error))
    with server:
        yield server


def settings_of(url: str, **terms: Any) -> dict[str, Any]:
    quick = {"failures_max": 3, "open_s": 0.5, "open_s_max": 1, "wait_s_max": 2, "timeout_s": 2}
    return {"redis-stream": {"orders": {"url": url} | quick | terms}}


def schedule(rig: Rig, count: int, biz_type: str = "order.close", **attribute: Any) -> list[int]:
    return rig.center.schedule_many(
        {"biz_id": n, "action_time": NOW, "biz_type": biz_type, "attribute": attribute or None}
        for n in range(count)
    )


def test_what_is_in_the_stream(
    sink_rig: MakeSinkRig, redis_server: Endpoint, redis_namespace: str
) -> None:
    rig = sink_rig(sinks=settings_of(redis_server.url))
    declare(rig, "order.close", sink=f"redis-stream:orders/{redis_namespace}:{{biz_type}}")
    rig.start()
    ids = schedule(rig, 20, sum=12)
    rig.wait_for(Status.DONE, *ids, seconds=60)
    key = f"{redis_namespace}:order.close"
    received = dict(read_stream(redis_server.url, key))
    assert received.keys() == set(map(str, ids))
    assert json.loads(received[str(ids[0])])["data"]["payload"] == {"sum": 12}
    with redis.Redis.from_url(redis_server.url) as client:
        _, fields = client.xrange(key, count=1)[0]  # type: ignore[index]
    assert fields[b"type"] == b"order.close"


def test_a_stream_has_about_its_greatest_length(
    sink_rig: MakeSinkRig, redis_server: Endpoint, redis_namespace: str
) -> None:
    """MAXLEN ~ removes whole nodes of 100 entries."""
    rig = sink_rig(sinks=settings_of(redis_server.url, options={"length_max": "100"}))
    declare(rig, "order.close", sink=f"redis-stream:orders/{redis_namespace}:short")
    rig.start()
    rig.wait_for(Status.DONE, *schedule(rig, 500), seconds=60)
    assert 100 <= len(read_stream(redis_server.url, f"{redis_namespace}:short")) <= 250


def test_a_key_that_is_no_stream_fails_its_jobs_and_no_others(
    sink_rig: MakeSinkRig, redis_server: Endpoint, redis_namespace: str
) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.set(f"{redis_namespace}:bad", "text")
    rig = sink_rig(sinks=settings_of(redis_server.url))
    declare(
        rig, "order.close", sink=f"redis-stream:orders/{redis_namespace}:{{tag}}", max_attempts=2
    )
    rig.start()
    bad, good = schedule(rig, 10, tag="bad"), schedule(rig, 20, tag="good")
    rig.wait_for(Status.DONE, *good, seconds=60)
    rig.wait_for(Status.DEAD, *bad, seconds=60)
    assert "WRONGTYPE" in rig.center.dead(biz_type="order.close", limit=1)[0].error
    assert metric("toc_sink_breaker_open", sink=LABEL) == 0


@pytest.mark.parametrize("blow", ["kill", "freeze"])
def test_a_redis_that_is_killed_in_the_middle_loses_no_job(
    sink_rig: MakeSinkRig, durable_redis: Server, blow: str
) -> None:
    jobs, concurrency = 400, 16
    rig = sink_rig(sinks=settings_of(durable_redis.url, concurrency=concurrency))
    declare(rig, "order.close", sink="redis-stream:orders", max_attempts=200)
    rig.start()
    done = metric("toc_sink_messages_total", sink=LABEL, outcome="done")

    def confirmed() -> float:
        return metric("toc_sink_messages_total", sink=LABEL, outcome="done") - done

    ids = schedule(rig, jobs)
    wait_until(lambda: confirmed() > 0.1 * jobs, "messages", 60)
    try:
        if blow == "kill":
            durable_redis.kill()
        else:
            durable_redis.freeze()
        assert confirmed() < jobs, "it was too late to show anything"
        wait_until(lambda: metric("toc_sink_breaker_open", sink=LABEL) == 1, "the breaker", 60)
    finally:
        if blow == "kill":
            durable_redis.start()
        else:
            durable_redis.thaw()
    rig.wait_for(Status.DONE, *ids, seconds=100)
    received = [key for key, _ in read_stream(durable_redis.url, "orders")]
    assert set(received) == set(map(str, ids))
    # The rule: what was unconfirmed at the blow, and a probe for each time that the breaker was open.
    assert len(received) - jobs <= concurrency + 20
    assert len(received) <= sum(rig.row(job_id).attempts for job_id in ids)


def test_a_redis_that_is_full_counts_as_broken(
    sink_rig: MakeSinkRig, durable_redis: Server
) -> None:
    with redis.Redis.from_url(durable_redis.url) as client:
        client.config_set("maxmemory", "1")
        rig = sink_rig(sinks=settings_of(durable_redis.url))
        declare(rig, "order.close", sink="redis-stream:orders", max_attempts=200)
        rig.start()
        ids = schedule(rig, 10)
        wait_until(lambda: metric("toc_sink_breaker_open", sink=LABEL) == 1, "the breaker", 60)
        client.config_set("maxmemory", "0")
    rig.wait_for(Status.DONE, *ids, seconds=60)
    assert len(read_stream(durable_redis.url, "orders")) == len(ids)


def test_it_keeps_the_rules_of_sinks(durable_redis: Server) -> None:
    destination = SinkDestination("redis-stream", "orders", durable_redis.url, timeout_s=20)
    check_sink(
        lambda: RedisStreamSink(destination),
        lambda: read_stream(durable_redis.url, "orders"),
        stop=durable_redis.kill,
        start=durable_redis.start,
    )


def test_the_consumer_of_the_page(
    sink_rig: MakeSinkRig, durable_redis: Server, tmp_path: Path
) -> None:
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    program = tmp_path / "consumer.py"
    program.write_text(code)
    rig = sink_rig(sinks=settings_of(durable_redis.url))
    declare(rig, "order.close", sink="redis-stream:orders")
    rig.start()
    ids = schedule(rig, 30)
    rig.wait_for(Status.DONE, *ids, seconds=60)
    with redis.Redis.from_url(durable_redis.url) as client:  # one message comes twice
        _, fields = client.xrange("orders", count=1)[0]  # type: ignore[index]
        client.xadd("orders", fields)
    environment = os.environ | {"STREAM_URL": durable_redis.url, "STOP_AFTER": "30"}
    run = subprocess.run(
        [sys.executable, str(program)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert sorted(run.stdout.split("\n")[:-1]) == sorted(f"closing {n}" for n in range(30))


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("redis+cluster://h:1", {}),
        ("redis://user@h", {}),
        ("redis://h", {"length": "1"}),
        ("redis://h", {"length_max": "0"}),
        ("redis://h", {"length_max": "-1"}),
        ("redis://h", {"length_max": "1e3"}),
        ("redis://h", {"length_max": "9" * 20}),
    ],
)
def test_refused_destinations(url: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        RedisStreamSink.check_destination(SinkDestination("redis-stream", "orders", url, options))
