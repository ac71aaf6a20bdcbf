"""`toc alarms test`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import Toc
from tests.webhooks.receiver import Receiver, answer_with, reply
from toc.cli import exit_codes


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    made = Receiver()
    monkeypatch.setenv("TOC_ALARMS__URL", f"http://127.0.0.1:{made.port}/hook/s3cret")
    monkeypatch.setenv("TOC_WEBHOOKS__ALLOW", '["127.0.0.0/8"]')
    monkeypatch.setenv("TOC_WEBHOOKS__ALLOW_HTTP", '["127.0.0.1"]')
    monkeypatch.setenv("TOC_WEBHOOKS__PORTS", f"[{made.port}]")
    yield made
    made.close()


def test_a_test_message(toc: Toc, receiver: Receiver) -> None:
    result = toc("alarms", "test")
    assert (result.code, result.out) == (0, "slack has taken the message\n")
    assert receiver.requests[0].message == {
        "text": "toc (toc): a test of toc's alarms\nnothing is wrong"
    }
    assert toc("alarms", "test", "--json").json == {"sent": True}


def test_a_chat_that_does_not_take_it(toc: Toc, receiver: Receiver) -> None:
    receiver.answer = answer_with(reply(403, b"invalid_token"))
    result = toc("alarms", "test")
    assert result.code == exit_codes.NO
    assert "the chat has not taken the message: answered 403: invalid_token" in result.err
    assert "s3cret" not in result.err + toc("settings").out + toc("settings", "--json").out


def test_without_a_chat(toc: Toc) -> None:
    result = toc("alarms", "test")
    assert result.code == exit_codes.SETTINGS
    assert "alarms.url: is not set" in result.err
