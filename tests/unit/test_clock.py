"""Clocks: the server's time carried on, and the one that stands still."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from toc.errors import InvalidInput
from toc.runtime.clock import ServerTimeEstimate, SystemClock
from toc.testing import TestClock


class Ticking:
    """A clock whose monotonic time is set by hand."""

    def __init__(self) -> None:
        self.s = 1000.0

    def wall_ms(self) -> int:
        return 0

    def monotonic_s(self) -> float:
        return self.s

    def sleep_s(self, seconds: float) -> None:
        raise AssertionError(seconds)

    def time_for_servers_ms(self) -> int | None:
        return None


def test_a_servers_time_is_carried_on() -> None:
    clock = Ticking()
    time = ServerTimeEstimate(clock)
    assert not time.known
    time.record_server_time(5_000)
    clock.s += 1.5
    assert time.known
    assert (time.estimate_now_ms(), time.server_answer_age_s) == (6_500, 1.5)
    time.record_server_time(1_000)  # the server's clock was set back: it is right all the same
    assert (time.estimate_now_ms(), time.server_answer_age_s) == (1_000, 0.0)


@pytest.mark.invariant("I4")
def test_a_servers_time_is_never_ahead() -> None:
    clock = Ticking()
    time = ServerTimeEstimate(clock)
    time.record_server_time(5_000)
    clock.s += 0.0009
    assert time.estimate_now_ms() == 5_000


def test_the_machines_clocks() -> None:
    clock = SystemClock()
    assert clock.time_for_servers_ms() is None
    assert abs(clock.wall_ms() / 1000 - datetime.now(UTC).timestamp()) < 5
    before_s = clock.monotonic_s()
    clock.sleep_s(0)
    assert clock.monotonic_s() >= before_s


def test_it_stands_still_until_it_is_moved() -> None:
    clock = TestClock()
    start = datetime(2026, 1, 1, tzinfo=UTC)
    assert clock.now == start
    assert (clock.monotonic_s(), clock.wall_ms()) == (0.0, clock.time_for_servers_ms())
    assert clock.advance(timedelta(minutes=1)) == start + timedelta(minutes=1)
    clock.advance(0.0005)
    assert clock.now == start + timedelta(minutes=1, milliseconds=1)
    assert clock.monotonic_s() == 60.001
    assert clock.time_for_servers_ms() == clock.wall_ms() == round(clock.now.timestamp() * 1000)


@pytest.mark.parametrize("ms", [1, 7, 29, 57, 1001, 29_999, 59_999])
def test_seconds_are_not_rounded_up_twice(ms: int) -> None:
    clock = TestClock()
    before = clock.wall_ms()
    clock.advance(ms / 1000)
    assert clock.wall_ms() - before == ms


def test_who_sleeps_moves_it() -> None:
    clock = TestClock()
    clock.sleep_s(1.5)
    clock.sleep_s(-1)
    assert clock.monotonic_s() == 1.5


def test_it_never_goes_back() -> None:
    with pytest.raises(InvalidInput, match="by: must not be negative"):
        TestClock().advance(-0.001)


@pytest.mark.parametrize(
    "start",
    [datetime(2026, 1, 1), datetime(2023, 1, 1, tzinfo=UTC), datetime(2038, 2, 1, tzinfo=UTC)],  # noqa: DTZ001
)
def test_a_start_that_no_server_could_show_is_refused(start: datetime) -> None:
    with pytest.raises(InvalidInput, match="start: must be an aware datetime, 2024 to 2037"):
        TestClock(start)


@pytest.mark.invariant("I4")
@pytest.mark.parametrize("took_s", [0.0, 0.0004, 0.5, 20.0])
def test_what_is_counted_from_a_slow_answer_is_not_early(took_s: float) -> None:
    """The server may have read its clock as soon as it was asked."""
    clock = Ticking()
    time = ServerTimeEstimate(clock)
    asked_s, read_ms = clock.s, 5_000.999
    clock.s += took_s
    time.record_server_time(int(read_ms), asked_s)
    assert 0 <= time.estimate_now_ms() - (read_ms + took_s * 1000) <= 2
