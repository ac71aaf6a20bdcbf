"""`make_fleet`, servers that a test may break, and the table of what was measured.

Each scenario ends with `report(...)`: one line of the table that is printed after the run.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.invariants.conftest import MakeStack, _started, make_stack, own_mysql, own_redis
from tests.reliability.fleet import Figures, Fleet
from tests.servers import Server, start_zookeeper
from tests.table import add_line

__all__ = ["make_stack", "own_mysql", "own_redis"]

MakeFleet = Callable[..., Fleet]
Report = Callable[..., None]


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[Server]:
    """A ZooKeeper that the test may break."""
    yield from _started(lambda: start_zookeeper(tmp_path / "zookeeper"))


@pytest.fixture
def make_fleet(make_stack: MakeStack, request: pytest.FixtureRequest) -> MakeFleet:
    """`make_fleet(workers, …)`: workers of a stack that share the work through ZooKeeper.

    `types`: of their handlers; all else is settings. The scanner's grace is long unless a test says
    otherwise: what the timer does must be the timer's.
    """

    def make(workers: int = 3, *, types: Mapping[str, Any] | None = None, **settings: Any) -> Fleet:
        if "zookeeper_hosts" not in settings:
            settings["zookeeper_hosts"] = request.getfixturevalue("zookeeper_server").url
        plan: dict[str, Any] = {
            "namespace": f"t{secrets.token_hex(4)}",
            "shards": 64,  # of a few, some node might get none
            "cluster": {"session_timeout_s": 3},
            "scanner": {"grace_s": 30, "tick_s": 10},
            "timer": {"stay_s": 5, "slow_poll_s": 1, "load_tick_s": 1},
            "worker": {"concurrency": 16, "queue_max": 500, "queue_wait_s": 1},
            "pool_size": 12,
        }
        for name, value in settings.items():
            plan[name] = {**plan[name], **value} if isinstance(plan.get(name), dict) else value
        return Fleet(make_stack(**plan), workers, **({"types": types} if types else {}))

    return make


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Adds a line to the table."""

    def add(what: str, figures: Figures, besides: str = "") -> None:
        line = (
            what,
            f"{figures.jobs:,}",
            str(figures.lost),
            str(figures.early),
            str(figures.twice),
            f"{figures.late_p99_s:.2f} s",
            f"{figures.late_max_s:.2f} s",
            besides,
        )
        add_line(request, "reliability", line)

    return add
