"""`toc webhooks …`."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Toc
from tests.cli.processes import Process, wait_until
from tests.webhooks.receiver import Receiver, answer_with, reply

SECRET = "whsec_" + "A" * 43 + "="


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def settings(
    servers: dict[str, str], toc: Toc, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Settings that permit the receiver; returns its URL."""
    monkeypatch.setenv("TOC_WEBHOOKS__KEY", toc("webhooks", "key").out.strip())
    monkeypatch.setenv("TOC_WEBHOOKS__ALLOW", '["127.0.0.0/8"]')
    monkeypatch.setenv("TOC_WEBHOOKS__ALLOW_HTTP", '["127.0.0.1"]')
    monkeypatch.setenv("TOC_WEBHOOKS__PORTS", f"[443, {receiver.port}]")
    return f"http://127.0.0.1:{receiver.port}/hook"


def columns(directory: Path, text: str) -> list[list[object]]:
    """The same columns of both databases."""
    found = []
    for index in (0, 1):
        connection = sqlite3.connect(directory / f"{index}.db")
        found.append([value for row in connection.execute(text) for value in row])
        connection.close()
    return found


def test_the_life_of_a_destination(
    toc: Toc, settings: str, receiver: Receiver, tmp_path: Path
) -> None:
    added = toc("webhooks", "add", "shop", settings, "--json")
    assert added.code == 0
    secret = added.json["secret"]
    listed = toc("webhooks", "list", "--json")
    assert listed.json["webhooks"][0]["url"] == settings
    assert secret not in listed.out + toc("webhooks", "list").out
    first, second = columns(tmp_path, "SELECT secret FROM toc_webhook")
    assert first == second
    assert secret not in str(first)

    assert toc("webhooks", "test", "shop").out == "webhook shop answered 200\n"
    receiver.requests[-1].verify(secret)
    assert receiver.requests[-1].message["type"] == "toc.ping"

    rotated = toc("webhooks", "rotate", "shop", "--json")
    assert rotated.json["old_secret_until"]
    toc("webhooks", "test", "shop")
    receiver.requests[-1].verify(secret)
    receiver.requests[-1].verify(rotated.json["secret"])
    again = toc("webhooks", "rotate", "shop")
    assert again.code == 2
    assert "its old secret is in use until" in again.err

    assert toc("webhooks", "disable", "shop", "--reason", "too old").code == 0
    assert toc("webhooks", "disable", "shop").code == 1
    assert "too old" in toc("webhooks", "list").out
    assert toc("webhooks", "enable", "shop").code == 0
    assert toc("webhooks", "enable", "shop").code == 1

    assert toc("webhooks", "remove", "shop").code == 2  # no terminal to confirm at
    assert toc("webhooks", "remove", "shop", "--yes").code == 0
    assert toc("webhooks", "list").out == "there are no webhooks\n"
    sealed = "SELECT secret FROM toc_webhook UNION ALL SELECT old_secret FROM toc_webhook"
    assert columns(tmp_path, sealed) == [[None, None]] * 2
    for command in ("test", "rotate", "enable", "disable"):
        assert "there is no webhook 'shop'" in toc("webhooks", command, "shop").err
    assert toc("webhooks", "add", "shop", settings).code == 0


def test_a_secret_from_a_file_is_not_shown(
    toc: Toc, settings: str, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    added = toc("webhooks", "add", "shop", settings, "--secret-file", tmp_path / "secret")
    assert added.out == "webhook shop is ready\n"
    toc("webhooks", "test", "shop")
    receiver.requests[-1].verify(SECRET)
    (tmp_path / "secret").write_text("whsec_tooshort")
    short = toc("webhooks", "add", "other", settings, "--secret-file", tmp_path / "secret")
    assert short.code == 2
    assert "tooshort" not in short.err
    missing = toc("webhooks", "add", "other", settings, "--secret-file", tmp_path / "none")
    assert (missing.code, missing.err) == (
        2, f"toc: secret-file: cannot be read: No such file or directory; got '{tmp_path}/none'\n",
    )  # fmt: skip


def test_an_answer_that_is_not_2xx_is_a_failed_test(
    toc: Toc, settings: str, receiver: Receiver
) -> None:
    toc("webhooks", "add", "shop", settings)
    receiver.answer = answer_with(reply(302, b"else\x1b[31mwhere", location="http://127.0.0.1/"))
    result = toc("webhooks", "test", "shop")
    assert (result.code, result.out) == (1, "webhook shop answered 302: else\\x1b[31mwhere\n")
    receiver.close()
    gone = toc("webhooks", "test", "shop")
    assert gone.code == 1
    assert gone.err.startswith("toc: webhook shop: ConnectError")


@pytest.mark.parametrize(
    ("name", "url", "text"),
    [
        ("shop", "https://169.254.169.254/", "metadata service"),
        ("shop", "http://hooks.example.com/", "webhooks.allow_http"),
        ("shop", "https://u:p@hooks.example.com/", "no user name"),
        ("a b", "https://hooks.example.com/", "name: must be"),
        ("", "https://hooks.example.com/", "name: must be"),
        ("x" * 65, "https://hooks.example.com/", "name: must be"),
    ],
)
def test_what_is_refused_is_not_written(
    toc: Toc, settings: str, name: str, url: str, text: str
) -> None:
    result = toc("webhooks", "add", name, url)
    assert result.code == 2
    assert text in result.err
    assert toc("webhooks", "list").out == "there are no webhooks\n"


def test_a_name_is_added_once_and_the_table_is_bounded(
    toc: Toc, settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOC_WEBHOOKS__DESTINATIONS_MAX", "2")
    assert toc("webhooks", "add", "one", settings).code == 0
    assert "is a webhook already" in toc("webhooks", "add", "one", settings).err
    assert toc("webhooks", "add", "two", settings).code == 0
    third = toc("webhooks", "add", "three", settings)
    assert third.code == 2
    assert "webhooks.destinations_max (2) rows" in third.err


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (None, "webhooks.key: is not set"),
        ("no-key", "key number 1 is not a key"),
        ("a:" + "A" * 43, "key number 1 is not a key"),
        ("a:" + "A" * 43 + "=,a:" + "B" * 43 + "=", "key number 2 has the id 'a' again"),
        (" ".join(f"k{n}:{'A' * 43}=" for n in range(17)), "has 17 keys"),
    ],
)
def test_a_bad_key_is_refused_and_not_shown(
    toc: Toc, settings: str, monkeypatch: pytest.MonkeyPatch, key: str | None, text: str
) -> None:
    monkeypatch.delenv("TOC_WEBHOOKS__KEY")
    if key is not None:
        monkeypatch.setenv("TOC_WEBHOOKS__KEY", key)
    result = toc("webhooks", "add", "shop", settings)
    assert result.code == 4
    assert text in result.err
    assert "AAAA" not in result.err + toc("settings").out


def test_with_both_keys_the_secrets_are_encrypted_again(
    toc: Toc, settings: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = toc("webhooks", "add", "shop", settings, "--json").json["secret"]
    toc("webhooks", "rotate", "shop")
    new, old = toc("webhooks", "key").out.strip(), os.environ["TOC_WEBHOOKS__KEY"]
    monkeypatch.setenv("TOC_WEBHOOKS__KEY", new)
    assert "is encrypted by the key" in toc("webhooks", "test", "shop").err
    monkeypatch.setenv("TOC_WEBHOOKS__KEY", f"{new},{old}")
    assert toc("webhooks", "rekey", "--json").json == {"changed": 1}
    assert toc("webhooks", "rekey", "--json").json == {"changed": 0}
    monkeypatch.setenv("TOC_WEBHOOKS__KEY", new)
    assert toc("webhooks", "test", "shop").code == 0
    receiver.requests[-1].verify(secret)


def test_a_worker_process_sends_the_jobs_of_a_type(
    toc: Toc, settings: str, receiver: Receiver, start: Callable[..., Process]
) -> None:
    secret = toc("webhooks", "add", "shop", settings, "--json").json["secret"]
    declared = toc("types", "declare", "order.close", "--sink", "webhook:shop")
    assert declared.code == 0, declared.err
    assert toc("worker", "--sinks-only", "--app", "shop").code == 2
    in_force = {name: value for name, value in os.environ.items() if name.startswith("TOC_")}
    start(in_force, "worker", "--sinks-only").says("runs types with a sink", 60)
    job_id = toc("schedule", 42, "0s", "--type", "order.close", "--json").json["job_id"]
    wait_until(lambda: bool(receiver.requests), "the request", 60)
    receiver.requests[0].verify(secret)
    assert receiver.requests[0].headers["webhook-id"] == job_id
