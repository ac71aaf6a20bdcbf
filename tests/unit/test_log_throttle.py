"""A warning that comes again and again is said once a minute."""

from __future__ import annotations

import logging

import pytest

from toc.runtime import log_throttle as module
from toc.runtime.log_throttle import EVERY_S, LogThrottle
from toc.testing import TestClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> TestClock:
    clock = TestClock()
    monkeypatch.setattr(module, "_clock", clock)
    return clock


def test_once_a_minute_with_a_count(clock: TestClock, caplog: pytest.LogCaptureFixture) -> None:
    seldom = LogThrottle(logging.getLogger("test"))
    for n in range(5):
        seldom.warning("a", "away: %s", n)
        clock.advance(1)
    seldom.warning("b", "another")
    clock.advance(EVERY_S)
    seldom.warning("a", "away: %s", 9)
    clock.advance(EVERY_S)
    seldom.warning("a", "away: %s", 10)
    assert [record.getMessage() for record in caplog.records] == [
        "away: 0",
        "another",
        "away: 9 (and 4 times more since it was last said)",
        "away: 10",
    ]
