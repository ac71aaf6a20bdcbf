"""The ready queries of deploy/sql, for people who choose one of them."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import NamedTuple

_COMMENT = re.compile(r"^--.*$", re.MULTILINE)
_PARAMETER = re.compile(r"@([a-z_]+)")


class ReadyQuery(NamedTuple):
    """A file. answers, costs: of its first lines. parameters: the names of the values that it needs."""

    name: str
    answers: str
    costs: str
    parameters: tuple[str, ...]
    statement: str


@functools.cache
def ready_queries() -> dict[str, ReadyQuery]:
    """The queries by name."""
    package = Path(__file__).resolve().parent.parent
    packaged = package / "_queries"  # in an installed wheel
    folder = packaged if packaged.is_dir() else package.parent / "deploy/sql"
    return {path.stem: _read_query(path) for path in sorted(folder.glob("*.sql"))}


def _read_query(path: Path) -> ReadyQuery:
    text = path.read_text("utf-8")
    statement = _COMMENT.sub("", text).strip().rstrip(";")
    head = text[: text.index(statement)]
    paragraphs = [
        " ".join(line.removeprefix("--").strip() for line in part.strip().splitlines())
        for part in re.split(r"^--\s*$", head, flags=re.MULTILINE)
    ]
    costs = next((part for part in paragraphs if part.startswith("Costs: ")), "")
    return ReadyQuery(
        path.stem, paragraphs[0], costs.removeprefix("Costs: ").partition(" Index: ")[0],
        tuple(dict.fromkeys(_PARAMETER.findall(statement))), statement,
    )  # fmt: skip
