"""The requests of Slack, DingTalk, Feishu and WeCom, with their signatures, and what their answers mean.

DingTalk, Feishu and WeCom answer 200 to a refused request too: the code is in the body.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any, Literal, NamedTuple
from urllib.parse import quote_plus

AlarmFormat = Literal["slack", "dingtalk", "feishu", "wecom"]
TEXT_BYTES_MAX = 2000
"""WeCom takes 2048 bytes, the others more."""
FULLWIDTH_LESS = "\uff1c"
_CALLED_BY_TAGS: tuple[AlarmFormat, ...] = ("feishu", "wecom")
"""Chats in which `<at user_id="all">` or `<@userid>` in a text calls people."""


class ChatRequest(NamedTuple):
    """query: what is added to the query of the URL, without the "&" or "?" before it; "": nothing."""

    body: bytes
    query: str = ""


def make_chat_request(chat: AlarmFormat, text: str, secret: str | None, now_ms: int) -> ChatRequest:
    """The request for one message. `secret`: signs it (DingTalk and Feishu). `now_ms`: ms since 1970.

    The text calls nobody, whatever an error's text says.
    """
    if chat in _CALLED_BY_TAGS:
        text = text.replace("<", FULLWIDTH_LESS)  # there is no escape
    text = text.encode(errors="replace")[:TEXT_BYTES_MAX].decode(errors="ignore")
    return _MAKERS[chat](text, secret, now_ms)


def _make_slack(text: str, secret: str | None, now_ms: int) -> ChatRequest:
    # Otherwise "<!channel>" in an error's text would call everybody.
    for char, escaped in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(char, escaped)
    return ChatRequest(_to_json({"text": text}))


def _make_dingtalk(text: str, secret: str | None, now_ms: int) -> ChatRequest:
    body = _to_json({"msgtype": "text", "text": {"content": text}})
    if secret is None:
        return ChatRequest(body)
    signed = f"{now_ms}\n{secret}".encode()
    sign = base64.b64encode(hmac.digest(secret.encode(), signed, hashlib.sha256)).decode()
    return ChatRequest(body, f"timestamp={now_ms}&sign={quote_plus(sign)}")


def _make_feishu(text: str, secret: str | None, now_ms: int) -> ChatRequest:
    message: dict[str, Any] = {"msg_type": "text", "content": {"text": text}}
    if secret is not None:
        now_s = now_ms // 1000
        key = f"{now_s}\n{secret}".encode()  # Feishu signs an empty text with this as the key
        sign = base64.b64encode(hmac.digest(key, b"", hashlib.sha256)).decode()
        message |= {"timestamp": str(now_s), "sign": sign}
    return ChatRequest(_to_json(message))


def _make_wecom(text: str, secret: str | None, now_ms: int) -> ChatRequest:
    return ChatRequest(_to_json({"msgtype": "text", "text": {"content": text}}))


_MAKERS: dict[AlarmFormat, Callable[[str, str | None, int], ChatRequest]] = {
    "slack": _make_slack,
    "dingtalk": _make_dingtalk,
    "feishu": _make_feishu,
    "wecom": _make_wecom,
}
_CODES: dict[AlarmFormat, tuple[str, ...]] = {
    "slack": (), "dingtalk": ("errcode",), "feishu": ("code", "StatusCode"), "wecom": ("errcode",),
}  # fmt: skip


def is_accepted(chat: AlarmFormat, status: int, body: bytes) -> bool:
    """Whether the chat has taken the message."""
    if not 200 <= status <= 299:
        return False
    names = _CODES[chat]
    if not names:
        return True
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and any(found.get(name) == 0 for name in names)


def _to_json(message: dict[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
