"""The requests of the four chats; signatures as their documentation computes them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import urllib.parse
from typing import Any

import pytest

from toc.alarms.alarm import Alarm, AlarmKey, AlarmKind
from toc.alarms.formats import (
    FULLWIDTH_LESS,
    TEXT_BYTES_MAX,
    AlarmFormat,
    is_accepted,
    make_chat_request,
)

NOW_MS = 1_700_000_000_123
SECRET = "SECabc"
TEXT = "toc (shop): 1 job of order.close died\njob 5: <!channel> & more"
NO_TAG = TEXT.replace("<", FULLWIDTH_LESS)


def body_of(chat: AlarmFormat, text: str = TEXT, secret: str | None = None) -> Any:
    return json.loads(make_chat_request(chat, text, secret, NOW_MS).body)


def test_slack_calls_nobody() -> None:
    assert body_of("slack") == {
        "text": "toc (shop): 1 job of order.close died\njob 5: &lt;!channel&gt; &amp; more"
    }


def test_wecom() -> None:
    assert body_of("wecom") == {"msgtype": "text", "text": {"content": NO_TAG}}


@pytest.mark.parametrize("chat", ["feishu", "wecom"])
def test_an_error_calls_nobody_and_still_fits(chat: AlarmFormat) -> None:
    """Its text may come from a remote consumer: `<at user_id="all">` would call everybody."""
    body = body_of(chat, '<at user_id="all"></at><@all>' * 200)
    text: str = body["content"]["text"] if chat == "feishu" else body["text"]["content"]
    assert "<" not in text
    assert len(text.encode()) <= TEXT_BYTES_MAX


def test_dingtalk_signs_in_the_query() -> None:
    assert body_of("dingtalk") == {"msgtype": "text", "text": {"content": TEXT}}
    assert make_chat_request("dingtalk", TEXT, None, NOW_MS).query == ""
    request = make_chat_request("dingtalk", TEXT, SECRET, NOW_MS)
    query = urllib.parse.parse_qs(request.query)
    assert query["timestamp"] == [str(NOW_MS)]
    mac = hmac.new(SECRET.encode(), f"{NOW_MS}\n{SECRET}".encode(), hashlib.sha256)
    assert query["sign"] == [base64.b64encode(mac.digest()).decode()]
    assert "+" not in request.query  # in a query it would be a space


def test_feishu_signs_in_the_body() -> None:
    assert body_of("feishu") == {"msg_type": "text", "content": {"text": NO_TAG}}
    signed = body_of("feishu", secret=SECRET)
    assert signed["timestamp"] == str(NOW_MS // 1000)
    mac = hmac.new(f"{signed['timestamp']}\n{SECRET}".encode(), digestmod=hashlib.sha256)
    assert signed["sign"] == base64.b64encode(mac.digest()).decode()
    assert signed["content"] == {"text": NO_TAG}


@pytest.mark.parametrize("chat", ["slack", "dingtalk", "feishu", "wecom"])
def test_a_long_text_is_cut_at_a_whole_character(chat: AlarmFormat) -> None:
    body = make_chat_request(chat, "超" * 5000, None, NOW_MS).body
    assert len(body) < 2100
    assert "\ufffd" not in body.decode()
    make_chat_request(chat, "\ud800", None, NOW_MS)  # a lone surrogate of an error's text


@pytest.mark.parametrize(
    ("chat", "status", "body", "accepted"),
    [
        ("slack", 200, b"ok", True),
        ("slack", 404, b"no_service", False),
        ("dingtalk", 200, b'{"errcode":0,"errmsg":"ok"}', True),
        ("dingtalk", 200, b'{"errcode":310000,"errmsg":"sign not match"}', False),
        ("dingtalk", 500, b'{"errcode":0}', False),
        ("wecom", 200, b'{"errcode":0}', True),
        ("wecom", 200, b'{"errcode":93000}', False),
        ("feishu", 200, b'{"code":0,"msg":"success"}', True),
        ("feishu", 200, b'{"StatusCode":0}', True),
        ("feishu", 200, b'{"code":19021,"msg":"sign match fail"}', False),
        ("feishu", 200, b"<html>", False),
        ("feishu", 200, b"[0]", False),
        ("feishu", 200, b"[" * 100_000, False),
    ],
)
def test_what_an_answer_means(chat: AlarmFormat, status: int, body: bytes, accepted: bool) -> None:
    assert is_accepted(chat, status, body) is accepted


def test_the_texts() -> None:
    def text(kind: AlarmKind, number: int, detail: str = "") -> str:
        return Alarm(AlarmKey(kind, "order.close"), number, detail).as_text("shop")

    assert text(AlarmKind.DEAD, 1, "job 5: x") == "toc (shop): 1 job of order.close died\njob 5: x"
    assert text(AlarmKind.DEAD, 2) == "toc (shop): 2 jobs of order.close died"
    assert text(AlarmKind.FAILURES, 100) == "toc (shop): 100 failed attempts of order.close"
    assert text(AlarmKind.LATE, 1) == "toc (shop): jobs of order.close are late"
    assert len(text(AlarmKind.DEAD, 1, "x" * 10_000)) < 400
