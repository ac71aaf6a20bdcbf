"""Probes: does a server answer, since when, and what time is it there."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from tests.servers.endpoint import Endpoint
from toc.errors import SchemaMismatch, TimerUnavailable, TocError
from toc.node.probes import PATIENCE_S, TICK_S, ClockComparison, Probe
from toc.runtime.clock import SystemClock
from toc.testing import TestClock
from toc.timer.reminders import Reminders


class Server:
    """A server's clock: off by so much, silent, or slow. (An answer, not a part of toc.)"""

    def __init__(self, clock: TestClock) -> None:
        self.clock = clock
        self.off_ms = 0
        self.more_off_ms: list[int] = []  # of its other nodes
        self.silent = False
        self.takes_s = 0.0
        self.answers_after_s = 0.0  # it has read its clock
        self.error: TocError = TimerUnavailable(OSError("connection refused"))

    def ask_ms(self) -> list[int]:
        self.clock.advance(self.takes_s)
        if self.silent:
            raise self.error
        now_ms = self.clock.wall_ms()
        self.clock.advance(self.answers_after_s)
        return [now_ms + off_ms for off_ms in (self.off_ms, *self.more_off_ms)]


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def server(clock: TestClock) -> Server:
    return Server(clock)


@pytest.fixture
def probe(server: Server, clock: TestClock) -> Probe:
    return Probe("redis", server.ask_ms, clock)


def test_since_when_is_when_it_changed(probe: Probe, server: Server, clock: TestClock) -> None:
    began_ms = clock.wall_ms()
    assert probe.run_once() == TICK_S
    clock.advance(60)
    probe.run_once()
    assert probe.current_result.up
    assert probe.current_result.since_ms == began_ms
    last_answer_ms = clock.wall_ms()
    server.silent = True
    for _ in range(3):
        clock.advance(5)
        probe.run_once()
        finding = probe.current_result
        assert (finding.up, finding.since_ms) == (False, last_answer_ms)
        assert "connection refused" in finding.error
        assert REGISTRY.get_sample_value("toc_server_up", {"server": "redis"}) == 0
    server.silent = False
    clock.advance(5)
    probe.run_once()
    assert (probe.current_result.up, probe.current_result.since_ms) == (True, clock.wall_ms())
    assert REGISTRY.get_sample_value("toc_server_up", {"server": "redis"}) == 1


def test_a_server_that_keeps_us_waiting_is_not_up(
    probe: Probe, server: Server, clock: TestClock
) -> None:
    probe.run_once()
    last_answer_ms = clock.wall_ms()
    seen, shown = [], []
    ask_ms = server.ask_ms

    def hang_ms() -> list[int]:
        for _ in range(5):
            seen.append((probe.current_result.up, probe.current_result.since_ms))
            shown.append(REGISTRY.get_sample_value("toc_server_up", {"server": "redis"}))
            clock.advance(1)
        return ask_ms()

    probe._ask_ms = hang_ms
    probe.run_once()
    assert seen == [(True, seen[0][1])] * 4 + [(False, last_answer_ms)]
    assert shown == [1, 1, 1, 1, 0]
    assert probe.current_result.up


def test_it_says_why_as_of_now(
    probe: Probe, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.silent = True
    probe.run_once()
    since_ms = probe.current_result.since_ms
    server.error = TimerUnavailable(OSError("no route"))
    probe.run_once()
    assert (probe.current_result.error, probe.current_result.since_ms) == (
        str(server.error),
        since_ms,
    )
    server.error = SchemaMismatch("the schema is at 3, not at 4")
    probe.run_once()
    assert probe.current_result.error == "answers, and does not fit: the schema is at 3, not at 4"
    assert not probe.current_result.up
    assert len(caplog.records) == 1


def test_the_offset_is_measured_around_the_answer(
    probe: Probe, server: Server, clock: TestClock
) -> None:
    def offset_s() -> float | None:
        return REGISTRY.get_sample_value("toc_clock_offset_seconds", {"server": "redis"})

    server.off_ms, server.takes_s = 1500, 0.5
    probe.run_once()
    # Read at the end of the answer's time here: half of it is the error.
    assert offset_s() == pytest.approx(1.5 + 0.25)
    server.takes_s = PATIENCE_S  # says nothing about its clock
    server.off_ms = 0
    probe.run_once()
    assert offset_s() == pytest.approx(1.75)


def test_clocks_too_far_apart_are_beyond(clock: TestClock) -> None:
    servers = [Server(clock) for _ in range(3)]
    probes = [Probe(f"s{n}", server.ask_ms, clock) for n, server in enumerate(servers)]
    clocks = ClockComparison(probes[0], probes[1:], skew_s_max=60)

    def look() -> bool:
        for probe in probes:
            probe.run_once()
        return clocks.skew_is_too_large

    assert not look()
    for server in servers:
        server.off_ms = -3_600_000  # this machine is wrong, not they
    assert not look()
    servers[2].off_ms += 60_001  # one database is enough
    assert look()
    assert REGISTRY.get_sample_value("toc_clock_skew_seconds") == pytest.approx(-60.001)
    servers[2].silent = True
    assert look()  # nobody has heard that it is right now
    servers[2].silent, servers[2].off_ms = False, -3_600_000
    assert not look()
    servers[0].off_ms += 60_001
    assert look()
    servers[0].off_ms -= 60_001
    assert not look()
    servers[0].more_off_ms = [-3_600_000, -3_600_000 + 60_001]  # one node of a cluster is enough
    assert look()


def test_every_node_of_a_redis_cluster_says_its_time(redis_cluster: Endpoint) -> None:
    url = redis_cluster.url.replace("redis://", "redis+cluster://")
    clock = SystemClock()
    slots = Reminders(url, "t", clock, lambda topic: 1)
    times_ms = slots.read_times_ms()
    slots.close()
    assert len(times_ms) == 3
    assert all(abs(time_ms - clock.wall_ms()) < 5000 for time_ms in times_ms)
