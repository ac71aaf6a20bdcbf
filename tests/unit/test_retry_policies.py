"""Back-off: when a failed job is tried again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toc.domain.retry_policies import (
    DELAY_S_MAX,
    DelayList,
    Exponential,
    to_retry_policy,
    unhandled_delay_ms,
)
from toc.errors import InvalidInput


def test_the_default_doubles_up_to_an_hour() -> None:
    policy = Exponential()
    assert [policy.delay_s(n, 0) for n in range(1, 12)] == [
        10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600,
    ]  # fmt: skip


def test_jitter_spreads_both_ways() -> None:
    policy = Exponential(first_s=100, jitter=0.2)
    assert [policy.delay_s(1, spread) for spread in (-1, 0, 1)] == [80, 100, 120]
    assert Exponential(first_s=100, jitter=0).delay_s(1, 1) == 100


@given(
    st.floats(0, 1000), st.floats(1, 100), st.floats(0, 1), st.integers(1, 1000), st.floats(-1, 1)
)
def test_every_delay_is_within_its_bounds(
    first_s: float, factor: float, jitter: float, attempt: int, spread: float
) -> None:
    policy = Exponential(first_s, factor, 5000, jitter)
    delay_s = policy.delay_s(attempt, spread)
    assert 0 <= delay_s <= 5000 * (1 + jitter)
    assert delay_s >= first_s * (1 - jitter) * 0.999


def test_growth_never_stops_short_of_the_maximum() -> None:
    for factor in (1.01, 1.5, 3, 1000):
        assert Exponential(1, factor, 3600, 0).delay_s(1000, 0) == 3600


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"first_s": -1}, "retry.first_s"),
        ({"first_s": float("nan")}, "retry.first_s"),
        ({"factor": 0.9}, "retry.factor"),
        ({"factor": float("inf")}, "retry.factor"),
        ({"max_s": 9}, "retry.max_s"),
        ({"max_s": DELAY_S_MAX + 1}, "retry.max_s"),
        ({"jitter": 1.1}, "retry.jitter"),
        ({"jitter": -0.1}, "retry.jitter"),
    ],
)
def test_terms_out_of_range_are_refused(terms: dict[str, float], field: str) -> None:
    with pytest.raises(InvalidInput, match="must lie between") as caught:
        Exponential(**terms)
    assert caught.value.field == field


def test_a_list_repeats_its_last_delay_and_is_not_spread() -> None:
    policy = DelayList((1, 5, 60))
    assert [policy.delay_s(n, 1) for n in (1, 2, 3, 4, 1000)] == [1, 5, 60, 60, 60]


@pytest.mark.parametrize(
    "seconds", [(), (-1,), (1, float("nan")), (True,), ("1",), (DELAY_S_MAX * 2,)]
)
def test_a_list_with_a_bad_delay_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        DelayList(seconds)
    assert caught.value.field == "retry"


def test_what_a_caller_may_write() -> None:
    assert to_retry_policy(None) == Exponential()
    assert to_retry_policy([1, 2]) == DelayList((1, 2))
    assert to_retry_policy(Exponential(5)) == Exponential(5)
    for wrong in ("60", b"60", 60, {60}):
        with pytest.raises(InvalidInput, match="must be a list of seconds"):
            to_retry_policy(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("overdue_ms", "ms"),
    [(-5, 10_000), (0, 10_000), (10_001, 10_001), (60_000, 60_000), (10**9, 300_000)],
)
def test_a_job_without_a_handler_is_put_off_as_long_as_it_is_overdue(
    overdue_ms: int, ms: int
) -> None:
    assert unhandled_delay_ms(overdue_ms) == ms
