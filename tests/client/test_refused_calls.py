"""Where a token is not sent, and what becomes of answers that are no success."""

from __future__ import annotations

import pickle
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.client.remote_world import QUICK, RemoteWorld
from tests.webhooks.certificates import make_server_context
from toc.client.http_call import CallFailure
from toc.client.remote_center import RemoteCenter, connect
from toc.client.retry_plan import RetryPlan
from toc.errors import (
    Forbidden,
    InvalidInput,
    PartlyScheduled,
    RequestFailed,
    ServerUnavailable,
    SettingsError,
    TooManyCalls,
    Unauthenticated,
)
from toc.runtime.client_settings import ClientSettings
from toc.runtime.settings import Settings

MINUTE = timedelta(minutes=1)
TOKEN = "toc_" + "0" * 12 + "_" + "s3cret" * 7 + "x"
CLOSE = {"biz_type": "order.close"}


class Scripted(socketserver.ThreadingTCPServer):
    """Answers each request with the next of its answers (the last one for ever), and keeps the requests."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, answers: list[bytes], tls: ssl.SSLContext | None = None) -> None:
        self.answers, self.requests = answers, list[bytes]()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
            self.url = self.url.replace("http", "https")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may break off the handshake."""


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Scripted)
        request = b""
        while b"\r\n\r\n" not in request:
            part = self.request.recv(100_000)
            if not part:
                return
            request += part
        self.server.requests.append(request)
        answers = self.server.answers
        self.request.sendall(answers.pop(0) if len(answers) > 1 else answers[0])


@contextmanager
def scripted(*answers: bytes, tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    with Scripted(list(answers), tls) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def http(status: int, content: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", "Connection: close"]
    lines += [*headers, "Content-Type: application/problem+json", "", ""]
    return "\r\n".join(lines).encode() + content


def call_get(server: Scripted, **client: Any) -> Any:
    settings = Settings(client=ClientSettings(**QUICK | client))
    with connect(server.url, token=TOKEN, settings=settings) as center:
        return center.get(1 << 40)


@pytest.mark.parametrize(
    "url",
    [
        "http://toc.example.com", "http://10.0.0.1:8440", "https://user:pw@toc.example.com", "ftp://localhost",
        "https://", "https://a/?x=1", "https://a/#x", "toc.example.com", "https://a b", "http://localhost.evil",
        "https://a:port", "http://127.0.0.1@evil.example", "https://a\\b", "", 5,
    ],
)  # fmt: skip
def test_a_token_is_not_sent_to_a_wrong_url(url: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        connect(url, token=TOKEN)
    assert caught.value.field == "url"
    assert "pw" not in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["https://toc.example.com/prefix/", "http://localhost:1", "http://127.9.9.9", "http://[::1]:9"],
)
def test_other_urls_are_accepted(url: str) -> None:
    assert connect(url, token=TOKEN).url == url.rstrip("/")


def test_a_token_is_shown_nowhere(small: RemoteWorld) -> None:
    center = small.connect("http://127.0.0.1:1", token=TOKEN, retries=0)
    shown = repr(center) + repr(vars(center)) + repr(center._address)
    with pytest.raises(ServerUnavailable) as caught:
        center.get(5)
    assert TOKEN not in shown + str(caught.value) + repr(caught.value)
    with pytest.raises(SettingsError) as refused:
        connect("https://a", token="bad token\n")
    assert "bad token" not in str(refused.value)


def test_tokens_come_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    settings = Settings(client=ClientSettings(token_file=str(path)))
    assert "".join(connect("https://a", settings=settings)._address.token or "") == TOKEN
    monkeypatch.setenv("TOC_TOKEN", "toc_of_environment")
    assert (
        "".join(connect("https://a", settings=Settings())._address.token or "")
        == "toc_of_environment"
    )
    found = connect("https://a", token_file=str(path), settings=Settings())._address.token
    assert "".join(found or "") == TOKEN
    monkeypatch.delenv("TOC_TOKEN")
    with pytest.raises(SettingsError, match="a token is needed"):
        connect("https://a", settings=Settings())
    with pytest.raises(SettingsError, match="cannot read the token file"):
        connect("https://a", token_file=str(tmp_path / "missing"), settings=Settings())


def test_a_redirect_is_not_followed() -> None:
    with (
        scripted(http(200)) as other,
        scripted(http(307, b"{}", f"Location: {other.url}/")) as server,
    ):
        with pytest.raises(RequestFailed, match="307"):
            call_get(server)
        assert other.requests == []


def test_the_servers_certificate_is_checked(tmp_path: Path) -> None:
    tls, ca_file, _ = make_server_context(tmp_path, "127.0.0.1")
    with scripted(http(404, b'{"code":"not_found"}'), tls=tls) as server:
        with pytest.raises(ServerUnavailable, match="certificate verify failed") as caught:
            call_get(server, retries=0)
        assert not caught.value.may_have_effect
        assert server.requests == []
        assert call_get(server, ca_file=str(ca_file)) is None
        assert len(server.requests) == 1
    with pytest.raises(SettingsError, match=r"client\.ca_file"):
        connect("https://a", token=TOKEN, ca_file=str(tmp_path / "missing"))


def test_a_wait_is_bounded() -> None:
    """A server that wants more patience than `client.retry_s_max` is not asked again."""
    failure = CallFailure(TooManyCalls("calls_per_s", 1), may_pass=True, wait_s=1)
    settings = ClientSettings(retries=3, retry_s=1, retry_s_max=3)
    plan = RetryPlan(settings, is_repeatable=False, draw_spread=lambda: 1.0)
    assert [plan.next_wait_s(failure) for _ in range(4)] == [1, 2, 3, None]
    fresh = RetryPlan(settings, is_repeatable=True)
    assert fresh.next_wait_s(failure._replace(wait_s=4)) is None
    unsafe = failure._replace(had_no_effect=False)
    assert RetryPlan(settings, is_repeatable=False).next_wait_s(unsafe) is None
    assert RetryPlan(settings, is_repeatable=True).next_wait_s(unsafe) is not None
    assert fresh.next_wait_s(failure._replace(may_pass=False)) is None


def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(http(200)) as proxy, scripted(http(404, b'{"code":"not_found"}')) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert call_get(server, trust_env=True) is None
        assert proxy.requests == []
        assert f"authorization: bearer {TOKEN}".encode().lower() in server.requests[0].lower()


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (http(500, b'{"code":"internal","detail":"it failed","request_id":"r7"}'), RequestFailed, "r7"),
        (http(200, b"<html>"), RequestFailed, "is it toc"),
        (http(200, b"[1]"), RequestFailed, "is it toc"),
        (http(200, b"[" * 50_000), RequestFailed, "is it toc"),
        (http(200, b'{"job_id": "x"}'), RequestFailed, "does not understand"),
        (http(404, b"no such page"), RequestFailed, "404"),
        (http(401, b'{"code":"unauthenticated","detail":"no"}'), Unauthenticated, "no"),
        (http(403, b'{"code":"forbidden","detail":"needs the scope"}'), Forbidden, "scope"),
        (http(200, b" " * 70_000), RequestFailed, "answer_bytes"),
        (http(429, b'{"rule":"web.limits.calls_per_s"}', "Retry-After: 3"), TooManyCalls, "calls_per_s"),
    ],
)  # fmt: skip
def test_answers_that_are_no_success(answer: bytes, error: type[Exception], text: str) -> None:
    with scripted(answer) as server:
        with pytest.raises(error, match=text):
            call_get(server, answer_bytes=65_536)
        assert len(server.requests) == 1


def test_a_server_that_asks_for_patience_is_asked_again() -> None:
    busy = http(429, b"{}", "Retry-After: 0")
    away = http(
        503, b'{"code":"store_unavailable","detail":"a database is away"}', "Retry-After: 0"
    )
    with scripted(
        busy, away, http(502, b"bad gateway"), http(404, b'{"code":"not_found"}')
    ) as server:
        assert call_get(server, retries=3) is None
        assert len(server.requests) == 4
    with scripted(away) as server:
        with pytest.raises(ServerUnavailable, match="a database is away"):
            call_get(server, retries=2)
        assert len(server.requests) == 3


def test_unknown_names_of_a_newer_server_are_ignored() -> None:
    job = (
        b'{"job_id":"1099511627776","biz_id":"7","biz_id_is_text":false,"tenant":null,"biz_type":"a",'
        b'"status":"done","action_time":"2026-01-01T00:00:00.001Z","due_time":null,"attempts":2,'
        b'"payload":{"n":1},"key":"k","colour":"red"}'
    )
    with scripted(http(200, job)) as server:
        found = call_get(server)
    assert (found.biz_id, found.action_ms, found.attribute) == (7, 1_767_225_600_001, {"n": 1})


def test_errors_of_the_server_name_what_python_calls_it(small: RemoteWorld) -> None:
    small.declare(
        "order.close",
        payload_schema={"properties": {"n": {"type": "integer"}}, "type": "object"},
    )
    center = small.connect()
    with pytest.raises(InvalidInput) as caught:
        center.schedule(1, MINUTE, **CLOSE, attribute={"n": "x"})
    assert caught.value.field.startswith("attribute")
    assert caught.value.value == {"n": "x"}
    with pytest.raises(InvalidInput) as caught:
        center.schedule(1, MINUTE, biz_type="undeclared")
    assert (caught.value.field, caught.value.value) == ("biz_type", "undeclared")
    jobs: list[Any] = [
        {"biz_id": 1, "action_time": MINUTE}, {"biz_id": 2, "action_time": MINUTE, "biz_type": "undeclared"}
    ]  # fmt: skip
    with pytest.raises(PartlyScheduled) as partly:
        center.schedule_many(jobs, **CLOSE)
    assert [job_id is None for job_id in partly.value.job_ids] == [False, True]
    assert isinstance(partly.value.__cause__, InvalidInput)
    assert partly.value.__cause__.field == "jobs[1].biz_type"
    with pytest.raises(InvalidInput):
        center.schedule_many(jobs[1:], **CLOSE)


def test_what_http_does_not_have_is_refused(small: RemoteWorld) -> None:
    center: Any = small.connect()
    for call in (
        lambda: center.schedule(1, MINUTE, **CLOSE, tenant="blue"),
        lambda: center.schedule_many(
            [{"biz_id": 1, "action_time": MINUTE, "tenant": "blue"}], **CLOSE
        ),
        lambda: center.find(1, "order.close", tenant="blue"),
        lambda: center.cancel(biz_id=1, tenant="blue"),
        lambda: center.cancel(biz_id=1, biz_type=None),
        lambda: center.schedule(1, MINUTE, **CLOSE, dedup_key="k", on_duplicate="once"),
    ):
        with pytest.raises(InvalidInput, match="over HTTP"):
            call()
    with pytest.raises(AttributeError, match="dead letters are not listed over HTTP"):
        center.dead()
    with pytest.raises(TypeError):
        center.schedule(1, MINUTE, session=object())
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        pickle.dumps(center)  # it would hold the token


def test_a_token_of_a_tenant_sees_its_jobs_alone(small: RemoteWorld) -> None:
    blue = small.connect(token=small.make_token(tenant="blue"))
    red = small.connect(token=small.make_token(tenant="red"))
    job_id = blue.schedule("A", MINUTE, **CLOSE)
    job = blue.get(job_id)
    assert job is not None
    assert job.tenant == "blue"
    assert red.get(job_id) is None
    assert red.find("A", "order.close") == []
    assert red.cancel(job_id) == "unknown"
    assert blue.cancel(job_id)


def test_a_client_survives_a_fork(small: RemoteWorld) -> None:
    center = small.connect()
    job_id = center.schedule(1, MINUTE, **CLOSE)
    center._transport._pid -= 1  # as a child sees the client of its parent
    before = center._transport._client
    assert center.cancel(job_id)
    assert center._transport._client is not before
    assert before is not None
    before.close()


def test_importing_toc_imports_no_extra() -> None:
    code = (
        "import sys, toc; toc.connect; toc.RemoteCenter; "
        "assert not {'httpx', 'pymysql', 'redis', 'toc.store'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    monkeypatch.delitem(sys.modules, "toc.client.transport", raising=False)
    import toc.client as package  # noqa: PLC0415

    monkeypatch.delattr(package, "transport", raising=False)
    with pytest.raises(SettingsError, match=r"pip install 'toc\[client\]'"):
        RemoteCenter("http://localhost", settings=Settings())
