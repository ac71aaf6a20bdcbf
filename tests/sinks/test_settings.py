"""`[sinks]`: the file, variables, what is refused, and that no password is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Toc, toc  # noqa: F401 - a fixture
from toc.domain.secret_masking import reveal_secret
from toc.errors import SettingsError
from toc.runtime.settings import load_settings
from toc.sinks.kinds import destinations_of

FILE = """
[sinks.rabbitmq.orders]
url = "amqp://toc:h1dden@rabbit:5672/"
options = { exchange = "shop" }
concurrency = 7
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "toc.toml"
    path.write_text(FILE)
    monkeypatch.setenv("TOC_CONFIG", str(path))
    return path


def test_file_and_variables_together(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"redis-stream": {"orders": {"url": "redis://:h1dden@r/1", "timeout_s": 3600}}}
    monkeypatch.setenv("TOC_SINKS", json.dumps(given))
    monkeypatch.setenv("TOC_SINKS__RABBITMQ__ORDERS__BATCH_MAX", "5")
    settings = load_settings()
    group = settings.sinks["rabbitmq"]["orders"]
    assert (group.concurrency, group.batch_max, group.options) == (7, 5, {"exchange": "shop"})
    found = destinations_of(settings)
    assert found["rabbitmq", "orders"].url == "amqp://toc:h1dden@rabbit:5672/"
    stream = found["redis-stream", "orders"]
    assert stream.url == "redis://:h1dden@r/1"
    assert stream.timeout_s == settings.worker.lease_s - settings.worker.lease_margin_s
    assert "h1dden" not in repr(settings) + repr(found)


def test_no_command_shows_a_password(toc: Toc, file: Path) -> None:  # noqa: F811 - the fixture
    file.write_text(
        FILE + '[sinks.kafka.a]\nurl = "kafka://h:9092"\noptions = {"sasl.password" = "h1dden"}\n'
    )
    shown = toc("settings").out + toc("settings", "--json").out
    assert "h1dden" not in shown
    assert "amqp://toc:***@rabbit:5672/" in shown
    assert "sinks.rabbitmq.orders.concurrency" in shown
    options = load_settings().sinks["kafka"]["a"].options
    assert reveal_secret(options["sasl.password"]) == "h1dden"


@pytest.mark.parametrize(
    ("sinks", "text"),
    [
        ({"rabbitmq": {"orders": {}}}, "rabbitmq.orders: url must be set"),
        ({"Rabbit": {"orders": {"url": "amqp://h"}}}, "must be KIND:NAME"),
        (
            {"rabbitmq": {"or/ders": {"url": "amqp://h"}}},
            "a name has no /",
        ),
        ({"rabbitmq": {"orders": {"url": "amqp://h", "batch": 5}}}, "unknown setting"),
        ({"rabbitmq": {"orders": {"url": "amqp://:h1dden@h", "batch_max": 0}}}, "batch_max"),
        (
            {"rabbitmq": {"orders": {"url": "amqp://h", "open_s": 5, "open_s_max": 1}}},
            "open_s_max .1. must be at least open_s .5.",
        ),
    ],
)
def test_refused_settings(sinks: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text) as caught:
        load_settings(sinks=sinks)
    assert "h1dden" not in str(caught.value)
