"""The commands and the settings of docs/how-to/limits.md, as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Toc

PAGE = (Path(__file__).parents[2] / "docs/how-to/limits.md").read_text("utf-8")
COMMANDS = re.findall(r"^    toc (types set [^#\n]+)", PAGE, re.MULTILINE)
SETTINGS = re.findall(r"(?:^    (?:\[types|rate|concurrency).*\n)+", PAGE, re.MULTILINE)


@pytest.mark.usefixtures("servers")
def test_the_commands_of_the_page_are_accepted(toc: Toc) -> None:
    assert len(COMMANDS) == 4
    for name in {shlex.split(command)[2] for command in COMMANDS}:
        toc("types", "declare", name)
    for command in COMMANDS:
        words = shlex.split(command)
        changed = toc(*words)
        assert changed.code == 0, changed.err
    assert "at once, per payload.shop" in toc("types", "list").out
    last = toc("types", "show", "order.close", "--json").json
    assert last["limits"] is None


@pytest.mark.usefixtures("servers")
def test_the_settings_of_the_page_are_applied(toc: Toc) -> None:
    (text,) = SETTINGS
    Path("toc.toml").write_text(re.sub(r"^    ", "", text, flags=re.MULTILINE))
    assert toc("types", "apply").code == 0
    assert toc("types", "show", "order.close", "--json").json["declared"] == {
        "mode": "handler", "rate": "500/s", "concurrency": 20,
    }  # fmt: skip
