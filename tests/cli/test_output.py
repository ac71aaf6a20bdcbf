"""Tables on terminals of any width."""

from __future__ import annotations

import os
import pty
import sys
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

import pytest
from rich.console import Console

from toc.cli import output
from toc.cli.output import Output
from toc.cli.status import _sort_worst_first

COLUMNS = ("job_id", "type", ">tries", "due", "why")
WHY = "the handler raised: the shop's payment service did not answer [503] in time"
ROWS = [
    ("1234567890123456789", "order.close", "16", "2026-11-23 11:16:11.123Z", WHY),
    ("1234567890123456780", "order.remind", "1", "-", ""),
]


def table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int) -> str:
    monkeypatch.setattr(output, "make_console", lambda: Console(width=width))
    Output(as_json=False).print_table(None, COLUMNS, ROWS, empty="")
    return capsys.readouterr().out


@pytest.mark.parametrize("width", [250, 120, 80, 72, 60, 40, 20])
def test_no_word_of_a_table_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    words = table(monkeypatch, capsys, width).split()
    for row in ROWS:
        for word in " ".join(row).split():
            assert word in words, width


@pytest.mark.parametrize("width", [250, 120, 80])
def test_a_table_is_not_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    lines = table(monkeypatch, capsys, width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].split() == ["job_id", "type", "tries", "due", "why"]


def test_where_the_words_of_a_row_do_not_fit_each_cell_has_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert table(monkeypatch, capsys, 40).splitlines() == [
        "job_id   1234567890123456789",
        "type     order.close",
        "tries    16",
        "due      2026-11-23 11:16:11.123Z",
        f"why      {WHY}",
        "",
        "job_id   1234567890123456780",
        "type     order.remind",
        "tries    1",
        "due      -",
    ]


def test_states_have_colours_on_a_terminal(tmp_path: Path) -> None:
    """`toc status` on a terminal, where nothing has been set up: the databases are down."""
    terminal, end = pty.openpty()
    unset = ("TOC_", "NO_COLOR", "FORCE_COLOR", "TTY_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(unset)}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "80"}
    process = Popen(
        [sys.executable, "-m", "toc", "status"], stdin=end, stdout=end, stderr=end,
        cwd=tmp_path, env=environment,
    )  # fmt: skip
    os.close(end)
    shown = b""
    with suppress(OSError):  # the terminal's other end is closed when the process has ended
        while part := os.read(terminal, 65_536):
            shown += part
    os.close(terminal)
    assert process.wait(30) == 1
    assert b"\x1b[1;31mdown" in shown


def test_the_status_shows_the_worst_first_whoever_says_it() -> None:
    lines = [
        {"state": state, "part": part}
        for state, part in (
            ("up", "redis"), ("degraded", "watch"), ("up", "database_0"), ("down", "jobs")
        )
    ]  # fmt: skip
    assert [line["part"] for line in _sort_worst_first(lines)] == [
        "jobs", "watch", "database_0", "redis",
    ]  # fmt: skip
