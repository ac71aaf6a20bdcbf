"""Guards: the lines that the protocols stand on, marked in toc by `# guard: NAME` (in Lua `-- guard: NAME`).

A mark stands at the end of its line and marks the largest statement, or element of a call or a tuple, that
begins this line. On a line that begins with a closing bracket it marks the one that ends there: the formatter
moves a comment to that line. A `Change` says what becomes of the marked code; it names neither a file nor the
code itself, so that both may be moved and reformatted.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MARK = re.compile(r"(?:#|--) guard: ([a-z0-9-]+)$", re.MULTILINE)
OLD, ARGUMENT = "$old", "$argument"
LUA_EXPRESSIONS = (r"if (.*) then", r"local \w+ = (.*)")


class GuardError(Exception):
    """A guard is missing, is marked twice, or is nothing that can be changed as asked."""


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of the code that has the mark `guard`. In this order:

    after, before: statements that are put beside it.
    expression: stands in the place of its expression: of the element itself, of the value of an assignment,
        `return` or keyword, of the condition of `if` and `while`, of what `for` goes through. In it "$old" is
        the old expression, and "$argument" the first argument of that, which is a call.
    removed: an element goes away with its comma; a statement becomes `pass`.
    """

    guard: str
    after: str = ""
    before: str = ""
    expression: str = ""
    removed: bool = False

    def apply(self, root: Path) -> None:
        """Changes the one file below `root` that has the mark. Raises GuardError."""
        file = self.find_file(root)
        file.write_text(self.change_text(file, file.read_text("utf-8")), "utf-8")

    def find_file(self, root: Path) -> Path:
        """The one file below `root` that has the mark. Raises GuardError."""
        files = [file for name, file in marks(root) if name == self.guard]
        if len(files) != 1:
            raise GuardError(f'guard "{self.guard}" is marked in {len(files)} places, not in 1')
        return files[0]

    def change_text(self, file: Path, text: str) -> str:
        """The changed text of the file that has the mark. Raises GuardError."""
        return self._in_lua(text) if file.suffix == ".lua" else self._in_python(text)

    def _line(self, text: str) -> int:
        names = [MARK.search(line) for line in text.splitlines()]
        return [found is not None and found[1] == self.guard for found in names].index(True)

    def _in_lua(self, text: str) -> str:
        lines, at = text.splitlines(keepends=True), self._line(text)
        code = lines[at][: lines[at].index("-- guard:")].strip()
        found = next(filter(None, (re.fullmatch(each, code) for each in LUA_EXPRESSIONS)), None)
        if found is None or not self.expression:
            raise GuardError(f'guard "{self.guard}": nothing in "{code}" can be changed')
        made = self.expression.replace(OLD, found[1])
        lines[at] = lines[at].replace(found[1], made, 1)
        return "".join(lines)

    def _in_python(self, text: str) -> str:
        source = Source(text)
        unit = source.unit(self._line(text) + 1, self.guard)
        start, end = source.span(unit.node)
        beside = self.after or self.before
        if beside and not isinstance(unit.node, ast.stmt):
            raise GuardError(f'guard "{self.guard}" is no statement: nothing can be put beside it')
        indent = " " * unit.column
        # From behind to the front: what stands before a change stays where it is.
        if self.after:
            line_end = text.index("\n", end) + 1
            text = text[:line_end] + textwrap.indent(self.after, indent) + "\n" + text[line_end:]
        if self.expression:
            first, last = source.span(unit.expression)
            text = text[:first] + self._expression(source, unit, text) + text[last:]
        if self.removed:
            comma = re.compile(r"\s*,").match(text, end)
            if isinstance(unit.node, ast.stmt):
                text = f"{text[:start]}pass{text[end:]}"
            elif comma is not None:
                text = text[:start] + text[comma.end() :]
            else:
                raise GuardError(f'guard "{self.guard}" is no statement, and has no comma')
        if self.before:
            put = textwrap.indent(self.before, indent).lstrip()
            text = f"{text[:start]}{put}\n{indent}{text[start:]}"
        return text

    def _expression(self, source: Source, unit: Unit, text: str) -> str:
        def said(node: ast.expr) -> str:
            first, last = source.span(node)
            return text[first:last]

        made = self.expression.replace(OLD, said(unit.expression))
        if ARGUMENT not in made:
            return made
        if not (isinstance(unit.expression, ast.Call) and unit.expression.args):
            raise GuardError(f'guard "{self.guard}" is no call with an argument')
        return made.replace(ARGUMENT, said(unit.expression.args[0]))


@dataclass(frozen=True, slots=True)
class Unit:
    """A statement, an element, or the `for` of a comprehension, which begins `column` characters into its line.

    `expression`: the part of `node` that Change.expression is for.
    """

    node: ast.AST
    expression: ast.expr
    line: int
    column: int
    last_line: int


class Source:
    """A Python file, and what in it can have a mark."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._tree = ast.parse(text)

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where it begins and ends in the text."""
        return (
            self._at(node.lineno, node.col_offset),
            self._at(node.end_lineno, node.end_col_offset),
        )

    def _at(self, line: int, byte: int) -> int:
        """AST counts bytes."""
        return self._starts[line - 1] + self._column(line, byte)

    def _column(self, line: int, byte: int) -> int:
        return len(self._lines[line - 1].encode()[:byte].decode())

    def unit(self, line: int, name: str) -> Unit:
        """What a mark on this line marks."""
        text = self._lines[line - 1]
        column = len(text) - len(text.lstrip())
        closes = text[column] in ")]}"
        found = [
            unit
            for unit in self._units()
            if unit.column == column and line == (unit.last_line if closes else unit.line)
        ]
        if not found:
            raise GuardError(f'guard "{name}": nothing that can be changed is on its line')
        return max(found, key=lambda unit: self.span(unit.node)[1])  # the first: a parent

    def _units(self) -> Iterator[Unit]:
        """Parents before children."""
        for node in ast.walk(self._tree):
            inner = expression_of(node)
            if inner is None:
                continue
            if isinstance(node, ast.comprehension):  # has no place of its own
                words = 10 if node.is_async else 4  # "async for ", "for "
                line, byte = node.target.lineno, node.target.col_offset - words
                yield Unit(inner, inner, line, self._column(line, byte), inner.end_lineno)
                continue
            head = inner if isinstance(node, (ast.If, ast.While, ast.For, ast.AsyncFor)) else node
            column = self._column(node.lineno, node.col_offset)
            yield Unit(node, inner, node.lineno, column, head.end_lineno)


def expression_of(node: ast.AST) -> ast.expr | None:
    """The part of it that Change.expression is for; None: it cannot have a mark."""
    if isinstance(node, ast.expr) and not isinstance(node, ast.Starred):
        return node
    for name in ("value", "test", "iter"):
        part = getattr(node, name, None)
        if isinstance(part, ast.expr):
            return part
    return None


def marks(root: Path) -> Iterator[tuple[str, Path]]:
    """The name and file of every mark below `root`."""
    for file in sorted(root.rglob("*")):
        if file.suffix in (".py", ".lua"):
            for found in MARK.finditer(file.read_text("utf-8")):
                yield found[1], file
