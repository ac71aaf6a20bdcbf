"""Hooks: functions of an application that toc calls around `schedule` and around each run of a handler.

    @toc.hooks.before_run
    def count_start(run: toc.HandlerRun) -> None: ...

The table of rules is in docs/how-to/hooks.md. A hook is a plain function and must be quick: it runs in the
thread of the handler, or on the event loop of `async` handlers. Without hooks, nothing is called.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from toc.domain.argument_checks import check_trace
from toc.domain.job import Job
from toc.errors import InvalidInput
from toc.handlers.current_job import running_job
from toc.handlers.verdicts import Verdict

log = logging.getLogger(__name__)

_HOOK_FAILED = "the %s hook %r failed; toc goes on as without it"
HOOKS_MAX = 100
"""Hooks of one kind, at most: a module that registers its hooks again and again is found early."""


@dataclass(slots=True, eq=False)
class HandlerRun:
    """One run of a handler, as hooks see it.

    job: the job. result: what the handler returned or raised, None until then; verdicts and exceptions alike.
    state: for the hooks' own values, from `before_run` to `on_dead` of the same run.
    """

    job: Job
    result: object = None
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> BaseException | None:
        """The exception that the handler raised; None: it raised none, or only a verdict."""
        result = self.result
        is_error = isinstance(result, BaseException) and not isinstance(result, Verdict)
        return result if is_error and isinstance(result, BaseException) else None


@dataclass(slots=True, eq=False)
class ScheduleCall:
    """One job that is about to be scheduled, as hooks see it. Its arguments have passed all checks.

    trace: what toc keeps with the job, up to 64 characters without spaces, as a W3C traceparent; a
    `before_schedule` hook may set it, and the handler finds it in `job.trace`. job_id: for `after_schedule`,
    if the job was written or kept. error: why it was not. state: for the hooks' own values.
    """

    biz_id: int | str
    biz_type: str
    action_time: datetime | timedelta
    dedup_key: str | None = None
    tenant: str | None = None
    trace: str | None = None
    job_id: int | None = None
    error: BaseException | None = None
    state: dict[str, Any] = field(default_factory=dict)


RunHook = TypeVar("RunHook", bound=Callable[[HandlerRun], object])
ScheduleHook = TypeVar("ScheduleHook", bound=Callable[[ScheduleCall], object])
_current_run: ContextVar[HandlerRun | None] = ContextVar("toc_handler_run", default=None)
"""The last run of this thread or task that had hooks: its hooks after a failure get the same object."""


class Hooks:
    """The hooks of a registry. Each method is a decorator that returns the function. Thread-safe.

    Raises InvalidInput for an object that cannot be called, an `async` function, and too many hooks.
    """

    def __init__(self) -> None:
        self._before_run: tuple[Callable[[HandlerRun], object], ...] = ()
        self._after_run: tuple[Callable[[HandlerRun], object], ...] = ()
        self._on_failure: tuple[Callable[[HandlerRun], object], ...] = ()
        self._on_dead: tuple[Callable[[HandlerRun], object], ...] = ()
        self._before_schedule: tuple[Callable[[ScheduleCall], object], ...] = ()
        self._after_schedule: tuple[Callable[[ScheduleCall], object], ...] = ()

    # ---- registration

    def before_run(self, hook: RunHook) -> RunHook:
        """Called before the handler.

        If it raises, the handler does not run, and the attempt ends as if the handler had raised that.
        """
        self._before_run = _with_hook(self._before_run, hook)
        return hook

    def after_run(self, hook: RunHook) -> RunHook:
        """Called after the handler, and after a `before_run` that raised; the last registered one first.

        `run.result` is what the handler returned or raised. If the hook raises, the error is logged, and the
        result stands.
        """
        self._after_run = _with_hook(self._after_run, hook)
        return hook

    def on_failure(self, hook: RunHook) -> RunHook:
        """Called when an attempt has failed: by an exception, `Retry` or `Dead`. Its errors are logged."""
        self._on_failure = _with_hook(self._on_failure, hook)
        return hook

    def on_dead(self, hook: RunHook) -> RunHook:
        """Called after `on_failure` when the failed attempt was the last one. Errors are logged.

        It runs before the outcome is written: if the worker loses the job at that moment, the job may run
        once more. It is not called for a job that dies without a run: when a last attempt loses its lease.
        """
        self._on_dead = _with_hook(self._on_dead, hook)
        return hook

    def before_schedule(self, hook: ScheduleHook) -> ScheduleHook:
        """Called for each job before any is written. If it raises, the call does too, and writes nothing."""
        self._before_schedule = _with_hook(self._before_schedule, hook)
        return hook

    def after_schedule(self, hook: ScheduleHook) -> ScheduleHook:
        """Called for each job after the call, also after an error; the last registered one first.

        If the hook raises, the error is logged, and the call returns as without it.
        """
        self._after_schedule = _with_hook(self._after_schedule, hook)
        return hook

    # ---- calls, by the worker and the clients

    @property
    def has_run_hooks(self) -> bool:
        return bool(self._before_run or self._after_run or self._on_failure or self._on_dead)

    @property
    def has_schedule_hooks(self) -> bool:
        return bool(self._before_schedule or self._after_schedule)

    def wrap_handler(
        self, function: Callable[[Job], Any], *, is_async: bool
    ) -> Callable[[Job], Any]:
        """The function with the hooks before and after it, which are looked up when it is called."""
        if is_async:

            @functools.wraps(function)
            async def run_async(job: Job) -> Any:
                run = HandlerRun(job)
                _current_run.set(run)
                try:
                    self._call_before_run(run)
                    run.result = await function(job)
                except BaseException as error:
                    run.result = error
                    raise
                finally:
                    _call_and_log(reversed(self._after_run), run, "after_run")
                return run.result

            return run_async

        @functools.wraps(function)
        def run_function(job: Job) -> Any:
            run = HandlerRun(job)
            _current_run.set(run)
            try:
                self._call_before_run(run)
                run.result = function(job)
            except BaseException as error:
                run.result = error
                raise
            finally:
                _call_and_log(reversed(self._after_run), run, "after_run")
            return run.result

        return run_function

    def _call_before_run(self, run: HandlerRun) -> None:
        for hook in self._before_run:
            hook(run)

    def report_failure(self, job: Job, result: object, *, is_dead: bool) -> None:
        """Calls the hooks of a failed attempt. Called by the worker, in the thread or task of the handler."""
        if not (self._on_failure or self._on_dead):
            return
        run = _current_run.get()
        if run is None or run.job is not job:  # the handler was not called, or has no other hooks
            run = HandlerRun(job)
        run.result = result
        before = running_job.get()
        running_job.set(job)
        try:
            _call_and_log(self._on_failure, run, "on_failure")
            if is_dead:
                _call_and_log(self._on_dead, run, "on_dead")
        finally:
            running_job.set(before)
            _current_run.set(None)

    def begin_schedule(self, calls: Sequence[ScheduleCall]) -> None:
        """Calls the hooks before a schedule. Raises what a hook raises, and InvalidInput for a bad trace."""
        for done, call in enumerate(calls):
            try:
                for hook in self._before_schedule:
                    hook(call)
                check_trace(call.trace)
            except BaseException as error:
                for begun in calls[: done + 1]:
                    begun.error = error
                self.end_schedule(calls[: done + 1])
                raise

    def end_schedule(self, calls: Sequence[ScheduleCall]) -> None:
        """Calls the hooks after a schedule. Never raises."""
        for call in calls:
            for hook in reversed(self._after_schedule):
                try:
                    hook(call)
                except Exception:
                    log.exception(_HOOK_FAILED, "after_schedule", hook)


def _with_hook(hooks: tuple[Any, ...], hook: Any) -> tuple[Any, ...]:
    if not callable(hook) or inspect.iscoroutinefunction(hook):
        raise InvalidInput("hook", hook, "must be a plain function that takes one argument")
    if hook in hooks:
        return hooks
    if len(hooks) >= HOOKS_MAX:
        raise InvalidInput("hook", hook, f"must be one of at most {HOOKS_MAX} of its kind")
    return (*hooks, hook)


def _call_and_log(
    hooks: Iterable[Callable[[HandlerRun], object]], run: HandlerRun, kind: str
) -> None:
    """Calls each hook; an error of one is logged, and the others are called."""
    for hook in hooks:
        try:
            hook(run)
        except BaseException:
            log.exception(_HOOK_FAILED, kind, hook)
