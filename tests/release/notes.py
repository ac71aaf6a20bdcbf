"""The release notes: the section of a version in CHANGELOG.md."""

from __future__ import annotations

import re

UNRELEASED = "Unreleased"


def notes_of(changelog: str, version: str) -> tuple[str, str]:
    """The title and the text of the section of this version, or of "Unreleased" if it has none yet."""
    parts = re.split(r"^## (.+)\n", changelog, flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    for title, text in sections.items():
        if title.split(" ")[0].strip("[]") == version:
            return title, text.strip() + "\n"
    return UNRELEASED, sections[UNRELEASED].strip() + "\n"
