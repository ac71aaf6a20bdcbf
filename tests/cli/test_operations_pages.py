"""The commands and the code of the pages for operations, as they stand there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Toc

PAGES = Path(__file__).parents[2] / "docs/how-to"


def blocks(page: str, language: str) -> list[str]:
    text = (PAGES / page).read_text("utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


NEEDS_MORE = {
    "toc nodes": "zookeeper_hosts is 'none'",
    "toc archive show": "reconcile.archive is 'none'",
}
"""Commands that need a part which the test has not; and what they say then."""


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("page", ["on-call.md", "for-dba.md", "for-data-engineers.md"])
def test_the_commands_of_the_page(toc: Toc, page: str) -> None:
    assert toc("schedule", "1", "30m", "--type", "order.close").code == 0
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    assert len(lines) >= 3
    for line in lines:
        ran = toc(*shlex.split(line)[1:])
        if line in NEEDS_MORE:
            assert (ran.code, NEEDS_MORE[line] in ran.err) == (4, True), (line, ran)
        else:
            assert (ran.code, ran.err) == (0, ""), (line, ran)


def test_the_figures_of_the_sizing_page() -> None:
    (code,) = blocks("sizing.md", "python")
    found: dict[str, float] = {}
    exec(compile(code, "sizing.md", "exec"), found)  # noqa: S102 - it is ours
    text = (PAGES / "sizing.md").read_text("utf-8")
    for figure in (
        f"{found['rows']:,} rows, {found['disk_gb']:.0f} GB in MySQL",
        f"{found['binlog_gb_per_day']} GB of binary log a day, {found['redis_mb']:.0f} MB in Redis",
        f"{found['handlers']:.0f} handlers at once",
        f"--rows {found['rows']}",
    ):
        assert figure in text
    assert found["databases"] < 1


def test_the_benchmark_of_the_sizing_page_has_its_options(toc: Toc) -> None:
    (command,) = blocks("sizing.md", "sh")
    shown = toc("bench", "--help").out
    options = [word for word in shlex.split(command) if word.startswith("--")]
    assert [option for option in options if f"  {option} " not in shown] == []
