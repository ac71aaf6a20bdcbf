"""Shares the tests out among the processes of `make test`: the files that take longest begin first.

Most tests wait more than they compute. Those that only compute (COMPUTING) are spread over the whole run:
otherwise they would overload the processors first, and leave them idle later.

`durations.json` holds how many seconds each file took; `make durations` measures them anew. All tests of a
file run in one process, because its fixtures are made once per process. The test functions of a file in
SPLIT_S or more are shared out one by one, because no file may take as long as the whole run.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests.alone import is_alone

DURATIONS = Path(__file__).with_name("durations.json")
SPLIT_S = 150.0
NEW_FILE_S = 10.0
"""Expected of a file that is not in `durations.json`."""
SPARK_UNITS = {
    "a Spark session": {
        "tests/reconcile/test_analysis_tables.py",
        "tests/reconcile/test_archive.py",
        "tests/reconcile/test_archive_events.py",
        "tests/reconcile/test_nightly_command.py",
        "tests/reconcile/test_reads_per_database.py",
        "tests/reconcile/test_run.py",
        "tests/reconcile/test_spark_secrets.py",
        "tests/reconcile/test_tables_backfill.py",
    },
    "Spark clusters": {
        "tests/reconcile/test_archive_killed.py",
        "tests/reconcile/test_run_killed.py",
        "tests/reconcile/test_spark_cluster.py",
    },
}
"""Files that one process runs one after the other: each starts Java machines, which need all processors."""

SPARK_TEST_S = 480

COMPUTING = ("tests/simulation/test_simulation.py", "tests/model/test_model.py")
COMPUTING_PARTS = 16
"""Each of these files is divided into so many units: its tests share only processes that they start."""

WRITE = "TOC_TEST_DURATIONS"
"""The environment variable that makes a run write `durations.json`: `make durations` sets it."""

_seconds: dict[str, float] = json.loads(DURATIONS.read_text("utf-8"))
_measured: Counter[str] = Counter()


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def seconds_of(nodeid: str) -> float:
    """How long the test's file is expected to take."""
    return _seconds.get(file_of(nodeid), NEW_FILE_S)


def unit_of(nodeid: str) -> str:
    """What one process runs: a file, a function or part of a file that takes long, or all files of a unit."""
    file = file_of(nodeid)
    if file in COMPUTING:
        return f"{file} {part_of(nodeid)}"
    for unit, files in SPARK_UNITS.items():
        if file in files:
            return unit
    return nodeid.partition("[")[0] if seconds_of(nodeid) >= SPLIT_S else file


def part_of(nodeid: str) -> int:
    return crc32(nodeid.encode()) % COMPUTING_PARTS


def places_of(nodeids: Sequence[str]) -> dict[str, float]:
    """Where each of these tests comes in the run: the seconds of all others that come before, in one row."""
    tests = Counter(map(file_of, nodeids))
    passed_s, places = 0.0, dict[str, float]()
    for nodeid in sorted(nodeids, key=lambda each: (-seconds_of(each), file_of(each))):
        file = file_of(nodeid)
        if file not in COMPUTING:
            places.setdefault(file, passed_s)
            passed_s += seconds_of(nodeid) / tests[file]
    return {
        nodeid: passed_s * (part_of(nodeid) + 0.5) / COMPUTING_PARTS
        if file_of(nodeid) in COMPUTING
        else places[file_of(nodeid)]
        for nodeid in nodeids
    }


class LongestFirst(LoadScopeScheduling):
    """Gives each process the next unit of the collection's order when it has nearly done its last one."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongestFirst:
    return LongestFirst(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longest first, what computes in between; what runs alone comes last, so that it interrupts nothing.

    Tests with Spark have more time: after one that was interrupted no other can use the session.
    """
    for item in items:
        if unit_of(item.nodeid) in SPARK_UNITS and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SPARK_TEST_S))
    places = places_of([item.nodeid for item in items if not is_alone(item)])
    items.sort(
        key=lambda item: (
            is_alone(item),
            places.get(item.nodeid, -seconds_of(item.nodeid)),
            file_of(item.nodeid),
        )
    )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _measured[file_of(report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get(WRITE) and not hasattr(session.config, "workerinput"):
        seconds = {file: round(_measured[file], 1) for file in sorted(_measured)}
        DURATIONS.write_text(json.dumps(seconds, indent=1) + "\n", "utf-8")
