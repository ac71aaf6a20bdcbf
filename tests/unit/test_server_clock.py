"""What a process believes of a database's clock: it is followed, and a step is not."""

from __future__ import annotations

import pytest

from tests.unit.test_clock import Ticking
from toc.runtime.server_clock import (
    NO_BOUNDS,
    NOTHING_IS_DUE,
    STEP_MS_MAX,
    ClockOffset,
    ServerClock,
)

HOUR_MS = 3_600_000
START_MS = 1_800_000_000_000
HOLD_S = 60.0


class Followed:
    """A server clock, and the server that it follows. `off_ms`: of the server's clock."""

    def __init__(self) -> None:
        self.clock, self.off_ms = Ticking(), 0
        self.seen = ServerClock(self.clock)
        self.seen.start_following(HOLD_S)

    @property
    def true_ms(self) -> int:
        return START_MS + round(self.clock.s * 1000)

    def look(self, takes_s: float = 0.0, after_s: float = 5.0) -> None:
        self.clock.s += after_s
        asked_s = self.clock.s
        server_ms = self.true_ms + self.off_ms
        self.clock.s += takes_s
        self.seen.record_offset(ClockOffset.from_answer(server_ms, asked_s, self.clock.s))

    def due_off_ms(self) -> int:
        """How far beyond the true time a job may be due and is started."""
        return self.seen.statement_bounds().due_ms - self.true_ms


@pytest.fixture
def followed() -> Followed:
    return Followed()


def test_who_is_not_told_bounds_nothing() -> None:
    assert ServerClock(Ticking()).statement_bounds() == NO_BOUNDS


def test_until_the_first_look_nothing_is_due(followed: Followed) -> None:
    assert followed.seen.statement_bounds() == NOTHING_IS_DUE
    followed.look()
    assert 0 < followed.due_off_ms() <= STEP_MS_MAX + 1


@pytest.mark.invariant("I4")
@pytest.mark.parametrize("step_ms", [HOUR_MS, STEP_MS_MAX + 100])
def test_a_step_ahead_is_not_followed(followed: Followed, step_ms: int) -> None:
    followed.look()
    followed.off_ms = step_ms
    for _ in range(3):
        followed.look()
        assert followed.seen.stepped_s == pytest.approx(step_ms / 1000, abs=0.01)
        assert followed.due_off_ms() <= STEP_MS_MAX + 10
        assert followed.seen.statement_bounds().lease_ms - followed.true_ms <= 10
    followed.off_ms = 0
    followed.look()
    assert followed.seen.stepped_s == 0


def test_what_ntp_does_slowly_is_followed(followed: Followed) -> None:
    followed.look()
    for _ in range(20):
        followed.off_ms += STEP_MS_MAX // 2
        followed.look()
        assert followed.seen.stepped_s == 0
    assert followed.due_off_ms() >= followed.off_ms


@pytest.mark.invariant("I2")
def test_a_lease_that_is_given_while_the_clock_is_behind_counts_from_what_is_believed(
    followed: Followed,
) -> None:
    followed.look()
    followed.off_ms = -HOUR_MS
    followed.look()
    assert followed.seen.stepped_s == pytest.approx(-3600, abs=0.01)
    assert abs(followed.seen.statement_bounds().from_ms - followed.true_ms) <= STEP_MS_MAX + 10


@pytest.mark.invariant("I2")
def test_leases_of_before_a_step_that_is_adopted_are_kept_for_the_longest(
    followed: Followed,
) -> None:
    """A clock that was behind is set right: leases that count from the old time are not over by that."""
    followed.look()
    followed.off_ms = HOUR_MS
    followed.look()
    followed.seen.trust_last_measurement()
    bounds = followed.seen.statement_bounds()
    assert followed.seen.stepped_s == 0
    assert bounds.due_ms >= followed.true_ms + HOUR_MS
    assert bounds.lease_ms <= followed.true_ms + 10
    followed.look(after_s=HOLD_S)
    followed.look()
    assert followed.seen.statement_bounds().lease_ms >= followed.true_ms + HOUR_MS


@pytest.mark.invariant("I2")
def test_leases_of_processes_that_knew_only_the_clock_that_was_behind_are_kept(
    followed: Followed,
) -> None:
    followed.look()
    followed.off_ms = -HOUR_MS
    followed.look()
    followed.off_ms = 0
    followed.look()
    assert followed.seen.stepped_s == 0
    assert followed.seen.statement_bounds().due_ms >= followed.true_ms
    assert followed.seen.statement_bounds().lease_ms < followed.true_ms - HOUR_MS + 10_000
    followed.look(after_s=HOLD_S)
    followed.look()
    assert followed.seen.statement_bounds().lease_ms >= followed.true_ms


def test_a_slow_answer_is_no_step(followed: Followed) -> None:
    followed.look()
    for takes_s in (4.0, 0.0, 9.0, 0.001, 20.0):
        followed.look(takes_s)
        assert followed.seen.stepped_s == 0
        assert 0 < followed.due_off_ms() <= STEP_MS_MAX + 10


@pytest.mark.invariant("I4")
def test_a_slow_first_answer_lets_nothing_start_early_by_what_it_took(followed: Followed) -> None:
    followed.look(takes_s=9.0)
    assert followed.due_off_ms() <= 2 * STEP_MS_MAX
    followed.look()
    assert followed.seen.stepped_s == 0
    assert 0 < followed.due_off_ms() <= STEP_MS_MAX + 10


def test_a_time_that_was_said_is_kept_within_the_bounds(followed: Followed) -> None:
    followed.look()
    now_ms = followed.true_ms
    assert followed.seen.clamp_server_time_ms(now_ms) == now_ms
    assert abs(followed.seen.clamp_server_time_ms(now_ms + HOUR_MS) - now_ms) <= STEP_MS_MAX + 10
    assert abs(followed.seen.clamp_server_time_ms(now_ms - HOUR_MS) - now_ms) <= STEP_MS_MAX + 10


@pytest.mark.invariant("I4")
def test_after_a_pause_of_the_machine_a_time_is_not_taken_for_a_step(followed: Followed) -> None:
    """The monotonic clock stood still for a minute: a delay that counts from it would end early."""
    followed.look()
    followed.off_ms = 60_000
    followed.clock.wall_ms = lambda: 60_000  # type: ignore[method-assign]
    server_ms = followed.true_ms + followed.off_ms
    assert followed.seen.clamp_server_time_ms(server_ms) == server_ms
