"""Alarms of whole nodes, to a chat on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.servers.endpoint import Endpoint
from tests.webhooks.receiver import Answer, Receiver, answer_ok, answer_with, reply
from tests.worker.rig import NOW, Rig, metric
from tests.worker.waiting import wait_until
from toc.alarms.alarm_service import AlarmService
from toc.alarms.chat_sender import ChatFailedError, ChatSender
from toc.domain.job import Job, Status
from toc.errors import SettingsError
from toc.runtime.settings import Settings, load_settings
from toc.store.alarm_reads import HOLDER
from toc.store.database_metadata import DatabaseMetadata

LOCAL = {"allow": ["127.0.0.0/8"], "allow_http": ["127.0.0.1"], "ports": list(range(1, 65_536))}


class Chat:
    """A rig whose nodes send alarms to a receiver. Nothing is late and no failures count unless a test says
    so.
    """

    def __init__(self, rig: Rig, receiver: Receiver) -> None:
        self.rig, self.receiver = rig, receiver

    @property
    def texts(self) -> list[str]:
        return [str(request.message["text"]) for request in self.receiver.requests]

    def wait_for(self, text: str, seconds: float = 60) -> str:
        wait_until(
            lambda: any(text in each for each in self.texts), f"{text!r} in the chat", seconds
        )
        return next(each for each in self.texts if text in each)

    def start(self) -> None:
        """Starts a node, and waits for its first look: what was before it is no news."""
        self.rig.start()
        service = self.service
        wait_until(lambda: bool(service._ends), "the first look")

    @property
    def service(self) -> AlarmService:
        assert self.rig.node is not None
        (found,) = [each for each in self.rig.node._services if isinstance(each, AlarmService)]
        return found

    def fail_jobs(self, biz_type: str, count: int) -> list[int]:
        """Jobs that are due now; the test has registered the handler that fails."""
        return self.rig.center.schedule_many(
            {"biz_id": n, "action_time": NOW, "biz_type": biz_type} for n in range(count)
        )


MakeChat = Callable[..., Chat]


@pytest.fixture
def make_chat(tmp_path: Path, redis_server: Endpoint, redis_namespace: str) -> Iterator[MakeChat]:
    """`make_chat(urls=…, answer=…, **alarms)`"""
    made: list[Chat] = []

    def make(*, urls: list[str] | None = None, answer: Answer = answer_ok, **alarms: Any) -> Chat:
        receiver = Receiver(answer)
        terms = {"failures": "none", "late_s": "none", "tick_s": 0.1}
        terms |= {"url": f"http://127.0.0.1:{receiver.port}/hook/s3cret"} | alarms
        urls = urls or [f"sqlite:///{tmp_path}/toc_0.db"]
        rig = Rig(urls, redis_server.url, redis_namespace, webhooks=LOCAL, alarms=terms)
        made.append(Chat(rig, receiver))
        return made[-1]

    yield make
    for chat in reversed(made):
        chat.rig.close()
        chat.receiver.close()


def fail(job: Job) -> None:
    raise RuntimeError(f"no luck with mysql://u:h1dden@db/{job.biz_id}")


def test_a_dead_job_is_told_once(mysql_database: str, make_chat: MakeChat) -> None:
    chat = make_chat(urls=[mysql_database], quiet_s=3600)
    chat.rig.handler("order.close", max_attempts=1)(fail)
    chat.rig.handler("order.pay", max_attempts=1)(fail)
    chat.start()
    first = chat.fail_jobs("order.close", 1)
    text = chat.wait_for("1 job of order.close died")
    assert f"job {first[0]}: RuntimeError: no luck with mysql://u:***@db/0" in text
    assert "toc (" in text
    chat.rig.wait_for(Status.DEAD, *chat.fail_jobs("order.close", 5), seconds=60)
    chat.fail_jobs("order.pay", 1)
    chat.wait_for("1 job of order.pay died")  # looked at after the others, which are quiet
    wait_until(lambda: metric("toc_alarms_waiting") == 1, "five deaths to wait")
    assert len(chat.texts) == 2


def test_failures_are_told_at_their_threshold(make_chat: MakeChat) -> None:
    chat = make_chat(failures=6, dead=False, quiet_s=3600)
    chat.rig.handler("order.close", max_attempts=3, retry=[0.01])(fail)
    chat.start()
    ids = chat.fail_jobs("order.close", 1)  # three failures
    chat.rig.wait_for(Status.DEAD, *ids, seconds=60)
    ends = dict(chat.service._ends)
    wait_until(lambda: all(chat.service._ends[each] >= ends[each] for each in ends), "a look")
    assert chat.texts == []
    chat.fail_jobs("order.close", 1)
    chat.wait_for("6 failed attempts of order.close")
    assert len(chat.texts) == 1


def test_what_happened_before_the_first_look_is_no_news(make_chat: MakeChat) -> None:
    chat = make_chat()
    chat.rig.handler("order.close", max_attempts=1)(fail)
    worker = chat.rig.alone()
    old = chat.rig.center.schedule(1, NOW, biz_type="order.close")
    wait_until(lambda: chat.rig.offer(worker, old) == 1, "the claim")
    chat.rig.wait_for(Status.DEAD, old)
    chat.start()
    chat.fail_jobs("order.close", 1)
    chat.wait_for("1 job of order.close died")
    assert len(chat.texts) == 1


def test_late_jobs_are_told_unless_their_type_is_paused(
    mysql_database: str, make_chat: MakeChat
) -> None:
    """Nobody handles the types."""
    chat = make_chat(urls=[mysql_database], late_s=1, quiet_s=0)
    long_ago = timedelta()
    paused = chat.rig.center.schedule(1, long_ago, biz_type="order.paused")
    late = chat.rig.center.schedule(1, long_ago, biz_type="order.late")
    service = make_service(chat.rig, paused_types=lambda: ["order.paused"])
    wait_until(lambda: look(service) and len(chat.texts) >= 2, "two messages", 60)
    assert all(f"jobs of order.late are late\njob {late} is due for" in each for each in chat.texts)
    service._paused_types = lambda: ["order.late"]
    wait_until(lambda: look(service) and "order.paused" in chat.texts[-1], "the other type", 60)
    assert f"job {paused}" in chat.texts[-1]
    chat.rig.center.cancel(paused)
    look(service)
    told = len(chat.texts)
    look(service)
    assert len(chat.texts) == told


def make_service(rig: Rig, holder: str = "a", **terms: Any) -> AlarmService:
    databases = rig.databases()
    types = DatabaseMetadata(databases).types
    chat = ChatSender(rig.settings)
    return AlarmService(rig.settings, databases, types, rig.clock, holder, chat, **terms)


def look(service: AlarmService) -> bool:
    service.run_once()
    return True


def test_one_node_of_all_looks_and_another_one_follows(make_chat: MakeChat) -> None:
    chat = make_chat()
    chat.rig.handler("order.close", max_attempts=1)(fail)
    worker = chat.rig.alone()
    first, second = make_service(chat.rig, "a"), make_service(chat.rig, "b")
    look(first)
    look(second)

    def die(biz_id: int) -> None:
        job_id = chat.rig.center.schedule(biz_id, NOW, biz_type="order.close")
        wait_until(lambda: chat.rig.offer(worker, job_id) == 1, "the claim")
        chat.rig.wait_for(Status.DEAD, job_id)

    die(1)
    for _ in range(3):
        look(first)
        look(second)
    assert len(chat.texts) == 1
    die(2)
    database = chat.rig.databases()[0]
    over = '{"holder": "a", "until_ms": 1}'
    with database.engine.begin() as connection:  # the first node has died, and its lease is over
        meta = database.meta
        connection.execute(meta.update().where(meta.c.name == HOLDER).values(value=over))
    for _ in range(3):
        look(second)
        look(first)
    assert len(chat.texts) == 2  # the second node goes on where the first one was


def test_an_alarm_waits_for_a_chat_that_refuses_it(
    make_chat: MakeChat, caplog: pytest.LogCaptureFixture
) -> None:
    refused = reply(200, b'{"errcode":310000,"errmsg":"sign not match"}')
    taken = reply(200, b'{"errcode":0}')
    chat = make_chat(
        answer=answer_with(refused, refused, taken), format="dingtalk", secret="SECs1gned"
    )
    chat.rig.handler("order.close", max_attempts=1)(fail)
    chat.start()
    chat.fail_jobs("order.close", 1)
    wait_until(lambda: metric("toc_alarms_waiting") == 0 and len(chat.receiver.requests) == 3)
    assert "sign=" in chat.receiver.requests[0].line
    assert "sign not match" in caplog.text
    assert "s1gned" not in caplog.text + repr(chat.rig.settings)
    assert "s3cret" not in caplog.text + repr(chat.rig.settings)


# ---- the network, and settings


def settings_of(url: str, **webhooks: Any) -> Settings:
    return load_settings(alarms={"url": url}, webhooks=webhooks)


@pytest.mark.parametrize(
    ("url", "webhooks", "text"),
    [
        ("http://hooks.example.com/s3cret", {}, "must begin with https://"),
        ("https://127.0.0.1/s3cret", {}, "not a public address"),
        ("https://169.254.169.254/s3cret", {"allow": ["0.0.0.0/0"]}, "not a public address"),
        ("https://hooks.example.com:8443/s3cret", {}, "the port must be one of"),
        ("https://u:s3cret@hooks.example.com/", {}, "no user name"),
    ],
)
def test_urls_that_are_not_permitted(url: str, webhooks: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text) as caught:
        ChatSender(settings_of(url, **webhooks))
    assert "s3cret" not in str(caught.value)


def test_a_redirect_is_not_followed_and_a_private_address_of_a_name_is_refused() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["10.0.0.1"]

    sender = ChatSender(settings_of("https://hooks.example.com/x"), resolve)
    with pytest.raises(ChatFailedError, match="not a public address"):
        sender.send("hello", 0)
    target = Receiver()
    moved = reply(302, location=f"http://127.0.0.1:{target.port}/")
    receiver = Receiver(answer_with(moved))
    try:
        url = f"http://127.0.0.1:{receiver.port}/x"
        with pytest.raises(ChatFailedError, match="answered 302"):
            ChatSender(settings_of(url, **LOCAL)).send("hello", 0)
        assert not target.requests
    finally:
        receiver.close()
        target.close()


def test_a_secret_that_would_sign_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="wecom signs no messages"):
        load_settings(alarms={"url": "https://h/x", "format": "wecom", "secret": "x"})
