"""judge: from what a handler said to what is recorded."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import toc
from toc.domain.job import Job, Status
from toc.domain.retry_policies import DelayList
from toc.domain.run_control import RunControl
from toc.domain.times import MS_MAX
from toc.handlers.registry import HandlerSpec
from toc.store.claims import OutcomeKind
from toc.store.events import ERROR_CHARS_MAX
from toc.worker.job_run import JobRun
from toc.worker.outcome import describe_error, outcome_of_run

NOW = 1_795_000_000_000


def judged(result: object, attempts: int = 1, max_attempts: int = 3) -> Any:
    job = Job(7, 42, "a", Status.RUNNING, NOW - 5, {}, NOW + 60_000, attempts, "one")
    spec = HandlerSpec("a", print, 30.0, max_attempts, DelayList((10, 20)))
    run = JobRun(job, spec, "default", 0, "one", 0, 100.0, 0.0, 0.0, RunControl(0))
    outcome = outcome_of_run(run, result, NOW, 0.5, snooze_ms_min=1000)
    assert (outcome.job_id, outcome.token) == (7, "one")
    return outcome


@pytest.mark.parametrize("result", [None, 0, False, "text", object()])
def test_a_return_is_done(result: object) -> None:
    assert judged(result).kind is OutcomeKind.DONE


def test_an_exception_is_tried_again_by_the_policy() -> None:
    first, second = judged(ValueError("no")), judged(ValueError("no"), attempts=2)
    assert (first.kind, first.due_ms) == (OutcomeKind.RETRY, NOW + 10_000)
    assert second.due_ms == NOW + 20_000
    assert "ValueError: no" in first.error


@pytest.mark.invariant("I7")
@pytest.mark.parametrize("result", [ValueError("no"), toc.Retry(5, "no"), SystemExit(3)])
def test_the_last_attempt_ends_dead(result: BaseException) -> None:
    assert judged(result, attempts=2).kind is OutcomeKind.RETRY
    last = judged(result, attempts=3)
    assert last.kind is OutcomeKind.BURY
    assert last.error
    # A limit that was lowered meanwhile.
    assert judged(result, attempts=9).kind is OutcomeKind.BURY


def test_retry_says_when() -> None:
    outcome = judged(toc.Retry(1.5, "not yet"))
    assert (outcome.kind, outcome.due_ms, outcome.error) == (
        OutcomeKind.RETRY,
        NOW + 1500,
        "not yet",
    )
    assert judged(toc.Retry(0.0005)).due_ms == NOW + 1  # never before


@pytest.mark.parametrize("attempts", [1, 3, 99])
def test_snooze_is_no_attempt_and_never_dead(attempts: int) -> None:
    outcome = judged(toc.Snooze(timedelta(seconds=5)), attempts)
    assert (outcome.kind, outcome.due_ms) == (OutcomeKind.SNOOZE, NOW + 5000)


@pytest.mark.parametrize(
    ("until", "due_ms"),
    [
        (datetime(2027, 1, 1, tzinfo=UTC), 1_798_761_600_000),
        (datetime(2027, 1, 1, 0, 0, 0, 1, tzinfo=UTC), 1_798_761_600_001),
        # A moment that has passed, or is too close, would be asked for again and again.
        (datetime(1960, 1, 1, tzinfo=UTC), NOW + 1000),
        (timedelta(microseconds=1), NOW + 1000),
        (timedelta(days=-1), NOW + 1000),
        (timedelta(seconds=1, microseconds=1), NOW + 1001),
        (timedelta.max, MS_MAX),
        (timedelta.min, NOW + 1000),
        (datetime.max.replace(tzinfo=UTC), MS_MAX),
    ],
)
def test_snooze_until(until: datetime | timedelta, due_ms: int) -> None:
    assert judged(toc.Snooze(until)).due_ms == due_ms


@pytest.mark.parametrize("attempts", [1, 3])
def test_drop_and_dead_end_it(attempts: int) -> None:
    drop, dead = judged(toc.Drop("paid"), attempts), judged(toc.Dead("no such order"), attempts)
    assert (drop.kind, drop.error) == (OutcomeKind.DROP, "paid")
    assert (dead.kind, dead.error) == (OutcomeKind.BURY, "no such order")


@pytest.mark.invariant("I7")
@pytest.mark.parametrize(
    "verdict", [toc.Dead, toc.Drop, lambda text: toc.Retry(1, text), ValueError]
)
def test_what_it_says_can_always_be_written(verdict: Any) -> None:
    # A lone surrogate cannot be sent to MySQL: the job would be tried for ever.
    outcome = judged(verdict("\ud800 bad text"), attempts=3)
    assert "bad text" in outcome.error
    outcome.error.encode()


def test_a_description_is_short_and_says_where() -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        raise ValueError("x" * 10_000 if n < 0 else "the cause")

    with pytest.raises(ValueError, match="the cause") as caught:
        deep(50)
    text = describe_error(caught.value)
    assert text.startswith("ValueError: the cause")
    assert "in deep" in text
    assert text.count("in deep") <= 5
    assert len(describe_error(ValueError("x" * 10_000))) <= ERROR_CHARS_MAX


def test_an_exception_that_cannot_be_shown_is_described() -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert "Rude" in describe_error(Rude())


@pytest.mark.parametrize(
    "result", [None, ValueError("no"), toc.Dead("no"), toc.Snooze(timedelta(1))]
)
def test_what_has_lost_its_claim_is_tried_again(result: object) -> None:
    """Its take-over may have been undone since: then the outcome is not refused."""
    job = Job(7, 42, "a", Status.RUNNING, 0, {}, NOW, 3, "one")
    spec = HandlerSpec("a", print, 30.0, 3, DelayList((1.0,)))
    run = JobRun(job, spec, "default", 0, "one", 0, 100.0, 0.0, 0.0, RunControl(0))
    run.control.mark_lost()
    outcome = outcome_of_run(run, result, NOW, 0.0, snooze_ms_min=0)
    assert (outcome.kind, outcome.due_ms) == (OutcomeKind.RETRY, NOW)
