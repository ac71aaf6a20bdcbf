"""Hooks compared with a model of the table in docs/how-to/hooks.md; and what registration refuses."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import toc
from toc.domain.job import Job, Status
from toc.errors import InvalidInput
from toc.handlers.current_job import current_job
from toc.handlers.hook_calls import (
    begin_calls,
    end_calls,
    report_failure,
    wrap_batch_handler,
    wrap_handler,
)
from toc.handlers.hooks import HOOKS_MAX, CallBatch, HandlerRun, Hooks, ScheduleCall
from toc.handlers.registry import registry
from toc.handlers.verdicts import Drop, Retry

DELAY = timedelta(minutes=1)
JOB = Job(1, 2, "a", Status.RUNNING, 0, {}, 0, 1, "t")
RESULTS: dict[str, Any] = {
    "none": None,
    "value": 5,
    "verdict": Retry(1),
    "raised verdict": Drop("no"),
    "error": ValueError("x"),
    "exit": SystemExit(3),
}


def outcome_of_call(call: Any) -> tuple[str, object]:
    try:
        return "returned", call()
    except BaseException as error:  # noqa: BLE001 - whatever a handler may raise
        return "raised", error


def call_wrapped(hooks: Hooks, handler: Any, *, is_async: bool) -> tuple[str, object]:
    """Calls the handler with its hooks, as a plain or as an `async` function."""
    if not is_async:
        return outcome_of_call(lambda: wrap_handler(hooks.registered, handler, is_async=False)(JOB))

    async def async_handler(job: Job) -> Any:
        return handler(job)

    async def call() -> tuple[str, object]:
        try:
            return "returned", await wrap_handler(hooks.registered, async_handler, is_async=True)(
                JOB
            )
        except BaseException as error:  # noqa: BLE001 - as above
            return "raised", error

    return asyncio.run(call())


@given(
    before=st.lists(st.booleans(), max_size=3),
    after=st.lists(st.booleans(), max_size=3),
    result=st.sampled_from(sorted(RESULTS)),
    is_async=st.booleans(),
)
def test_hooks_around_a_run_follow_the_table(
    before: list[bool], after: list[bool], result: str, is_async: bool
) -> None:
    """`before`, `after`: for each hook, whether it raises."""
    hooks, calls = Hooks(), list[str]()
    failure = RuntimeError("a hook")
    seen: list[HandlerRun] = []

    def make(name: str, raises: bool) -> Any:
        def hook(run: HandlerRun) -> None:
            calls.append(name)
            seen.append(run)
            if raises:
                raise failure

        return hook

    for number, raises in enumerate(before):
        hooks.before_run(make(f"before {number}", raises))
    for number, raises in enumerate(after):
        hooks.after_run(make(f"after {number}", raises))
    given_result = RESULTS[result]

    def handler(job: Job) -> Any:
        calls.append("handler")
        if isinstance(given_result, BaseException) and result != "verdict":
            raise given_result
        return given_result

    found = call_wrapped(hooks, handler, is_async=is_async)

    # The model.
    first_raising = next((n for n, raises in enumerate(before) if raises), None)
    called = before if first_raising is None else before[: first_raising + 1]
    expected = [f"before {n}" for n in range(len(called))]
    if first_raising is None:
        expected.append("handler")
    expected += [f"after {n}" for n in reversed(range(len(after)))]
    assert calls == expected
    final: Any = given_result if first_raising is None else failure
    is_raised = first_raising is not None or (
        isinstance(given_result, BaseException) and result != "verdict"
    )
    assert found == ("raised" if is_raised else "returned", final)
    assert len({id(run) for run in seen}) <= 1
    assert all(run.result is final for run in seen)


def test_a_failure_is_reported_with_the_state_of_the_run_and_its_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hooks, seen = Hooks(), list[Any]()

    @hooks.before_run
    def begin(run: HandlerRun) -> None:
        run.state["n"] = 1

    @hooks.on_failure
    def fail(run: HandlerRun) -> None:
        seen.append(("failure", run.state.get("n"), run.error, current_job()))
        raise SystemExit(1)

    @hooks.on_dead
    def die(run: HandlerRun) -> None:
        seen.append(("dead", run.state.get("n"), run.result, current_job()))

    def handler(job: Job) -> None:
        raise KeyError("x")

    kind, error = outcome_of_call(
        lambda: wrap_handler(hooks.registered, handler, is_async=False)(JOB)
    )
    assert kind == "raised"
    report_failure(hooks.registered, JOB, error, is_dead=False)
    assert seen == [("failure", 1, error, JOB)]
    assert "the on_failure hook" in caplog.text
    verdict, again = Retry(1), replace(JOB)  # the job's next run, without a wrapper: no state
    report_failure(hooks.registered, again, verdict, is_dead=True)
    assert seen[1:] == [("failure", None, None, again), ("dead", None, verdict, again)]
    assert current_job() is None
    # The run of another job of this thread, whose failure was no failure, lends nothing to this one.
    wrap_handler(hooks.registered, lambda job: None, is_async=False)(replace(JOB, job_id=9))
    report_failure(hooks.registered, JOB, verdict, is_dead=False)
    assert seen[-1] == ("failure", None, None, JOB)


JOBS = [replace(JOB, job_id=n) for n in range(3)]


@given(
    raising=st.none() | st.integers(0, 2),
    answer=st.sampled_from(["none", "list", "dict", "short", "raise"]),
    count=st.integers(1, 3),
    is_async=st.booleans(),
)
def test_hooks_around_a_batch_are_called_for_each_job(
    raising: int | None, answer: str, count: int, is_async: bool
) -> None:
    """`raising`: the job for which the hook before the run raises a verdict."""
    hooks, jobs, calls = Hooks(), JOBS[:count], list[Any]()
    verdicts = [None, Retry(1), Drop("x")][:count]
    answers: dict[str, Any] = {
        "none": None, "list": verdicts, "short": verdicts[:-1],
        "dict": {job.job_id: each for job, each in zip(jobs, verdicts, strict=True)},
    }  # fmt: skip

    @hooks.before_run
    def before(run: HandlerRun) -> None:
        calls.append(("before", run.job.job_id))
        if run.job.job_id == raising:
            raise Drop("this one")

    hooks.after_run(lambda run: calls.append(("after", run.job.job_id, run.result)))

    def handler(given_jobs: list[Job]) -> Any:
        assert given_jobs == jobs
        if answer == "raise":
            raise KeyError("x")
        return answers[answer]

    async def async_handler(given_jobs: list[Job]) -> Any:
        return handler(given_jobs)

    chosen: Any = async_handler if is_async else handler
    wrapped = wrap_batch_handler(hooks.registered, chosen, is_async=is_async)
    call = (lambda: asyncio.run(wrapped(jobs))) if is_async else (lambda: wrapped(jobs))
    kind, found = outcome_of_call(call)
    refused = raising is not None and raising < count
    begun = raising + 1 if refused and raising is not None else count
    expected = [("before", n) for n in range(begun)]
    if refused or answer == "raise":
        assert kind == "raised"
        # A verdict of a hook for one job must not become the verdict of all jobs.
        assert isinstance(found, Drop if refused and count == 1 else (RuntimeError, KeyError))
        expected += [("after", n, found) for n in reversed(range(begun))]  # type: ignore[misc]
    else:
        assert (kind, found) == ("returned", answers[answer])
        given_to = verdicts if answer != "none" else [None] * count
        if answer == "short":
            given_to = [*verdicts[:-1], None]
        expected += [("after", n, given_to[n]) for n in reversed(range(count))]  # type: ignore[misc]
    assert calls == expected


@given(
    before=st.lists(st.sampled_from(["pass", "raise", "bad trace"]), max_size=3),
    jobs=st.integers(1, 3),
)
def test_hooks_around_schedule_follow_the_table(before: list[str], jobs: int) -> None:
    hooks, ended = Hooks(), list[tuple[int, BaseException | None]]()
    for what in before:

        def hook(call: ScheduleCall, what: str = what) -> None:
            if call.biz_id == jobs - 1 and what == "raise":
                raise KeyError("no")
            call.trace = "two words" if what == "bad trace" and call.biz_id == jobs - 1 else "x"

        hooks.before_schedule(lambda call, hook=hook: hook(call))
    hooks.after_schedule(lambda call: ended.append((int(call.biz_id), call.error)))
    calls = [ScheduleCall(n, "a", DELAY, CallBatch(jobs, ("a",))) for n in range(jobs)]
    fails = "raise" in before or (bool(before) and before[-1] == "bad trace")
    if not fails:
        begin_calls(hooks.registered, calls)
        assert {call.trace for call in calls} == ({"x"} if before else {None})
        assert ended == []
        return
    with pytest.raises((KeyError, InvalidInput)):
        begin_calls(hooks.registered, calls)
    assert [biz_id for biz_id, _ in ended] == list(range(jobs))
    assert all(error is not None for _, error in ended)


def test_an_error_after_schedule_is_logged_only(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks()
    calls: list[str] = []

    @hooks.after_schedule
    def first(call: ScheduleCall) -> None:
        calls.append("first")

    @hooks.after_schedule
    def second(call: ScheduleCall) -> None:
        calls.append("second")
        raise ValueError("no")

    caplog.set_level(logging.ERROR)
    end_calls(hooks.registered, [ScheduleCall(1, "a", DELAY, CallBatch(1, ("a",)))])
    assert calls == ["second", "first"]
    assert "the after_schedule hook" in caplog.text


def test_registration() -> None:
    hooks = Hooks()
    assert not hooks.registered.are_around_runs
    assert not hooks.registered.are_around_schedule

    def hook(run: HandlerRun) -> None: ...

    assert hooks.on_dead(hook) is hook
    hooks.on_dead(hook)  # the same once more: no second call
    assert len(hooks.registered.on_dead) == 1
    assert hooks.registered.are_around_runs
    assert not hooks.registered.are_around_schedule

    async def later(run: HandlerRun) -> None: ...

    for bad in (later, 5, None):
        with pytest.raises(InvalidInput, match="hook"):
            hooks.before_run(bad)  # type: ignore[type-var]
    for _ in range(HOOKS_MAX):
        hooks.before_run(lambda run: None)
    with pytest.raises(InvalidInput, match=str(HOOKS_MAX)):
        hooks.before_run(lambda run: None)
    assert toc.hooks is registry.hooks
