"""The judge of pauses, limits, recurring schedules and countdowns: what it lets pass, and what it does not."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.simulation.kernel import Kernel, Process
from tests.simulation.oracle import Oracle, Run, Violation
from tests.simulation.verb_oracle import (
    PAUSE_BOUND_S,
    RANK_MS,
    CountdownSet,
    LimitsSet,
    RankedJobs,
    ScheduleSet,
    VerbOracle,
)
from toc.domain.countdown import Countdown
from toc.domain.job import Job, Status
from toc.domain.occurrence_keys import chain_key_of

VERBS = frozenset({"pause", "rate", "concurrency", "per", "priority"})
T0_MS = 1_767_225_600_000


def judge_at(now_s: float, judged: frozenset[str] = VERBS, excused: str = "") -> VerbOracle:
    kernel = Kernel(random.Random(1))
    kernel.now_s = now_s
    oracle = cast("Oracle", SimpleNamespace(excused={excused}))
    return VerbOracle(kernel, oracle, judged, early_ms=0)


def start(judge: VerbOracle, job_id: int = 1, **fields: Any) -> Run:
    """A handler of the type "t" starts in a process of its own. claim_ms, true_ms, key: of the job."""
    run = Run(Process(f"node-{job_id}"), f"token-{job_id}", 0.0, lambda: 100.0)
    job = Job(
        job_id,
        fields.get("biz_id", 1),
        "t",
        Status.RUNNING,
        0,
        {},
        0,
        1,
        run.token,
        fields.get("key"),
    )
    judge.starts(job, run, fields.get("claim_ms", 0), fields.get("true_ms", T0_MS))
    return run


@pytest.mark.parametrize("target", ["type:t", "topic:default", "all"])
def test_nothing_starts_after_the_bound_of_a_pause(target: str) -> None:
    judge = judge_at(10.0)
    judge.paused[target] = 10.0 - PAUSE_BOUND_S - 0.1, 99.0
    with pytest.raises(Violation, match="was paused"):
        start(judge)


def test_what_may_start_beside_a_pause() -> None:
    judge = judge_at(10.0)
    judge.paused = {"type:t": (10.0 - PAUSE_BOUND_S, 99.0), "all": (1.0, 9.9)}
    start(judge)
    judge.paused["type:t"] = 1.0, 99.0
    judge.let_through.add(2)
    start(judge, 2)
    start(judge_at(10.0, excused="node-1"))


def test_no_more_run_at_once_than_the_concurrency() -> None:
    judge = judge_at(10.0)
    judge.limits["t"] = LimitsSet(concurrency=[(1.0, 1.0)])
    first = start(judge, 1)
    first.result = "succeeded"
    start(judge, 2)
    with pytest.raises(Violation, match="2 jobs of t run at once, not 1"):
        start(judge, 3)


def test_each_business_id_has_a_limit_of_its_own() -> None:
    judge = judge_at(10.0)
    judge.limits["t"] = LimitsSet(concurrency=[(1.0, 1.0)], verb="per", of_each={})
    start(judge, 1, biz_id=1)
    start(judge, 2, biz_id=2)
    with pytest.raises(Violation, match="2 jobs of t run at once, not 1"):
        start(judge, 3, biz_id=2)


@pytest.mark.parametrize(
    ("other", "claim_ms", "is_allowed"),
    [
        ((1000, 4), RANK_MS + 2001, False),  # aged, it is due at -3000, and job 1 at 0
        ((1000, 4), RANK_MS + 1000, True),  # it may not have waited in the same line
        ((1000, 0), RANK_MS + 9001, True),
        ((9000, 9), RANK_MS + 2001, True),  # not due
        ((3000, 2), RANK_MS + 9001, True),  # overtakes nobody: the other one is due 3 s later
        ((1999, 3), RANK_MS + 9001, False),
    ],
)
def test_the_smaller_aged_due_time_goes_first(
    other: tuple[int, int], claim_ms: int, *, is_allowed: bool
) -> None:
    judge = judge_at(10.0)
    ranked = judge.ranked["t"] = RankedJobs(1000)
    ranked.add_job(1, 0, 0, 0)
    ranked.add_job(2, *other, 0)
    if is_allowed:
        start(judge, 1, claim_ms=claim_ms)
        start(judge, 2, claim_ms=claim_ms)
    else:
        with pytest.raises(Violation, match=r"job 1 was started before \[2\]"):
            start(judge, 1, claim_ms=claim_ms)


def test_a_larger_concurrency_may_be_in_force_before_its_answer() -> None:
    limits = LimitsSet(concurrency=[(1.0, 1.0), (20.0, 3.0)])
    assert limits.most_at(10.0) == 3.0
    limits.concurrency = [(1.0, 3.0), (5.0, 1.0)]
    assert limits.most_at(10.0) == 1.0
    assert limits.most_at(0.0) == float("inf")


@pytest.mark.parametrize(("third_ms", "is_allowed"), [(1000, True), (300, False)])
def test_no_window_has_more_starts_than_its_rate(third_ms: int, is_allowed: bool) -> None:
    judge = judge_at(10.0)
    judge.limits["t"] = LimitsSet(burst=2, per_s=1, claims_ms=[0, 100, third_ms])
    if is_allowed:
        judge.check_end()
    else:
        with pytest.raises(Violation, match="3 jobs of t started"):
            judge.check_end()


def test_a_nominal_time_has_one_job() -> None:
    judge = judge_at(10.0)
    judge.schedules["t"] = ScheduleSet("queue", (T0_MS, T0_MS + 1000))
    key = chain_key_of(T0_MS, 60)
    start(judge, 1, key=key)
    start(judge, 1, key=key)  # a second attempt
    with pytest.raises(Violation, match="are both for"):
        start(judge, 2, key=key)
    with pytest.raises(Violation, match="which is no time"):
        start(judge, 3, key=chain_key_of(T0_MS + 500, 60).replace("00:00:00", "00:00:07"))


@pytest.mark.parametrize(
    ("overlap", "times_with_a_job", "is_lost"),
    [
        ("queue", (0, 1000, 2000), False), ("queue", (0, 2000), True), ("queue", (0, 1000), True),
        ("skip", (0, 2000), False), ("skip", (0,), True), ("cancel-other", (2000,), False),
        ("cancel-other", (0, 1000), True),
    ],
)  # fmt: skip
def test_a_time_without_a_job_is_lost_unless_the_rule_leaves_it_out(
    overlap: str, times_with_a_job: tuple[int, ...], is_lost: bool
) -> None:
    """Each job ends 1.5 s after its nominal time."""
    schedule = ScheduleSet(overlap, (T0_MS, T0_MS + 1000, T0_MS + 2000))
    rows = [
        (
            at,
            chain_key_of(T0_MS + at, 60),
            int(Status.DONE),
            f"2026-01-01 00:00:0{(at + 1500) / 1000:.3f}",
        )
        for at in times_with_a_job
    ]
    assert bool(judge_at(10.0)._lost_times("t", schedule, rows)) == is_lost


def test_two_occurrences_do_not_live_at_a_time() -> None:
    rows = [(n, chain_key_of(T0_MS + n * 1000, 60), int(Status.PENDING), "") for n in (0, 1)]
    schedule = ScheduleSet("queue", (T0_MS, T0_MS + 1000))
    with pytest.raises(Violation, match="2 occurrences of t live"):
        judge_at(10.0)._lost_times("t", schedule, rows)


def test_a_handler_reads_the_arrivals_that_count() -> None:
    judge = judge_at(10.0)
    judge.countdowns[1] = CountdownSet(2, T0_MS, sure={"a"}, maybe={"a", "b"})
    job = Job(1, 1, "t", Status.RUNNING, 0, {}, 0, 1, "token")
    for read in ((), ("b",), ("a", "c")):
        with pytest.raises(Violation, match="its handler misses"):
            judge.reads(job, Countdown(2, read, "deadline"))
    with pytest.raises(Violation, match="fired by arrivals"):
        judge.reads(job, Countdown(2, ("a",), "arrivals"))
    judge.reads(job, Countdown(2, ("a",), "deadline"))
    with pytest.raises(Violation, match="reads other arrivals"):
        judge.reads(job, Countdown(2, ("a", "b"), "arrivals"))
    with pytest.raises(Violation, match="b counts, and was not read"):
        judge.counts(1, "b")


def test_a_countdown_does_not_fire_early() -> None:
    judge = judge_at(10.0)
    judge.countdowns[1] = CountdownSet(2, T0_MS, maybe={"a"})
    start(judge, true_ms=T0_MS)
    with pytest.raises(Violation, match="fired with 1 arrivals"):
        start(judge, true_ms=T0_MS - 1)
