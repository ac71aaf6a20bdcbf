"""Calls the hooks around the jobs of one call of `schedule`, `schedule_many` or `schedule_each`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toc.center.job_spec import CheckedJob
from toc.domain.times import datetime_of
from toc.handlers.hook_calls import begin_calls, end_calls
from toc.handlers.hooks import CallBatch, Hooks, RegisteredHooks, ScheduleCall

if TYPE_CHECKING:  # a remote client has no store
    from toc.store.jobs import InsertResult

    Result = InsertResult | int | BaseException | None
    """The result of a job, or its job_id; or why it was not written, None: because another one failed."""


class HookedSchedule:
    """The jobs of one call whose `before_schedule` hooks have run. `jobs`: with the traces of the hooks."""

    def __init__(self, hooks: RegisteredHooks, wanted: Sequence[CheckedJob]) -> None:
        self._hooks = hooks
        batch = CallBatch(len(wanted), tuple(sorted({job.biz_type for job in wanted})))
        self._calls = [_make_call(job, batch) for job in wanted]
        begin_calls(hooks, self._calls)
        self.jobs = [
            job if call.trace == job.trace else job._replace(trace=call.trace)
            for job, call in zip(wanted, self._calls, strict=True)
        ]

    def end(self, results: Sequence[Result], error: BaseException | None = None) -> None:
        """Calls the `after_schedule` hooks. `error`: of the jobs without a result."""
        for call, result in zip(self._calls, results, strict=True):
            if isinstance(result, BaseException):
                call.error = result
            elif result is None:
                call.error = error
            else:
                call.job_id = result if isinstance(result, int) else result.job_id
        end_calls(self._hooks, self._calls)

    def fail(self, error: BaseException) -> None:
        """Calls the `after_schedule` hooks after an error of the whole call."""
        self.end([None] * len(self._calls), error)


def begin_schedule(hooks: Hooks, wanted: Sequence[CheckedJob]) -> HookedSchedule | None:
    """Calls the `before_schedule` hooks; None: there are no hooks. Raises what a hook raises."""
    registered = hooks.registered
    return HookedSchedule(registered, wanted) if registered.are_around_schedule else None


def _make_call(job: CheckedJob, batch: CallBatch) -> ScheduleCall:
    when = job.action_time
    return ScheduleCall(
        job.business.given_id, job.biz_type, datetime_of(when) if isinstance(when, int) else when,
        batch, job.dedup_key, job.business.tenant, job.trace,
    )  # fmt: skip
