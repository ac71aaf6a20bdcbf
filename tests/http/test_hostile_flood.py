"""Many random hostile requests to a real server process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deep import deep
from tests.http.hostile_flood import FloodResult, flood
from tests.servers.endpoint import Endpoint

FEW, MANY = 2000, 1_000_000
GROWTH_MAX = 1.05
"""Memory after the last part of the requests, by that after the first. FEW kept bodies: 1.1."""


def check(result: FloodResult) -> None:
    assert result.faults == []
    # The attacks reach every guard: login, types of a token, paths, methods, bodies, Host.
    assert result.statuses.keys() >= {200, 400, 401, 403, 404, 405, 415, 421, 422}
    assert result.growth < GROWTH_MAX, result.memory_kb


def test_nobody_gets_in(tmp_path: Path) -> None:
    check(flood(tmp_path, "none", FEW, seed=1))


@deep
@pytest.mark.timeout(7200)
def test_nobody_gets_in_with_a_million_requests(tmp_path: Path, redis_server: Endpoint) -> None:
    check(flood(tmp_path, redis_server.url, MANY, seed=2, parts=10))
