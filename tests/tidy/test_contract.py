"""docs/explanation/contract.md: each test that it names is there, and it names what it promises."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "explanation/contract.md"
TEXT = PAGE.read_text("utf-8")
LINKS = sorted(set(re.findall(r"\]\(([^)#\s]+)(?:#(\w+))?\)", TEXT)))
FAULTS = TEXT.partition("## Fault by fault")[2].partition("## What is not promised")[0]
ROWS = [line for line in FAULTS.splitlines() if line.startswith("| ")][2:]


@pytest.mark.parametrize(("path", "test"), LINKS, ids=lambda part: part.rpartition("/")[2])
def test_each_link_leads_somewhere(path: str, test: str) -> None:
    target = (PAGE.parent / path).resolve()
    assert target.exists()
    if test:
        tree = ast.parse(target.read_text("utf-8"))
        assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_fault_is_shown_by_a_test() -> None:
    assert len(ROWS) > 20
    assert [
        row for row in ROWS if "](../../tests/" not in row.rstrip(" |").rpartition("|")[2]
    ] == []


@pytest.mark.parametrize(
    "page", ["../README.md", "README.md", "explanation/design.md", "how-to/testing.md"]
)
def test_it_is_found_from(page: str) -> None:
    assert "contract.md" in (DOCS / page).read_text("utf-8")
