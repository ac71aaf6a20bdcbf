"""Pages with a Chinese translation beside them, PAGE.zh.md.

Below each heading of a translation stands `<!-- HASH -->`, the hash of the English section that was
translated. `python -m tests.tidy.translations` writes all hashes anew, after the text was translated.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRANSLATED = (
    "README.md",
    "docs/tutorial.md",
    "docs/explanation/contract.md",
    "docs/how-to/production.md",
)
HASH = re.compile(r"^<!-- ([0-9a-f]{8}) -->\n", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Section:
    """A heading, what follows up to the next one, and the lines of code in it, without empty ones."""

    level: int
    title: str
    text: str
    code: tuple[str, ...]

    @property
    def hash(self) -> str | None:
        """Of a translation, as it stands there."""
        found = HASH.match(self.text)
        return found[1] if found else None

    def made_hash(self) -> str:
        return hashlib.sha256(f"{self.title}\n{self.text.strip()}".encode()).hexdigest()[:8]

    def links(self) -> list[str]:
        """The targets, in any order: another language may need another one."""
        return sorted(link.replace(".zh.md", ".md") for link in LINK.findall(self.text))


def translation_of(page: str) -> Path:
    return (ROOT / page).with_suffix(".zh.md")


def sections_of(path: Path) -> list[Section]:
    sections: list[Section] = []
    in_fence = is_code = False
    before = ""
    for line in path.read_text("utf-8").splitlines():
        is_fence = line.lstrip().startswith("```")
        # An indented line directly below prose belongs to that prose.
        is_indented = line.startswith("    ") and (is_code or not before)
        is_code = in_fence or is_fence or is_indented or (is_code and not line)
        in_fence ^= is_fence
        before = line
        if not is_code and (heading := re.fullmatch(r"(#+) (.+)", line)):
            sections.append(Section(len(heading[1]), heading[2], "", ()))
            continue
        last = sections.pop()
        code = (*last.code, line) if is_code and line else last.code
        sections.append(replace(last, text=f"{last.text}{line}\n", code=code))
    return sections


def write_hashes(page: str) -> None:
    english, path = sections_of(ROOT / page), translation_of(page)
    text = ""
    for section, original in zip(sections_of(path), english, strict=True):
        body = HASH.sub("", section.text, count=1).lstrip("\n")
        text += f"{'#' * section.level} {section.title}\n<!-- {original.made_hash()} -->\n\n{body}"
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    for page in TRANSLATED:
        write_hashes(page)
