"""Tables of what tests have measured, below pytest's summary."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest


def add_line(request: pytest.FixtureRequest, table: str, line: Sequence[str]) -> None:
    """Adds a line to one of `TABLES`."""
    # A property, not a variable: the test may run in another process than the summary.
    request.node.user_properties.append((table, line))
    sys.stdout.write(" | ".join(line) + "\n")


TABLES = {
    "variants": (
        "the first seeds that catch broken variants: write them down in tests/simulation/broken.py",
        ("variant", "known seed", "seed"),
    ),
    "model": (
        "what the model went through",
        ("variant", "result", "states", "transitions", "seconds", "MB"),
    ),
    "reliability": (
        "what was measured",
        ("what happened", "jobs", "lost", "early", "twice", "p99 late", "worst late", "besides"),
    ),
    "damage": (
        "damage that was drawn",
        (
            "seed",
            "drawn",
            "found",
            "named rightly",
            "repaired",
            "fired once",
            "healthy",
            "of these accused",
        ),
    ),
    "killed": (
        "runs of the reconciliation that were killed",
        ("phase", "master", "shards that the next run did not compare again"),
    ),
    "spark": (
        "what ran on a Spark cluster",
        ("what", "master", "application", "executors", "seconds"),
    ),
    "panels": (
        "what each panel of deploy/grafana showed",
        ("dashboard", "panel", "unit", "values"),
    ),
}
"""Title and columns of each table, by name."""


def write_tables(terminalreporter: Any) -> None:
    """Writes each table that has lines, as Markdown."""
    for name, (title, columns) in TABLES.items():
        lines = [
            value
            for outcome in ("passed", "failed")
            for test in terminalreporter.stats.get(outcome, ())
            for table, value in test.user_properties
            if table == name and test.when == "call"
        ]
        if lines:
            terminalreporter.section(title)
            for line in (columns, ("---",) * len(columns), *lines):
                terminalreporter.write_line("| " + " | ".join(line) + " |")
