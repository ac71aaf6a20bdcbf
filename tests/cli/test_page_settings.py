"""Every block of settings of the tutorial and the how-to pages is accepted, fenced or indented."""

from __future__ import annotations

import ast
import os
import tomllib
from pathlib import Path

import pytest

from tests.tidy.page_blocks import PAGES, indented_blocks, toml_blocks
from toc.runtime.settings import load_settings

BLOCKS = [(page, index) for page in PAGES for index in range(len(toml_blocks(page)))]
OTHER_FILES = {("how-to/sinks.md", 1): "of the pyproject.toml of a plug-in"}
ROLES = toml_blocks("how-to/sign-in.md")[0]
BEFORE = {
    ("how-to/sign-in.md", 1): ROLES,
    ("how-to/sign-in.md", 2): ROLES,
    ("how-to/webhooks.md", 1): "[webhooks]\n",
}
"""What the block continues, by the words of its page."""


@pytest.mark.parametrize(("page", "index"), BLOCKS)
def test_the_settings_of_a_page_are_accepted(
    page: str, index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = BEFORE.get((page, index), "") + toml_blocks(page)[index]
    if (page, index) in OTHER_FILES:
        assert tomllib.loads(block)
        return
    (tmp_path / "toc.toml").write_text(block)
    for name in [name for name in os.environ if name.startswith("TOC_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    load_settings()


def test_the_blocks_are_found() -> None:
    assert len(BLOCKS) > 20
    assert {*OTHER_FILES, *BEFORE} <= set(BLOCKS)


def test_python_is_fenced() -> None:
    """Indented Python would be run by no test (tests/worker/test_page_code.py)."""
    found = [(page, block) for page in PAGES for block in indented_blocks(page) if is_python(block)]
    assert found == []


def is_python(block: str) -> bool:
    try:
        tree = ast.parse(block)
    except SyntaxError:
        return False
    return any(isinstance(node, ast.Call | ast.Import | ast.ImportFrom) for node in ast.walk(tree))
