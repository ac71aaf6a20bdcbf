"""A database's clock that has stepped is believed again when it is back, or all other servers agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

from tests.node.test_probes import Server
from toc.node.probes import PATIENCE_S, ClockComparison, Probe
from toc.runtime.server_clock import NOTHING_IS_DUE, STEP_MS_MAX, ServerClock
from toc.testing import TestClock

HOUR_MS = 3_600_000

Look = Callable[[], list[float]]


def looking(clock: TestClock, databases: int, *, redis: bool) -> tuple[list[Server], Look]:
    """The servers, Redis last; and a look that says by how much each database's clock has stepped."""
    servers = [Server(clock) for _ in range(databases + redis)]
    followed = [ServerClock(clock) for _ in range(databases)]
    probes = [
        Probe(f"step_{n}", server.ask_ms, clock, followed[n] if n < databases else None)
        for n, server in enumerate(servers)
    ]
    ClockComparison(probes[-1] if redis else None, probes[:databases], skew_s_max=60)
    for each in followed:
        each.start_following(60)

    def look() -> list[float]:
        clock.advance(5)
        for _ in range(2):  # each is compared with what the others have said in this look
            for probe in probes:
                probe.run_once()
        return [round(each.stepped_s) for each in followed]

    return servers, look


@pytest.mark.invariant("I4")
def test_one_that_steps_alone_is_not_believed_until_it_is_back() -> None:
    servers, look = looking(TestClock(), 1, redis=True)
    assert look() == [0]
    servers[0].off_ms = HOUR_MS
    assert look() == look() == [3600]
    labels = {"server": "step_0"}
    shown = REGISTRY.get_sample_value("toc_clock_step_seconds", labels)
    assert shown == pytest.approx(3600, abs=2)
    servers[0].off_ms = 0
    assert look() == [0]
    assert REGISTRY.get_sample_value("toc_clock_step_seconds", labels) == 0


def test_one_that_is_set_right_is_believed_when_all_others_agree() -> None:
    servers, look = looking(TestClock(), 2, redis=True)
    servers[0].off_ms = -HOUR_MS
    assert look() == [0, 0]
    servers[0].off_ms = 0
    assert look() == [0, 0]
    servers[2].off_ms = HOUR_MS  # Redis
    servers[0].off_ms = HOUR_MS
    assert look()[0] == 3600  # one of the two others does not agree


@pytest.mark.invariant("I4")
def test_a_process_that_starts_believes_two_that_agree_against_one_that_is_ahead() -> None:
    servers, look = looking(TestClock(), 2, redis=True)
    servers[0].off_ms = HOUR_MS
    assert look() == [3600, 0]
    servers[0].off_ms = 0
    assert look() == [0, 0]


def test_a_machine_that_was_paused_believes_its_only_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own clock has leapt by as much as the server's: the monotonic clock stood still."""
    clock = TestClock()
    servers, look = looking(clock, 1, redis=False)
    assert look() == [0]
    now_ms, leap_ms = clock.wall_ms, 60_000
    monkeypatch.setattr(clock, "wall_ms", lambda: now_ms() + leap_ms)  # the server's too
    assert look() == [0]
    servers[0].off_ms = HOUR_MS  # without any pause
    assert look() == [3600]


@pytest.mark.parametrize("databases", [1, 2])
def test_a_clock_that_was_followed_is_believed_though_others_step_back_together(
    databases: int,
) -> None:
    """The masters of a Redis Cluster, or Redis and another database, are set back by one NTP server."""
    servers, look = looking(TestClock(), databases, redis=True)
    servers[-1].more_off_ms = [0, 0]
    assert look()[0] == 0
    for server in servers[1:]:
        server.off_ms = -HOUR_MS
    servers[-1].more_off_ms = [-HOUR_MS, -HOUR_MS]
    look()
    assert look()[0] == 0


def test_the_nodes_of_one_redis_cluster_are_one_witness_at_the_start() -> None:
    servers, look = looking(TestClock(), 1, redis=True)
    servers[-1].off_ms = -HOUR_MS
    servers[-1].more_off_ms = [-HOUR_MS, -HOUR_MS]
    look()
    assert look() == [0]


# ---- a database whose answers are slow from the start

SLOW_S = PATIENCE_S + 1


@pytest.mark.invariant("I4")
def test_one_that_is_always_slow_is_heard_and_not_believed_too_early() -> None:
    clock = TestClock()
    server, followed = Server(clock), ServerClock(clock)
    server.answers_after_s = SLOW_S  # the worst: its time was read at the very beginning
    probe = Probe("slow", server.ask_ms, clock, followed)
    ClockComparison(None, [probe], skew_s_max=60)
    followed.start_following(60)
    assert followed.statement_bounds() == NOTHING_IS_DUE
    for _ in range(3):
        probe.run_once()
        true_ms = clock.wall_ms()
        bounds = followed.statement_bounds()
        assert true_ms - SLOW_S * 1000 <= bounds.due_ms <= true_ms + 2 * STEP_MS_MAX
        assert bounds.from_ms >= true_ms - STEP_MS_MAX  # a lease is not shorter
        clock.advance(5)


def test_one_that_is_slow_and_an_hour_ahead_of_two_others_is_not_believed() -> None:
    servers, look = looking(TestClock(), 2, redis=True)
    servers[0].off_ms, servers[0].takes_s = HOUR_MS, SLOW_S
    assert look()[0] == pytest.approx(3600, abs=SLOW_S)


def test_one_that_is_slow_is_no_witness_of_a_step() -> None:
    """It cannot tell a step of as much as its answers take."""
    servers, look = looking(TestClock(), 2, redis=False)
    servers[1].takes_s = SLOW_S
    assert look() == [0, 0]
    servers[0].off_ms = 3000
    assert look() == look() == [3, 0]


def test_one_that_is_slow_is_no_skew() -> None:
    clock = TestClock()
    servers = [Server(clock), Server(clock)]
    redis, slow = [Probe(f"skew_{n}", each.ask_ms, clock) for n, each in enumerate(servers)]
    clocks = ClockComparison(redis, [slow], skew_s_max=1)
    servers[1].answers_after_s = 10 * SLOW_S
    for probe in (redis, slow):
        probe.run_once()
    assert not clocks.skew_is_too_large
