"""Calls hooks: for the worker, around handlers; for clients, around `schedule`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from toc.domain.argument_checks import check_trace
from toc.domain.job import Job
from toc.handlers.current_job import running_job
from toc.handlers.hooks import CallBatch, HandlerRun, RegisteredHooks, ScheduleCall

log = logging.getLogger(__name__)

_HOOK_FAILED = "the %s hook %r failed; toc goes on as without it"
_current_runs: ContextVar[Sequence[HandlerRun]] = ContextVar("toc_handler_runs", default=())
"""The last runs of this thread or task that had hooks: their hooks after a failure get the same objects."""


def wrap_handler(
    hooks: RegisteredHooks, function: Callable[[Job], Any], *, is_async: bool
) -> Callable[[Job], Any]:
    """The function with the hooks before and after it, which are looked up when it is called."""
    if is_async:

        @functools.wraps(function)
        async def run_async(job: Job) -> Any:
            run = _make_runs([job])[0]
            _current_runs.set((run,))
            try:
                _call_before_run(hooks, run)
                run.result = await function(job)
            except BaseException as error:
                run.result = error
                raise
            finally:
                _call_and_log(reversed(hooks.after_run), run, "after_run")
            return run.result

        return run_async

    @functools.wraps(function)
    def run_function(job: Job) -> Any:
        run = _make_runs([job])[0]
        _current_runs.set((run,))
        try:
            _call_before_run(hooks, run)
            run.result = function(job)
        except BaseException as error:
            run.result = error
            raise
        finally:
            _call_and_log(reversed(hooks.after_run), run, "after_run")
        return run.result

    return run_function


def wrap_batch_handler(
    hooks: RegisteredHooks, function: Callable[[list[Job]], Any], *, is_async: bool
) -> Callable[[list[Job]], Any]:
    """The function of a batch with the hooks of each of its jobs before and after it."""
    if is_async:

        @functools.wraps(function)
        async def run_async(jobs: list[Job]) -> Any:
            runs = _make_runs(jobs)
            begun = list[HandlerRun]()
            try:
                _begin_batch(hooks, runs, begun)
                result = await function(jobs)
                _set_results(runs, result)
            except BaseException as error:
                _set_error(runs, error)
                raise
            finally:
                _end_batch(hooks, begun)
            return result

        return run_async

    @functools.wraps(function)
    def run_function(jobs: list[Job]) -> Any:
        runs = _make_runs(jobs)
        begun = list[HandlerRun]()
        try:
            _begin_batch(hooks, runs, begun)
            result = function(jobs)
            _set_results(runs, result)
        except BaseException as error:
            _set_error(runs, error)
            raise
        finally:
            _end_batch(hooks, begun)
        return result

    return run_function


def _make_runs(jobs: Sequence[Job]) -> list[HandlerRun]:
    """The runs of one call of a handler, whose jobs have one type."""
    batch = CallBatch(len(jobs), (jobs[0].biz_type,))
    return [HandlerRun(job, batch) for job in jobs]


def _begin_batch(
    hooks: RegisteredHooks, runs: Sequence[HandlerRun], begun: list[HandlerRun]
) -> None:
    """Calls the hooks before a batch. `begun` gets the runs whose hooks were called.

    What a hook raises is about one job, and must not end the others: so a batch of several jobs fails, and
    each of them runs alone.
    """
    _current_runs.set(runs)
    for run in runs:
        begun.append(run)
        try:
            _call_before_run(hooks, run)
        except BaseException as error:
            if len(runs) == 1:
                raise
            text = f"a before_run hook has raised for job {run.job.job_id} of the batch"
            raise RuntimeError(text) from error


def _set_results(runs: Sequence[HandlerRun], result: object) -> None:
    """Gives each run its part of what a batch handler has returned."""
    for position, run in enumerate(runs):
        if isinstance(result, Mapping):
            run.result = result.get(run.job.job_id)
        elif isinstance(result, (list, tuple)):
            run.result = result[position] if position < len(result) else None
        else:
            run.result = result


def _set_error(runs: Sequence[HandlerRun], error: BaseException) -> None:
    for run in runs:
        run.result = error


def _end_batch(hooks: RegisteredHooks, begun: Sequence[HandlerRun]) -> None:
    for run in reversed(begun):
        _call_and_log(reversed(hooks.after_run), run, "after_run")


def _call_before_run(hooks: RegisteredHooks, run: HandlerRun) -> None:
    for hook in hooks.before_run:
        hook(run)


def report_failure(hooks: RegisteredHooks, job: Job, result: object, *, is_dead: bool) -> None:
    """Calls the hooks of a failed attempt, in the thread or task of the handler. Never raises."""
    if not (hooks.on_failure or hooks.on_dead):
        return
    known = (run for run in _current_runs.get() if run.job is job)
    run = next(known, None) or _make_runs([job])[0]  # a new one: the handler was not called
    run.result = result
    before = running_job.get()
    running_job.set(job)
    try:
        _call_and_log(hooks.on_failure, run, "on_failure")
        if is_dead:
            _call_and_log(hooks.on_dead, run, "on_dead")
    finally:
        running_job.set(before)


def begin_calls(hooks: RegisteredHooks, calls: Sequence[ScheduleCall]) -> None:
    """Calls the hooks before a schedule. Raises what a hook raises, and InvalidInput for a bad trace."""
    for done, call in enumerate(calls):
        try:
            for hook in hooks.before_schedule:
                hook(call)
            check_trace(call.trace)
        except BaseException as error:
            for begun in calls[: done + 1]:
                begun.error = error
            end_calls(hooks, calls[: done + 1])
            raise


def end_calls(hooks: RegisteredHooks, calls: Sequence[ScheduleCall]) -> None:
    """Calls the hooks after a schedule. Never raises an Exception."""
    for call in calls:
        for hook in reversed(hooks.after_schedule):
            try:
                hook(call)
            except Exception:
                log.exception(_HOOK_FAILED, "after_schedule", hook)


def _call_and_log(
    hooks: Iterable[Callable[[HandlerRun], object]], run: HandlerRun, kind: str
) -> None:
    """Calls each hook; an error of one is logged, and the others are called."""
    for hook in hooks:
        try:
            hook(run)
        except BaseException:
            log.exception(_HOOK_FAILED, kind, hook)
