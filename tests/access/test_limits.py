"""Limits on calls: never more than the rate allows, and one caller's calls are not another's."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.access.conftest import World, bearer
from toc.access import limits
from toc.access.caller import LOOPBACK_CALLER, Caller
from toc.access.limits import CallLimits, FailedLogins
from toc.errors import TooManyCalls, Unauthenticated
from toc.runtime import metrics
from toc.runtime.web_settings import WebLimitSettings
from toc.testing import TestClock


def caller(name: str) -> Caller:
    return Caller(name, name, frozenset(), (), None)


A, B = caller("a"), caller("b")


def made(clock: TestClock, **given: Any) -> CallLimits:
    return CallLimits(clock, WebLimitSettings(**given))


def test_a_burst_then_the_rate() -> None:
    clock = TestClock()
    calls = made(clock, calls_per_s=10, burst_s=2)
    states = [calls.take(A) for _ in range(21)]
    assert [state.ok for state in states] == [True] * 20 + [False]
    assert [state.remaining for state in states] == [*range(19, -1, -1), 0]
    assert states[0].limit == 20
    assert states[-1].retry_after_s >= 1
    assert states[-1].reset_s == pytest.approx(2)
    with pytest.raises(TooManyCalls, match=r"web\.limits\.calls_per_s is reached"):
        states[-1].raise_if_refused()
    clock.advance(0.1)
    assert [calls.take(A).ok for _ in range(2)] == [True, False]
    clock.advance(100)
    assert [calls.take(A).ok for _ in range(21)] == [True] * 20 + [False]


def test_one_caller_does_not_use_up_the_calls_of_another() -> None:
    calls = made(TestClock(), calls_per_s=1, burst_s=1)
    assert [calls.take(A).ok, calls.take(A).ok, calls.take(B).ok] == [True, False, True]


def test_all_together_have_a_limit_and_a_refused_call_costs_nothing() -> None:
    clock = TestClock()
    calls = made(clock, calls_per_s=2, calls_per_s_all=3, burst_s=1)
    assert [calls.take(A).ok, calls.take(A).ok] == [True, True]
    assert [calls.take(A).ok for _ in range(5)] == [False] * 5
    assert calls.take(B).ok
    state = calls.take(B)
    assert not state.ok
    assert (state.setting, state.remaining) == ("calls_per_s_all", 1)
    clock.advance(1)
    assert [calls.take(B).ok, calls.take(B).ok, calls.take(A).ok] == [True, True, True]


def test_items_of_a_bulk_cost() -> None:
    calls = made(TestClock(), calls_per_s=100, burst_s=1, item_cost=0.1)
    assert calls.cost_of(1) == 1
    assert calls.cost_of(500) == pytest.approx(50.9)
    assert calls.take(A, calls.cost_of(500)).remaining == 49
    assert not calls.take(A, calls.cost_of(500)).ok
    assert calls.take(B, 10**9).ok  # more than the bucket holds: it takes a full one


@given(
    st.lists(st.tuples(st.floats(0, 3), st.floats(0.1, 30)), max_size=60),
    st.floats(0.5, 50),
    st.floats(0.1, 5),
)
def test_no_more_than_the_rate_in_any_time(
    steps: list[tuple[float, float]], per_s: float, burst_s: float
) -> None:
    clock = TestClock()
    calls = made(clock, calls_per_s=per_s, burst_s=burst_s)
    began_s, taken = clock.monotonic_s(), 0.0
    capacity = max(1.0, per_s * burst_s)
    for pause_s, cost in steps:
        clock.advance(pause_s)
        if calls.take(A, cost).ok:
            taken += min(cost, capacity)
        passed_s = clock.monotonic_s() - began_s
        assert taken <= capacity + per_s * passed_s + 1e-6


def test_the_table_of_callers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOKENS_MAX", 3)
    calls = made(TestClock(), calls_per_s=1, burst_s=1)
    assert calls.take(A).ok
    for n in range(10):
        assert calls.take(caller(str(n))).ok
        assert not calls.take(A).ok  # in use: it is not forgotten
    assert len(calls._buckets) == 3


def test_open_long_polls_are_counted_and_given_back() -> None:
    calls = made(TestClock(), long_polls=3, long_polls_per_token=2)
    with ExitStack() as opened:
        opened.enter_context(calls.long_poll(A))
        with calls.long_poll(A), pytest.raises(TooManyCalls, match="long_polls_per_token"):
            opened.enter_context(calls.long_poll(A))
        opened.enter_context(calls.long_poll(B))
        opened.enter_context(calls.long_poll(LOOPBACK_CALLER))
        with pytest.raises(TooManyCalls, match=r"long_polls is"):
            opened.enter_context(calls.long_poll(B))
    assert calls._open_polls == {}
    with pytest.raises(ZeroDivisionError), calls.long_poll(A):
        _ = 1 / 0
    assert calls._open_polls == {}


# ---- wrong tokens


def failing(clock: TestClock, per_min: int = 3) -> FailedLogins:
    return FailedLogins(clock, WebLimitSettings(failed_logins_per_min=per_min))


def is_blocked(logins: FailedLogins, address: str | None) -> bool:
    try:
        logins.check(address)
    except TooManyCalls as error:
        return error.retry_after_s >= 1
    return False


def test_an_address_that_fails_too_often_is_refused_for_a_while() -> None:
    clock = TestClock()
    logins = failing(clock)
    for _ in range(3):
        assert not is_blocked(logins, "10.0.0.1")
        logins.count("10.0.0.1")
    assert is_blocked(logins, "10.0.0.1")
    assert is_blocked(logins, "::ffff:10.0.0.1")  # the same host
    assert not is_blocked(logins, "10.0.0.2")
    clock.advance(20.1)
    assert not is_blocked(logins, "10.0.0.1")
    logins.count("10.0.0.1")
    assert is_blocked(logins, "10.0.0.1")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("nonsense", "testclient", True),
        (None, "x", True),
        ("10.0.0.1", "10.0.0.2", False),
    ],
)
def test_addresses_of_one_network_count_together(one: str | None, other: str, same: bool) -> None:
    logins = failing(TestClock(), 1)
    logins.count(one)
    assert is_blocked(logins, one)
    assert is_blocked(logins, other) == same


def test_a_valid_token_is_accepted_from_an_address_that_failed(world: World) -> None:
    made = world.token()
    access = world.access(failed_logins_per_min=2)
    access.refresh_now()
    failed = metrics.LOGINS_FAILED._value.get()
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            access.identify("Bearer nonsense", "10.0.0.1")
    for _ in range(5):
        with pytest.raises(TooManyCalls):
            access.identify("Bearer nonsense", "10.0.0.1")
    assert access.identify(bearer(made), "10.0.0.1").token_id == made.token_id
    with pytest.raises(Unauthenticated):
        access.identify("Bearer nonsense", "10.0.0.2")
    assert metrics.LOGINS_FAILED._value.get() == failed + 8


def test_the_table_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADDRESSES_MAX", 5)
    logins = failing(TestClock())
    for n in range(100):
        logins.count(f"10.0.0.{n}")
        logins.check(f"10.0.1.{n}")
    assert len(logins._buckets) == 5
