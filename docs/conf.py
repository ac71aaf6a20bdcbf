"""Sphinx settings of `make docs`. docs/README.md is the only list of pages: the sidebar is made from it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parent

project = "toc"
extensions = ["myst_parser"]
root_doc = "README"
myst_heading_anchors = 4  # links name headings as GitHub does
html_theme = "furo"
html_title = "toc"
html_copy_source = False
smartquotes = False  # a text in quotation marks is meant letter by letter
highlight_language = "none"  # indented blocks are commands and what they print

SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
PAGE_LINK = re.compile(r"\]\(([\w./-]+)\.md\)")
UPWARD_LINK = re.compile(r"\[([^]\n]+)\]\(((?:\.\./)+[^)#\s]*)(?:#[^)\s]*)?\)")


def prepare_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the sidebar's lists to the two indexes, and make links out of docs/ fit for a site."""
    text = source[0]
    if name == root_doc:
        text += "".join(
            toctree(title, PAGE_LINK.findall(part)) for title, part in SECTION.findall(text)
        )
    elif name == "adr/README":
        text += toctree("Decisions", sorted(page.stem for page in (DOCS / "adr").glob("0*.md")))
    page = DOCS / f"{name}.md"
    source[0] = UPWARD_LINK.sub(lambda link: outside_link(page, link), text)


def toctree(title: str, pages: list[str]) -> str:
    listed = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{listed}\n```\n"


def outside_link(page: Path, link: re.Match[str]) -> str:
    """The site has a copy of a file outside docs/ that a page links to. A folder is only named."""
    text, path = link.groups()
    target = (page.parent / path).resolve()
    if target.is_dir():
        return text
    if DOCS in target.parents:
        return link[0]
    return f"{{download}}`{text.replace('`', '')} <{path}>`"


def setup(app: Sphinx) -> None:
    app.connect("source-read", prepare_page)
