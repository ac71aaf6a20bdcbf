"""The ramp's benchmark: its figures, and a small run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.ramp import Run, find_faults, main, most_in_a_second, steps_of
from tests.deep import deep
from toc.domain.pauses import Pause, Ramp
from toc.store.pauses import KnownPause, PauseRow

EVENTS = st.lists(st.tuples(st.integers(0, 5000), st.integers(-3, 9)), max_size=40).map(sorted)


@given(EVENTS, st.integers(0, 2000), st.integers(2000, 6000))
def test_the_most_in_a_second_is_that_of_all_windows(
    events: list[tuple[int, int]], from_ms: int, to_ms: int
) -> None:
    inside = [(at_ms, jobs) for at_ms, jobs in events if from_ms <= at_ms < to_ms]
    most = 0
    for last, (end_ms, _) in enumerate(inside):
        most = max(most, sum(j for at_ms, j in inside[: last + 1] if at_ms > end_ms - 1000))
    assert most_in_a_second(events, from_ms, to_ms) == most


def run_of(admitted: list[tuple[int, int]], **other: int) -> Run:
    """A ramp with steps of 10 s: 25 and 50 jobs a second."""
    pause = Pause("type:a", 0, 100_000, Ramp(start=0.25, growth=1.0, step_s=10, rate_min=1))
    known = KnownPause(pause, PauseRow("type:a", 1, "", 0, "c", "ann", None, False, 6000))
    fields = {"jobs": sum(jobs for _, jobs in admitted), "lost": 0, "early": 0} | other
    return Run(known, admitted, admitted, **fields)


def test_steps_and_faults() -> None:
    good = [(100_000 + 1000 * second, 25 if second < 10 else 50) for second in range(20)]
    run = run_of(good)
    assert [(step.rate, step.allowed, step.jobs) for step in steps_of(run)] == [
        (25, 28, 250),
        (50, 56, 500),
    ]
    assert [step.admitted for step in steps_of(run)] == [25, 50]
    assert find_faults(run) == []
    assert len(find_faults(run_of(good, lost=1))) == 1
    assert len(find_faults(run_of(good, early=1))) == 1
    assert len(find_faults(run_of(sorted([*good, (103_500, 10)])))) == 1
    assert len(find_faults(run_of(good[:10]))) == 1


@deep
@pytest.mark.alone
@pytest.mark.parametrize("more", [[], ["--wipe"]])
def test_a_small_run_keeps_the_rate_and_loses_nothing(more: list[str]) -> None:
    assert main(["--jobs", "1000", "--step-s", "2", "--workers", "1", *more]) == 0
