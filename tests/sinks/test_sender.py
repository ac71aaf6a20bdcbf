"""What each answer does to its job; batches and the circuit breaker: a plug-in in whole nodes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.sinks.conftest import MakeSinkRig, declare
from tests.sinks.plug_ins import RecordingSink
from tests.worker.rig import NOW, Rig, metric
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.errors import InvalidInput, SettingsError
from toc.handlers.verdicts import Dead, Drop, Retry, Snooze
from toc.sinks import SinkMessage
from toc.sinks.kinds import check_sink, find_sink_class, known_kinds

PlugIn = type[RecordingSink]
QUICK = {"failures_max": 3, "open_s": 0.2, "open_s_max": 0.4, "wait_s_max": 1}


def recording(name: str = "box", **terms: Any) -> dict[str, Any]:
    return {"recording": {name: {"url": "recording://user:hidden@here"} | QUICK | terms}}


def schedule(rig: Rig, count: int, biz_type: str = "order.close", **attribute: Any) -> list[int]:
    return rig.center.schedule_many(
        {"biz_id": n, "action_time": NOW, "biz_type": biz_type, "attribute": attribute or None}
        for n in range(count)
    )


def answers(*wanted: Any) -> Any:
    """Each of the answers once, for one message; then all are confirmed."""
    left = list(wanted)

    async def answer(messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        return [left.pop(0) if left else None for _ in messages]

    return answer


def test_a_node_sends_the_jobs_of_a_declared_type(
    sink_rig: MakeSinkRig, plug_in: PlugIn, mysql_database: str
) -> None:
    rig = sink_rig(urls=[mysql_database], sinks=recording())
    declare(rig, "order.close", sink="recording:box/{biz_type}.{tag}.{tenant}.{biz_id}")
    rig.start()
    ids = schedule(rig, 50, tag="vip", sum=12)
    rig.wait_for(Status.DONE, *ids, seconds=60)
    (sink,) = plug_in.made
    assert sorted(message.message_id for message in sink.messages) == sorted(map(str, ids))
    message = sink.messages[0]
    assert message.route == f"order.close.vip..{message.job.biz_id}"
    body = json.loads(message.body)
    assert body["type"] == "order.close"
    assert body["data"]["payload"] == {"tag": "vip", "sum": 12}
    assert body["data"]["job_id"] == message.message_id
    assert len(sink.batches) < 50
    assert "hidden" not in f"{sink!r} {sink.destination!r}"
    rig.stop()
    assert sink.is_closed


@pytest.mark.parametrize(
    ("answer", "status", "attempts", "outcome"),
    [
        (None, Status.DONE, 1, "done"),
        (Retry(None, "no such queue"), Status.DONE, 2, "refused"),
        (Retry(0.01, "later"), Status.DONE, 2, "refused"),
        (Dead("too large"), Status.DEAD, 1, "refused"),
        (Drop("not wanted"), Status.CANCELLED, 1, "refused"),
        (Snooze(NOW), Status.DONE, 1, "refused"),
        (ConnectionError("broken"), Status.DONE, 2, "failed"),
        (True, Status.DONE, 2, "failed"),  # only None means confirmed
    ],
    ids=str,
)
def test_what_an_answer_does(
    sink_rig: MakeSinkRig, plug_in: PlugIn, answer: Any, status: Status, attempts: int, outcome: str
) -> None:
    rig = sink_rig(sinks=recording())
    plug_in.answer = staticmethod(answers(answer))
    counted = metric("toc_sink_messages_total", sink="recording:box", outcome=outcome)
    declare(rig, "order.close", sink="recording:box")
    rig.start()
    (job_id,) = schedule(rig, 1)
    rig.wait_for(status, job_id, seconds=60)
    assert rig.row(job_id).attempts == attempts
    assert metric("toc_sink_messages_total", sink="recording:box", outcome=outcome) > counted


def test_a_sink_that_raises_gives_too_few_answers_or_never_ends(
    sink_rig: MakeSinkRig, plug_in: PlugIn
) -> None:
    async def hang(messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        await asyncio.Event().wait()
        return []

    async def too_few(messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        return [None] * (len(messages) - 1)

    async def fail(messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        raise RuntimeError("amqp://user:hidden@host is away")

    rig = sink_rig(sinks=recording(timeout_s=0.3, failures_max=100))
    declare(rig, "order.close", sink="recording:box", max_attempts=1, timeout_s=60)
    rig.start()
    for answer, text in (
        (hang, "no confirmation within 0.3 s"),
        (too_few, "0 answers for 1 messages"),
        (fail, "RuntimeError: amqp://user:***@host is away"),
    ):
        plug_in.answer = staticmethod(answer)
        job_id = rig.center.schedule(1, NOW, biz_type="order.close")
        rig.wait_for(Status.DEAD, job_id, seconds=60)
        (letter,) = rig.center.dead(biz_type="order.close", limit=1)
        assert (letter.job_id, text in letter.error) == (job_id, True), letter.error


def test_a_tag_that_would_add_a_word_to_the_route_ends_its_job(
    sink_rig: MakeSinkRig, plug_in: PlugIn
) -> None:
    rig = sink_rig(sinks=recording())
    declare(rig, "order.close", sink="recording:box/{biz_type}.{tag}")
    rig.start()
    (bad,) = schedule(rig, 1, tag="vip.all")
    (good,) = schedule(rig, 1, tag="vip")
    rig.wait_for(Status.DEAD, bad, seconds=60)
    rig.wait_for(Status.DONE, good, seconds=60)
    assert [message.route for message in plug_in.made[0].messages] == ["order.close.vip"]


def test_a_failing_destination_is_left_alone_and_holds_up_nobody(
    sink_rig: MakeSinkRig, plug_in: PlugIn
) -> None:
    """Its jobs wait without an attempt; those of another destination are done meanwhile."""
    is_broken = True

    async def answer(messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        if is_broken and messages[0].job.biz_type == "order.close":
            raise ConnectionError("broken")
        return [None] * len(messages)

    plug_in.answer = staticmethod(answer)
    sinks = {"recording": recording("box")["recording"] | recording("other")["recording"]}
    rig = sink_rig(sinks=sinks, worker={"queue_max": 40, "lease_s": 30, "lease_margin_s": 5})
    declare(rig, "order.close", sink="recording:box", max_attempts=50)
    declare(rig, "order.pay", sink="recording:other")
    rig.start()
    stuck = schedule(rig, 100)
    wait_until(lambda: metric("toc_sink_breaker_open", sink="recording:box") == 1, "the breaker")
    paid = schedule(rig, 50, "order.pay")
    rig.wait_for(Status.DONE, *paid, seconds=60)
    is_broken = False
    rig.wait_for(Status.DONE, *stuck, seconds=90)
    assert metric("toc_sink_breaker_open", sink="recording:box") == 0
    sent = {sink.destination.name: len(sink.messages) for sink in plug_in.made}
    assert sent == {"box": sum(rig.row(job_id).attempts for job_id in stuck), "other": 50}


def test_the_messages_that_wait_for_a_confirmation_are_bounded(
    sink_rig: MakeSinkRig, plug_in: PlugIn
) -> None:
    released = asyncio.Event()

    async def hold(messages: Sequence[SinkMessage]) -> Sequence[Exception | None]:
        await released.wait()
        return [None] * len(messages)

    plug_in.answer = staticmethod(hold)
    rig = sink_rig(sinks=recording(concurrency=7, batch_max=3, wait_s_max=1))
    declare(rig, "order.close", sink="recording:box")
    worker = rig.start()
    ids = schedule(rig, 40)
    wait_until(lambda: bool(plug_in.made) and plug_in.made[0].running == 7, "seven messages")
    loop = worker.pool.async_handlers.loop
    assert loop is not None
    loop.call_soon_threadsafe(released.set)
    rig.wait_for(Status.DONE, *ids, seconds=90)
    (sink,) = plug_in.made
    assert sink.running_max == 7
    assert max(map(len, sink.batches)) == 3


# ---- kinds and settings


def test_plug_ins_are_found_and_toc_s_own_kinds_stay(plug_in: PlugIn) -> None:
    assert {"recording", "rabbitmq", "redis-stream", "kafka", "webhook"} <= set(known_kinds())
    assert find_sink_class("recording") is plug_in
    assert find_sink_class("rabbitmq") is not plug_in
    assert find_sink_class("webhook") is None
    for kind, text in (("number", "not a subclass"), ("gone", "cannot be loaded")):
        with pytest.raises(SettingsError, match=text):
            find_sink_class(kind)


def test_a_declaration_is_checked_by_its_kind(plug_in: PlugIn) -> None:
    check_sink("recording:box/{biz_type}")
    check_sink("webhook:shop")
    check_sink("rabbitmq:orders/{biz_type}.{tag}")
    with pytest.raises(InvalidInput, match="must not be refused"):
        check_sink("recording:box/refused")
    with pytest.raises(InvalidInput, match=r"no such kind of sink; this process has: .*recording"):
        check_sink("rabbit:orders")


@pytest.mark.parametrize(
    ("sinks", "text"),
    [
        ({"rabbit": {"a": {"url": "amqp://h"}}}, "sinks.rabbit: there is no such kind"),
        ({"webhook": {"a": {"url": "https://h"}}}, "sinks.webhook: there is no such kind"),
        ({"recording": {"a": {"url": "http://h"}}}, "sinks.recording.a: url"),
        (
            {"recording": {"a": {"url": "recording://h", "options": {"size": "1"}}}},
            "sinks.recording.a: options: .* no such option; it has: colour",
        ),
    ],
)
def test_a_worker_refuses_settings_that_cannot_work(
    sink_rig: MakeSinkRig, plug_in: PlugIn, sinks: dict[str, Any], text: str
) -> None:
    rig = sink_rig(sinks=sinks)
    with pytest.raises(SettingsError, match=text):
        rig.start()


def test_a_process_without_the_driver_or_the_settings_leaves_the_jobs_to_others(
    sink_rig: MakeSinkRig, plug_in: PlugIn, caplog: pytest.LogCaptureFixture
) -> None:
    rig = sink_rig(sinks={"missing": {"a": {"url": "missing://h"}}} | recording())
    declare(rig, "order.a", sink="missing:a")
    declare(rig, "order.b", sink="recording:unknown")
    declare(rig, "order.c", sink="recording:box")
    worker = rig.start()
    ids = [rig.center.schedule(1, NOW, biz_type=f"order.{name}") for name in "abc"]
    rig.wait_for(Status.DONE, ids[2], seconds=60)
    assert rig.offer(worker, *ids[:2]) == 0
    assert [rig.row(job_id)[:2] for job_id in ids[:2]] == [(Status.PENDING, 0)] * 2
    assert "pip install 'toc-plug-in[driver]'" in caplog.text
    assert "the settings have no [sinks.recording.unknown]" in caplog.text
