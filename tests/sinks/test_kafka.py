"""Kafka, on librdkafka's mock cluster: what arrives, refusals, brokers that go away in the middle."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers.kafka_mock import KafkaMock, start_kafka_mock
from tests.servers.process import ServerUnavailableError
from tests.sinks.brokers import KafkaTopic
from tests.sinks.conftest import MakeSinkRig, declare
from tests.worker.rig import NOW, Rig, metric
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.errors import InvalidInput
from toc.sinks import SinkDestination
from toc.sinks.kafka import KafkaSink
from toc.testing import check_sink

LABEL = "kafka:orders"


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaMock]:
    try:
        with start_kafka_mock() as cluster:
            yield cluster
    except ServerUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def topic(cluster: KafkaMock) -> str:
    name = f"orders-{secrets.token_hex(4)}"
    cluster.create_topic(name)
    return name


def settings_of(cluster: KafkaMock, **terms: Any) -> dict[str, Any]:
    quick = {"failures_max": 3, "open_s": 0.5, "open_s_max": 1, "wait_s_max": 2, "timeout_s": 4}
    return {"kafka": {"orders": {"url": f"kafka://{cluster.bootstraps}"} | quick | terms}}


def schedule(rig: Rig, count: int, biz_type: str = "order.close", **attribute: Any) -> list[int]:
    return rig.center.schedule_many(
        {"biz_id": n % 10, "action_time": NOW, "biz_type": biz_type, "attribute": attribute or None}
        for n in range(count)
    )


def test_what_a_consumer_gets(sink_rig: MakeSinkRig, cluster: KafkaMock, topic: str) -> None:
    rig = sink_rig(sinks=settings_of(cluster))
    declare(rig, "order.close", sink=f"kafka:orders/{topic}")
    rig.start()
    ids = schedule(rig, 50, sum=12)
    rig.wait_for(Status.DONE, *ids, seconds=60)
    records = KafkaTopic(cluster.bootstraps, topic).read_records()
    assert sorted(dict(each.headers())["job_id"] for each in records) == sorted(
        str(job_id).encode() for job_id in ids
    )
    assert dict(records[0].headers())["type"] == b"order.close"
    body = json.loads(records[0].value())
    assert body["data"]["payload"] == {"sum": 12}
    assert records[0].key().decode() == body["data"]["biz_id"]
    places: dict[bytes, set[int]] = {}
    for each in records:
        places.setdefault(each.key(), set()).add(each.partition())
    assert len(places) == 10
    assert all(len(found) == 1 for found in places.values())  # one business id, one partition


def test_a_topic_that_is_not_allowed_fails_its_jobs_and_no_others(
    sink_rig: MakeSinkRig, cluster: KafkaMock, topic: str
) -> None:
    forbidden = f"{topic}-no"
    cluster.create_topic(forbidden)
    cluster.forbid_topic(forbidden)
    rig = sink_rig(sinks=settings_of(cluster))
    declare(rig, "order.close", sink=f"kafka:orders/{topic}{{tag}}", max_attempts=1)
    rig.start()
    bad, good = schedule(rig, 3, tag="-no"), schedule(rig, 10)
    rig.wait_for(Status.DONE, *good, seconds=60)
    rig.wait_for(Status.DEAD, *bad, seconds=60)
    assert len(KafkaTopic(cluster.bootstraps, topic).read()) == len(good)


def test_brokers_that_go_away_in_the_middle_lose_no_job(
    sink_rig: MakeSinkRig, cluster: KafkaMock, topic: str
) -> None:
    jobs, concurrency = 400, 16
    rig = sink_rig(sinks=settings_of(cluster, concurrency=concurrency, timeout_s=2))
    declare(rig, "order.close", sink=f"kafka:orders/{topic}", max_attempts=200)
    rig.start()
    done = metric("toc_sink_messages_total", sink=LABEL, outcome="done")

    def confirmed() -> float:
        return metric("toc_sink_messages_total", sink=LABEL, outcome="done") - done

    ids = schedule(rig, jobs)
    wait_until(lambda: confirmed() > 0.1 * jobs, "messages", 60)
    cluster.take_down()
    try:
        assert confirmed() < jobs, "it was too late to show anything"
        wait_until(lambda: metric("toc_sink_breaker_open", sink=LABEL) == 1, "the breaker", 60)
    finally:
        cluster.take_up()
    rig.wait_for(Status.DONE, *ids, seconds=100)
    received = [key for key, _ in KafkaTopic(cluster.bootstraps, topic).read()]
    assert set(received) == set(map(str, ids))
    # The rule: what was unconfirmed at the blow, and a probe for each time that the breaker was open.
    assert len(received) - jobs <= concurrency + 20
    assert len(received) <= sum(rig.row(job_id).attempts for job_id in ids)


def test_a_producer_that_the_cluster_refuses_for_good_is_replaced(
    sink_rig: MakeSinkRig, cluster: KafkaMock, topic: str
) -> None:
    """After a fatal error an idempotent producer sends nothing any more."""
    cluster.refuse_next_producer()
    rig = sink_rig(sinks=settings_of(cluster))
    declare(rig, "order.close", sink=f"kafka:orders/{topic}", max_attempts=200)
    failed = metric("toc_sink_messages_total", sink=LABEL, outcome="failed")
    rig.start()
    ids = schedule(rig, 10)
    rig.wait_for(Status.DONE, *ids, seconds=90)
    assert metric("toc_sink_messages_total", sink=LABEL, outcome="failed") > failed
    assert len(KafkaTopic(cluster.bootstraps, topic).read()) == len(ids)


def test_it_keeps_the_rules_of_sinks(cluster: KafkaMock, topic: str) -> None:
    url = f"kafka://{cluster.bootstraps}"
    check_sink(
        lambda: KafkaSink(SinkDestination("kafka", "orders", url, timeout_s=5)),
        KafkaTopic(cluster.bootstraps, topic).read,
        route=topic,
        stop=cluster.take_down,
        start=cluster.take_up,
    )


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("kafka://", {}),
        ("h:9092", {}),
        ("kafka://user:password@h:9092", {}),
        ("kafka://h:9092/topic", {}),
        ("kafka://h:9092", {"acks": "0"}),
        ("kafka://h:9092", {"enable.idempotence": "false"}),
    ],
)
def test_refused_destinations(url: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        KafkaSink.check_destination(SinkDestination("kafka", "orders", url, options))
