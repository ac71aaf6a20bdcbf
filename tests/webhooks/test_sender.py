"""Jobs are sent to a real receiver by a whole node."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.webhooks.conftest import MakePostOffice
from tests.webhooks.receiver import Request, Write, answer_ok, answer_with, reply
from tests.worker.rig import NOW, metric
from tests.worker.waiting import wait_until
from toc.domain.job import Status
from toc.store.webhooks import DISABLE_EVENT

LONG = timedelta(hours=1)


def test_a_job_is_sent_signed_and_done(post_office: MakePostOffice) -> None:
    office = post_office()
    receiver = office.receive("shop")
    office.start()
    job_id = office.rig.center.schedule(
        2**60, NOW, biz_type="shop", attribute={"a": "é"}, dedup_key="k", tenant="acme"
    )
    office.rig.wait_for(Status.DONE, job_id)
    (request,) = receiver.requests
    request.verify(office.secrets["shop"])
    assert request.line == "POST /in?x=1 HTTP/1.1"
    assert request.headers["webhook-id"] == str(job_id)
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert set(request.headers) == {
        "host", "content-type", "content-length", "user-agent", "accept-encoding",
        "webhook-id", "webhook-timestamp", "webhook-signature",
    }  # fmt: skip
    message = request.message
    assert message["type"] == "shop"
    action = office.rig.row(job_id).action_ms
    assert message["timestamp"].endswith(f".{action % 1000:03d}Z")
    assert message["data"] == {
        "job_id": str(job_id), "biz_id": str(2**60), "attempt": 1, "key": "k", "tenant": "acme",
        "payload": {"a": "é"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "status", [100, 199, 300, 301, 302, 307, 308, 400, 401, 404, 429, 500, 503]
)
def test_only_2xx_is_done(post_office: MakePostOffice, status: int) -> None:
    office = post_office(webhooks={"failures_max": 1000})
    elsewhere = office.receive("elsewhere")
    url = f"http://127.0.0.1:{elsewhere.port}/"
    first = reply(status, location=url, connection="close")
    if status < 200:  # not a final answer: another one must follow
        first = f"HTTP/1.1 {status} X\r\n\r\n".encode() + reply(500)
    receiver = office.receive("shop", answer_with(first, reply(204)))
    office.start()
    job_id = office.rig.center.schedule(1, NOW, biz_type="shop")
    office.rig.wait_for(Status.DONE, job_id)
    assert [request.message["data"]["attempt"] for request in receiver.requests] == [1, 2]
    assert not elsewhere.requests


def test_after_the_last_attempt_the_job_is_dead_with_a_safe_reason(
    post_office: MakePostOffice,
) -> None:
    office = post_office(webhooks={"failures_max": 1000})
    body = b"\x1b[31mno\x00 \xe2\x80\xae\r\nway" + b"x" * 100_000
    receiver = office.receive("shop", answer_with(reply(500, body)), max_attempts=2)
    office.start()
    job_id = office.rig.center.schedule(1, NOW, biz_type="shop")
    office.rig.wait_for(Status.DEAD, job_id)
    assert len(receiver.requests) == 2
    (letter,) = office.rig.center.dead(biz_type="shop")
    assert letter.error.startswith("webhook shop: answered 500: \\x1b[31mno")
    assert letter.error.isprintable()
    assert len(letter.error) < 300
    assert office.secrets["shop"] not in letter.error


def test_while_the_secret_is_rotated_both_secrets_verify(post_office: MakePostOffice) -> None:
    office = post_office()
    receiver = office.receive("shop")
    office.start()
    old, new = office.secrets["shop"], "whsec_" + "A" * 43 + "="
    now_ms = office.databases[0].now_ms()
    row = office.row("shop")
    office.change(
        "shop",
        secret=office.box.encrypt("shop", new),
        old_secret=row.secret,
        old_secret_end_ms=now_ms + 3_600_000,
    )
    job_id = office.rig.center.schedule(1, NOW, biz_type="shop")
    office.rig.wait_for(Status.DONE, job_id)
    receiver.requests[0].verify(old)
    receiver.requests[0].verify(new)
    office.change("shop", old_secret_end_ms=now_ms - 1)
    job_id = office.rig.center.schedule(2, NOW, biz_type="shop")
    office.rig.wait_for(Status.DONE, job_id)
    receiver.requests[1].verify(new)
    assert receiver.requests[1].headers["webhook-signature"].count("v1,") == 1


@pytest.mark.parametrize("is_secret_swapped", [False, True])
def test_a_row_that_does_not_fit_sends_nothing(
    post_office: MakePostOffice, is_secret_swapped: bool
) -> None:
    """A secret of another destination, and a URL that the settings do not permit."""
    office = post_office()
    receiver, other = office.receive("shop"), office.receive("other")
    office.start()
    if is_secret_swapped:
        office.change("shop", secret=office.row("other").secret)
    else:
        office.change("shop", url=f"http://127.0.0.2:{receiver.port}/")
    job_id = office.rig.center.schedule(1, NOW, biz_type="shop")
    office.wait_for_snooze(job_id)
    assert office.rig.row(job_id)[:2] == (Status.PENDING, 0)
    assert not receiver.requests
    assert not other.requests


def test_410_disables_the_destination_and_its_jobs_wait(
    post_office: MakePostOffice, caplog: pytest.LogCaptureFixture
) -> None:
    office = post_office()
    receiver = office.receive("shop", answer_with(reply(410)), max_attempts=1)
    office.start()
    center = office.rig.center
    first = center.schedule(1, NOW, biz_type="shop")
    wait_until(lambda: office.row("shop").disabled_ms is not None, "the destination to be disabled")
    second = center.schedule(2, NOW, biz_type="shop")
    for job_id in (first, second):
        office.wait_for_snooze(job_id)
        assert office.rig.row(job_id)[:2] == (Status.PENDING, 0)
    assert len(receiver.requests) == 1
    assert "answered 410 (gone)" in caplog.text
    assert [event.what for event in office.events(first)] == [DISABLE_EVENT]
    office.refresh()
    assert metric("toc_webhooks_disabled") == 1
    receiver.answer = answer_ok
    office.change("shop", disabled_ms=None, disabled_reason=None)
    for job_id in (first, second):
        assert center.reschedule(job_id, NOW)
    office.rig.wait_for(Status.DONE, first, second)


def test_retry_after_is_followed(post_office: MakePostOffice) -> None:
    office = post_office()
    office.receive("shop", answer_with(reply(503, retry_after="600")))
    office.start()
    job_id = office.rig.center.schedule(1, NOW, biz_type="shop")
    wait_until(lambda: office.rig.row(job_id).attempts == 1, "the first attempt")
    office.rig.wait_for(Status.PENDING, job_id)
    due_ms = office.rig.row(job_id).due_ms
    assert due_ms is not None
    assert due_ms - office.rig.row(job_id).action_ms > 300_000


def test_a_slow_drip_and_a_silent_receiver_end_at_the_time_limit(
    post_office: MakePostOffice,
) -> None:
    async def drip(request: Request, write: Write) -> None:
        await write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
        while True:
            await write(b"x")
            await asyncio.sleep(0.05)

    async def be_silent(request: Request, write: Write) -> None:
        await asyncio.sleep(3600)

    office = post_office(webhooks={"total_s": 1.0, "read_s": 3600.0})
    office.receive("drip", drip, max_attempts=1)
    office.receive("silent", be_silent, max_attempts=1)
    office.start()
    ids = [office.rig.center.schedule(1, NOW, biz_type=name) for name in ("drip", "silent")]
    office.rig.wait_for(Status.DEAD, *ids, seconds=60)
    for name in ("drip", "silent"):
        (letter,) = office.rig.center.dead(biz_type=name)
        assert letter.error == f"webhook {name}: no answer within 1 s"


def test_an_endless_answer_is_read_to_64_kb(post_office: MakePostOffice) -> None:
    written = 0

    async def write_for_ever(request: Request, write: Write) -> None:
        nonlocal written
        await write(b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n")
        while True:
            await write(b"x" * 65_536)
            written += 65_536

    office = post_office()
    receiver = office.receive("shop", write_for_ever)
    office.start()
    job_id = office.rig.center.schedule(1, NOW, biz_type="shop")
    office.rig.wait_for(Status.DONE, job_id)
    wait_until(lambda: not receiver.running, "the sender to close the connection")
    assert written < 64 * 2**20  # what the buffers of the sockets hold


def test_connections_are_kept(post_office: MakePostOffice) -> None:
    office = post_office(webhooks={"concurrency": 1})
    receiver = office.receive("shop")
    office.start()
    for number in range(5):
        job_id = office.rig.center.schedule(number, NOW, biz_type="shop")
        office.rig.wait_for(Status.DONE, job_id)
    assert receiver.connections == 1


def test_proxies_of_the_environment_are_not_used(
    post_office: MakePostOffice, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = post_office()
    receiver, proxy = office.receive("shop"), office.receive("proxy")
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    receiver.answer = answer_with(reply(200, set_cookie="a=b; Path=/"))
    office.start()
    for number in range(2):
        job_id = office.rig.center.schedule(number, NOW, biz_type="shop")
        office.rig.wait_for(Status.DONE, job_id)
    assert len(receiver.requests) == 2
    assert "cookie" not in receiver.requests[1].headers
    assert not proxy.requests
