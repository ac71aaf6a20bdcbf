"""The pages of docs/: every link and every path leads to a file, and the index names every page."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.reference_pages import PAGES as MADE
from tests.tidy.reference_pages import REFERENCE

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
PATH = re.compile(r"(?<![\w./-])(?:docs|deploy|migrations)/[\w./-]*\w\.(?:md|sql|py)\b")


SUFFIXES = {".md", ".py", ".lua", ".pml", ".sql", ".toml", ".c", ""}
FOLDERS = ("docs", "toc", "tests", "deploy", "migrations")
BELOW = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))
FILES = sorted(
    path for path in (*ROOT.iterdir(), *BELOW) if path.is_file() and path.suffix in SUFFIXES
)
PAGES = [path for path in FILES if path.suffix == ".md"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    """A page without its code: an index in brackets before a call looks like a link."""
    text = re.sub(r"^```.*?^```", "", path.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


@cache
def anchors(path: Path) -> set[str]:
    """What a link into a page (its headings, as GitHub names them) or a module (its functions) may name."""
    text = path.read_text("utf-8")
    if path.suffix == ".py":
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        return {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, functions)}
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    broken = []
    for link, anchor in LINK.findall(prose(page)):
        if "://" in link:
            continue
        target = (page.parent / link).resolve() if link else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{link}#{anchor}" if anchor else link)
    assert broken == []


def test_no_page_installs_the_project_of_that_name_on_pypi() -> None:
    """In a new environment `pip install toc` would fetch what strangers have written."""
    command = re.compile(r"pip install (?!-)\W*toc\b.*")
    found = [
        (name_of(page), line)
        for page in PAGES
        if page != REFERENCE / "cli.md"  # the help of toc, which is installed already
        for line in command.findall(page.read_text("utf-8"))
    ]
    assert found == []


def test_every_path_that_a_file_names_is_there() -> None:
    named = {
        (name_of(path), found)
        for path in FILES
        for found in PATH.findall(path.read_text("utf-8", errors="replace"))
    }
    assert len(named) > 20
    assert sorted((by, path) for by, path in named if not (ROOT / path).exists()) == []


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text("utf-8")
    linked = {(DOCS / link).resolve() for link, _ in LINK.findall(index)}
    pages = {path for path in DOCS.rglob("*.md") if path.parent.name != "adr"}
    assert sorted(map(name_of, pages - linked)) == ["docs/README.md"]


@pytest.mark.parametrize("page", MADE)
def test_a_page_that_is_made_is_up_to_date(page: str) -> None:
    made = MADE[page]()
    assert (REFERENCE / page).read_text("utf-8") == made, "run `make reference`"
