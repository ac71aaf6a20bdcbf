"""A table of what tests have measured, below pytest's summary."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest


def add_line(request: pytest.FixtureRequest, table: str, line: Sequence[str]) -> None:
    """Adds a line to a table of that name."""
    # A property, not a variable: the test may run in another process than the summary.
    request.node.user_properties.append((table, line))
    sys.stdout.write(" | ".join(line) + "\n")


def write_table(terminalreporter: Any, table: str, title: str, columns: Sequence[str]) -> None:
    """All its lines, as Markdown; nothing if there are none."""
    lines = [
        value
        for outcome in ("passed", "failed")
        for test in terminalreporter.stats.get(outcome, ())
        for name, value in test.user_properties
        if name == table and test.when == "call"
    ]
    if lines:
        terminalreporter.section(title)
        for line in (columns, ("---",) * len(columns), *lines):
            terminalreporter.write_line("| " + " | ".join(line) + " |")
