"""RabbitMQ: what arrives, what the broker refuses, and a broker that is killed."""

from __future__ import annotations

import json
import secrets
from typing import Any

import pytest

from tests.servers.process import Server
from tests.sinks.brokers import RabbitmqQueue
from tests.sinks.conftest import MakeSinkRig, declare
from tests.worker.rig import NOW, Rig, metric
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.errors import InvalidInput
from toc.sinks import SinkDestination
from toc.sinks.rabbitmq import RabbitmqSink
from toc.testing import check_sink


@pytest.fixture
def queue(rabbitmq_server: Server) -> RabbitmqQueue:
    return RabbitmqQueue(rabbitmq_server.url, f"orders-{secrets.token_hex(4)}")


def settings_of(queue: RabbitmqQueue, name: str = "orders", **terms: Any) -> dict[str, Any]:
    quick = {"failures_max": 3, "open_s": 0.5, "open_s_max": 1, "wait_s_max": 2}
    given = {"url": queue.url, "options": {"exchange": queue.exchange}} | quick | terms
    return {"rabbitmq": {name: given}}


def schedule(rig: Rig, count: int, biz_type: str = "order.close", **attribute: Any) -> list[int]:
    return rig.center.schedule_many(
        {"biz_id": n, "action_time": NOW, "biz_type": biz_type, "attribute": attribute or None}
        for n in range(count)
    )


def test_what_a_consumer_gets(sink_rig: MakeSinkRig, queue: RabbitmqQueue) -> None:
    rig = sink_rig(sinks=settings_of(queue))
    declare(rig, "order.close", sink="rabbitmq:orders/{biz_type}.{tag}")
    declare(rig, "order.pay", sink="rabbitmq:orders")
    rig.start()
    (job_id,) = schedule(rig, 1, tag="vip", sum=12)
    (other,) = schedule(rig, 1, "order.pay")
    rig.wait_for(Status.DONE, job_id, other, seconds=60)
    queue.read()
    by_id = {message.message_id: message for message in queue.messages}
    assert sorted(by_id) == sorted([str(job_id), str(other)])
    message = by_id[str(job_id)]
    assert message.routing_key == "order.close.vip"
    assert by_id[str(other)].routing_key == "order.pay"
    assert (message.type, message.app_id, message.delivery_mode) == ("order.close", "toc", 2)
    assert message.content_type == "application/json"
    assert json.loads(message.body)["data"]["payload"] == {"tag": "vip", "sum": 12}


def test_a_message_that_no_queue_takes_is_not_done_and_holds_up_no_other(
    sink_rig: MakeSinkRig, rabbitmq_server: Server
) -> None:
    """Mandatory: the broker confirms such a message too, after it has sent it back."""
    queue = RabbitmqQueue(rabbitmq_server.url, f"vip-{secrets.token_hex(4)}", "*.*.vip")
    rig = sink_rig(sinks=settings_of(queue))
    declare(rig, "order.close", sink="rabbitmq:orders/{biz_type}.{tag}", max_attempts=2)
    rig.start()
    lost = schedule(rig, 5, tag="poor")
    good = schedule(rig, 50, tag="vip")
    rig.wait_for(Status.DONE, *good, seconds=60)
    rig.wait_for(Status.DEAD, *lost, seconds=60)
    letter = rig.center.dead(biz_type="order.close", limit=1)[0]
    assert f"no queue of the exchange {queue.exchange} gets the routing key order.close.poor" in (
        letter.error
    )
    assert sorted(key for key, _ in queue.read()) == sorted(map(str, good))


def test_an_exchange_that_is_missing_costs_no_message_and_can_be_made_later(
    sink_rig: MakeSinkRig, rabbitmq_server: Server, queue: RabbitmqQueue
) -> None:
    later = f"later-{secrets.token_hex(4)}"
    rig = sink_rig(sinks=settings_of(queue, options={"exchange": later}))
    declare(rig, "order.close", sink="rabbitmq:orders", max_attempts=100)
    rig.start()
    ids = schedule(rig, 10)
    wait_until(lambda: metric("toc_sink_breaker_open", sink="rabbitmq:orders") == 1, "the breaker")
    made = RabbitmqQueue(rabbitmq_server.url, later)
    rig.wait_for(Status.DONE, *ids, seconds=90)
    assert {key for key, _ in made.read()} == set(map(str, ids))


def test_a_wrong_password_is_shown_nowhere(
    sink_rig: MakeSinkRig, queue: RabbitmqQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    url = queue.url.replace("guest:guest", "guest:h1dden")
    rig = sink_rig(sinks=settings_of(queue, url=url))
    declare(rig, "order.close", sink="rabbitmq:orders", max_attempts=2)
    rig.start()
    ids = schedule(rig, 1)
    rig.wait_for(Status.DEAD, *ids, seconds=60)
    (letter,) = rig.center.dead(biz_type="order.close")
    assert "refused" in letter.error.lower()
    assert "h1dden" not in letter.error + caplog.text + repr(rig.settings)


@pytest.mark.parametrize("blow", ["kill", "freeze"])
def test_a_broker_that_is_killed_in_the_middle_loses_no_job(
    sink_rig: MakeSinkRig, rabbitmq_server: Server, queue: RabbitmqQueue, blow: str
) -> None:
    jobs, concurrency = 400, 16
    rig = sink_rig(sinks=settings_of(queue, concurrency=concurrency, timeout_s=2))
    declare(rig, "order.close", sink="rabbitmq:orders", max_attempts=200)
    rig.start()
    done = metric("toc_sink_messages_total", sink="rabbitmq:orders", outcome="done")

    def confirmed() -> float:
        return metric("toc_sink_messages_total", sink="rabbitmq:orders", outcome="done") - done

    ids = schedule(rig, jobs)
    wait_until(lambda: confirmed() > 0.1 * jobs, "messages", 60)
    try:
        if blow == "kill":
            rabbitmq_server.kill()
        else:
            rabbitmq_server.freeze()
        assert confirmed() < jobs, "it was too late to show anything"
        is_open = lambda: metric("toc_sink_breaker_open", sink="rabbitmq:orders") == 1  # noqa: E731
        wait_until(is_open, "the breaker to open", 60)
    finally:
        if blow == "kill":
            rabbitmq_server.start()
        else:
            rabbitmq_server.thaw()
    rig.wait_for(Status.DONE, *ids, seconds=100)
    received = [key for key, _ in queue.read()]
    assert set(received) == set(map(str, ids))
    # The rule: what was unconfirmed at the blow, and a probe for each time that the breaker was open.
    total = sum(rig.row(job_id).attempts for job_id in ids)
    assert len(received) <= total
    assert len(received) - jobs <= concurrency + 20


def test_it_keeps_the_rules_of_sinks(rabbitmq_server: Server, queue: RabbitmqQueue) -> None:
    options = {"exchange": queue.exchange}
    destination = SinkDestination("rabbitmq", "orders", queue.url, options, timeout_s=20)
    check_sink(
        lambda: RabbitmqSink(destination),
        queue.read,
        stop=rabbitmq_server.kill,
        start=rabbitmq_server.start,
    )


@pytest.mark.parametrize(
    ("url", "options"),
    [("http://h", {}), ("amqp:/h", {}), ("amqp://h", {"queue": "a"})],
)
def test_refused_destinations(url: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        RabbitmqSink.check_destination(SinkDestination("rabbitmq", "orders", url, options))
