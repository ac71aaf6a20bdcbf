"""`make docs`: Sphinx builds docs/ without warnings, and every link inside the site has its target."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

pytestmark = pytest.mark.timeout(600)  # Sphinx needs 10 s of a processor, which others may be using
DOCS = Path(__file__).parents[2] / "docs"


class Page(HTMLParser):
    """The ids of a page, its links, and the addresses of what a browser loads with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if identity := given.get("id"):
            self.ids.add(identity)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        elif address := given.get("src") or given.get("href"):
            self.loaded.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("sphinx") is None:
        assert not os.environ.get("CI"), "Sphinx is missing"
        pytest.skip("Sphinx is missing: make setup-all installs it")
    folder = tmp_path_factory.mktemp("site")
    # As in the Makefile.
    command = f"-m sphinx -W --keep-going -n -q -d {folder}/doctrees {DOCS} {folder}/html"
    built = subprocess.run(
        [sys.executable, *command.split()], capture_output=True, text=True, check=False, timeout=550
    )
    assert (built.returncode, built.stderr) == (0, "")
    return folder / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_the_site_has_every_page(site: Path, pages: dict[Path, Page]) -> None:
    sources = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert len(sources) > 100
    assert sources - {path.relative_to(site) for path in pages} == set()


def test_every_link_inside_the_site_has_its_target(pages: dict[Path, Page]) -> None:
    checked = 0
    broken: list[str] = []
    for path, page in pages.items():
        for link in inside(page.links):
            name, _, anchor = unquote(link).partition("#")
            target = (path.parent / name).resolve() if name else path
            checked += 1
            if not target.is_file() or (anchor and anchor not in pages[target].ids):
                broken.append(f"{path.name}: {link}")
    assert checked > 1000
    assert broken == []


def test_a_page_loads_nothing_from_other_hosts(pages: dict[Path, Page]) -> None:
    loaded = {address for page in pages.values() for address in page.loaded}
    assert loaded != set()
    assert sorted(loaded - set(inside(loaded))) == []


def inside(addresses: list[str] | set[str]) -> Iterator[str]:
    for address in addresses:
        if not address.startswith(("https:", "http:", "//", "mailto:")):
            yield address
