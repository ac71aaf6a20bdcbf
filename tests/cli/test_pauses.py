"""`toc pause`, `toc resume`, `toc pauses`, and what `toc status` says of pauses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Toc
from toc.cli import exit_codes

PAGE = Path(__file__).parents[2] / "docs/how-to/pause.md"


@pytest.mark.usefixtures("servers")
def test_pause_list_and_resume(toc: Toc) -> None:
    made = toc("pause", "order.close", "--until", "2h", "--reason", "the shop is down")
    assert made.code == exit_codes.OK, made.err
    assert re.fullmatch(
        r"type:order.close is paused until \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ, by \S+@\S+: the shop is down\n",
        made.out,
    )
    assert toc("pause", "--topic", "default").code == exit_codes.OK
    assert toc("pause", "--all", "--json").json["target"] == "all"
    listed = toc("pauses", "--json").json
    assert [(each["target"], each["state"]) for each in listed] == [
        ("all", "paused"), ("topic:default", "paused"), ("type:order.close", "paused"),
    ]  # fmt: skip
    status = toc("status")
    assert "type:order.close is paused until" in status.out
    assert "ramping" in toc("resume", "order.close", "--json").out
    assert "50" in toc("pauses").out
    for target in (["order.close"], ["--topic", "default"], ["--all"]):
        assert toc("resume", *target, "--now").code == exit_codes.OK
    assert toc("pauses").out == "nothing is paused\n"


@pytest.mark.usefixtures("servers")
def test_a_type_that_nobody_knows_is_paused_with_a_warning(toc: Toc) -> None:
    assert toc("schedule", "1", "1h", "--type", "known.type").code == exit_codes.OK
    assert toc("pause", "known.type").err == ""
    mistyped = toc("pause", "known.typo")
    assert mistyped.code == exit_codes.OK
    assert "no job has ever had the type 'known.typo'" in mistyped.err
    for name in ("known.type", "known.typo"):
        toc("resume", name, "--now")


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["a", "--all"],
        ["a", "--topic", "b"],
        ["a:b"],
        ["--topic", ""],
        ["a", "--until", "2020-01-01T00:00Z"],
    ],
)
def test_a_wrong_pause_is_a_usage_error(toc: Toc, words: list[str]) -> None:
    assert toc("pause", *words).code == exit_codes.USAGE
    assert toc("pauses").out == "nothing is paused\n"


@pytest.mark.usefixtures("servers")
def test_the_commands_of_the_page_run(toc: Toc) -> None:
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for line in commands.splitlines():
        words = re.findall(r'"([^"]*)"|(\S+)', line)
        result = toc(*[quoted or plain for quoted, plain in words[1:]])
        assert result.code == exit_codes.OK, (line, result.err)
