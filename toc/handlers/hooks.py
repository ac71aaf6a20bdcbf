"""Hooks: functions of an application that toc calls around `schedule` and around each run of a handler.

    @toc.hooks.before_run
    def count_start(run: toc.HandlerRun) -> None: ...

The table of rules is in docs/how-to/hooks.md. A hook is a plain function and must be quick: it runs in the
thread of the handler, or on the event loop of `async` handlers. Without hooks, nothing is called.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from toc.domain.job import Job
from toc.domain.run_control import TraceIds
from toc.errors import InvalidInput
from toc.handlers.verdicts import Verdict

log = logging.getLogger(__name__)

HOOKS_MAX = 100
"""Hooks of one kind, at most: a module that registers its hooks again and again is found early."""


@dataclass(slots=True, eq=False)
class CallBatch:
    """The jobs that one call of `schedule_many`, or of a batch handler, is about. Other calls have one job.

    size: how many. biz_types: their types, each once. state: for the hooks' own values, which all jobs of the
    call share.
    """

    size: int
    biz_types: tuple[str, ...]
    state: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class HandlerRun:
    """One run of a handler, as hooks see it.

    job: the job. batch: the jobs of the same call of the handler. result: what the handler returned or
    raised, None until then; verdicts and exceptions alike. state: for the hooks' own values, from
    `before_run` to `on_dead` of the same run.
    """

    job: Job
    batch: CallBatch
    result: object = None
    state: dict[str, Any] = field(default_factory=dict)

    @property
    def lateness_s(self) -> float | None:
        """Seconds from the job's action time to the start of its first attempt.

        None: a later attempt, or a job that a pause or its ramp has made late.
        """
        control = self.job._control  # noqa: SLF001 - the state of this run
        return None if control is None else control.lateness_s

    def set_trace_ids(self, trace_id: str, span_id: str) -> None:
        """Adds the ids of a span to the log lines of this run, also to the line about its failure."""
        control = self.job._control  # noqa: SLF001 - the state of this run
        if control is not None:
            control.trace_ids = TraceIds(trace_id, span_id)

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
    if the job was written or kept. error: why it was not. batch: the jobs of the same call. state: for the
    hooks' own values.
    """

    biz_id: int | str
    biz_type: str
    action_time: datetime | timedelta
    batch: CallBatch
    dedup_key: str | None = None
    tenant: str | None = None
    trace: str | None = None
    job_id: int | None = None
    error: BaseException | None = None
    state: dict[str, Any] = field(default_factory=dict)


RunHook = TypeVar("RunHook", bound=Callable[[HandlerRun], object])
ScheduleHook = TypeVar("ScheduleHook", bound=Callable[[ScheduleCall], object])


@dataclass(slots=True, eq=False)
class RegisteredHooks:
    """The hooks of each kind, in the order of their registration."""

    before_run: tuple[Callable[[HandlerRun], object], ...] = ()
    after_run: tuple[Callable[[HandlerRun], object], ...] = ()
    on_failure: tuple[Callable[[HandlerRun], object], ...] = ()
    on_dead: tuple[Callable[[HandlerRun], object], ...] = ()
    before_schedule: tuple[Callable[[ScheduleCall], object], ...] = ()
    after_schedule: tuple[Callable[[ScheduleCall], object], ...] = ()

    @property
    def are_around_runs(self) -> bool:
        return bool(self.before_run or self.after_run or self.on_failure or self.on_dead)

    @property
    def are_around_schedule(self) -> bool:
        return bool(self.before_schedule or self.after_schedule)


class Hooks:
    """The hooks of a registry. Each method is a decorator that returns the function. Thread-safe.

    Raises InvalidInput for an object that cannot be called, an `async` function, and too many hooks.
    """

    def __init__(self) -> None:
        self.registered = RegisteredHooks()

    def before_run(self, hook: RunHook) -> RunHook:
        """Called before the handler.

        If it raises, the handler does not run, and the attempt ends as if the handler had raised that.
        """
        self.registered.before_run = _with_hook(self.registered.before_run, hook)
        return hook

    def after_run(self, hook: RunHook) -> RunHook:
        """Called after the handler, and after a `before_run` that raised; the last registered one first.

        `run.result` is what the handler returned or raised. If the hook raises, the error is logged, and the
        result stands.
        """
        self.registered.after_run = _with_hook(self.registered.after_run, hook)
        return hook

    def on_failure(self, hook: RunHook) -> RunHook:
        """Called when an attempt has failed: by an exception, `Retry` or `Dead`. Its errors are logged."""
        self.registered.on_failure = _with_hook(self.registered.on_failure, hook)
        return hook

    def on_dead(self, hook: RunHook) -> RunHook:
        """Called after `on_failure` when the failed attempt was the last one. Errors are logged.

        It runs before the outcome is written: if the worker loses the job at that moment, the job may run
        once more. It is not called for a job that dies without a run: when a last attempt loses its lease.
        """
        self.registered.on_dead = _with_hook(self.registered.on_dead, hook)
        return hook

    def before_schedule(self, hook: ScheduleHook) -> ScheduleHook:
        """Called for each job before any is written. If it raises, the call does too, and writes nothing."""
        self.registered.before_schedule = _with_hook(self.registered.before_schedule, hook)
        return hook

    def after_schedule(self, hook: ScheduleHook) -> ScheduleHook:
        """Called for each job after the call, also after an error; the last registered one first.

        If the hook raises, the error is logged, and the call returns as without it.
        """
        self.registered.after_schedule = _with_hook(self.registered.after_schedule, hook)
        return hook


def _with_hook(hooks: tuple[Any, ...], hook: Any) -> tuple[Any, ...]:
    if not callable(hook) or inspect.iscoroutinefunction(hook):
        raise InvalidInput("hook", hook, "must be a plain function that takes one argument")
    if hook in hooks:
        return hooks
    if len(hooks) >= HOOKS_MAX:
        raise InvalidInput("hook", hook, f"must be one of at most {HOOKS_MAX} of its kind")
    return (*hooks, hook)
