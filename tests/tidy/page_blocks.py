"""What a reader of the tutorial and the how-to pages would run: blocks of Python, and shell commands."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
FOUND = [path.relative_to(DOCS).as_posix() for path in sorted((DOCS / "how-to").glob("*.md"))]
PAGES = ["tutorial.md", *(page for page in FOUND if not page.endswith(".zh.md"))]
PROGRAMS = (
    "toc|/opt/toc/bin/(?:toc|pip)|python3?|pip|make|curl|chmod|mysql|mysqldump|export|spark-submit|systemctl|kubectl"
    "|docker|useradd|mkdir|install|cp|echo"
)
COMMAND = re.compile(rf"\$ (.+)|((?:[A-Z_]+=\S+ )*(?:{PROGRAMS}|promtool) .+)")
"""In an indented block: a line behind a prompt, or one that begins with a known program."""
CONTINUED = re.compile(r"\\\n *")
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)


def text_of(page: str) -> str:
    return (DOCS / page).read_text("utf-8")


def python_blocks(page: str) -> list[str]:
    found = FENCE.findall(text_of(page))
    return [
        re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
        for indent, language, code in found
        if language == "python"
    ]


def indented_blocks(page: str) -> list[str]:
    """Blocks of code, or of what a command prints, that stand between empty lines."""
    text = FENCE.sub("", text_of(page))
    found = re.findall(r"(?:^|(?<=\n\n))(?:    .*\n(?: *\n(?=    ))?)+", text)
    return [textwrap.dedent(block) for block in found]


def toml_blocks(page: str) -> list[str]:
    """Settings, fenced or indented: an indented block with a table, as "[retention]", is of settings."""
    fenced = [code for _, language, code in FENCE.findall(text_of(page)) if language == "toml"]
    indented = [code for code in indented_blocks(page) if re.match(r"\[[\w.\"-]+\]\n", code)]
    return [*map(textwrap.dedent, fenced), *indented]


def shell_commands(page: str) -> list[str]:
    """The commands in fenced `sh` blocks, and in indented blocks, each as one line without its comment."""

    def in_fence(found: re.Match[str]) -> str:
        code = CONTINUED.sub("", found[3]) if found[2] == "sh" else ""
        return "".join(f"    $ {line}\n" for line in code.splitlines())

    lines = iter(CONTINUED.sub("", FENCE.sub(in_fence, text_of(page))).splitlines())
    commands = []
    for line in lines:
        found = COMMAND.fullmatch(line.strip()) if line.startswith("    ") else None
        if found is None:
            continue
        command = found[1] or found[2]
        while not is_closed(command):  # a quotation goes on in the next line
            command += " " + next(lines).strip().removeprefix("$ ")
        commands.append(re.sub(r" +# .*", "", command))
    return commands


def is_closed(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True
