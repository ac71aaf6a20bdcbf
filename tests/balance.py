"""Shares the tests out among the processes of `make test`: the files that take longest begin first.

`durations.json` holds how many seconds each file took; `make durations` measures them anew. All tests of a
file run in one process, because its fixtures are made once per process. The test functions of a file in
SPLIT_S or more are shared out one by one, because no file may take as long as the whole run; the tests of
SINGLE_FILES even with each of their parameters.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.alone import is_alone

DURATIONS = Path(__file__).with_name("durations.json")
SPLIT_S = 45.0
NEW_FILE_S = 10.0
"""Expected of a file that is not in `durations.json`."""
SINGLE_FILES = {"tests/model/test_model.py", "tests/simulation/test_simulation.py"}
"""The files whose tests share next to nothing, and need the processor all the time: they fill up the end of
the run, when the tests that mostly wait are done.
"""
SPARK_FILES = {
    "tests/reconcile/test_archive.py",
    "tests/reconcile/test_nightly_command.py",
    "tests/reconcile/test_reads_per_database.py",
    "tests/reconcile/test_run.py",
}
"""The files whose tests share a Spark session."""

WRITE = "TOC_TEST_DURATIONS"
"""The environment variable that makes a run write `durations.json`: `make durations` sets it."""

_seconds: dict[str, float] = json.loads(DURATIONS.read_text("utf-8"))
_measured: Counter[str] = Counter()
_tests: Counter[str] = Counter()


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def seconds_of(nodeid: str) -> float:
    """How long the test's file is expected to take; of one that is shared out alone: the test."""
    file = file_of(nodeid)
    seconds = _seconds.get(file, NEW_FILE_S)
    return seconds / max(1, _tests[file]) if file in SINGLE_FILES else seconds


def unit_of(nodeid: str) -> str:
    """What is run by one process: a test's file, or its function where the file takes long, or the test.

    The tests with Spark are one unit, because each process needs a Java machine of its own for them.
    """
    file = file_of(nodeid)
    if file in SPARK_FILES:
        return "Spark"
    if file in SINGLE_FILES:
        return nodeid
    return nodeid.partition("[")[0] if seconds_of(nodeid) >= SPLIT_S else file


class LongestFirst(LoadScopeScheduling):
    """Gives each process the next unit of the collection's order when it has nearly done its last one."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst:
    return LongestFirst(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longest first; tests that run alone come last, so that they interrupt nothing."""
    _tests.update(file_of(item.nodeid) for item in items)
    items.sort(key=lambda item: (is_alone(item), -seconds_of(item.nodeid), file_of(item.nodeid)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _measured[file_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get(WRITE) and not hasattr(session.config, "workerinput"):
        seconds = {file: round(_measured[file], 1) for file in sorted(_measured)}
        DURATIONS.write_text(json.dumps(seconds, indent=1) + "\n", "utf-8")
