"""Reports failures of handlers to Sentry; needs toc[sentry].

    import sentry_sdk
    from toc.integrations import sentry

    sentry_sdk.init(dsn=...)
    sentry.instrument()

An event has the tags toc.biz_type, toc.job_id and toc.attempt. Sentry itself adds the local variables of the
frames, so a payload too, unless `sentry_sdk.init(include_local_variables=False)`.
"""

from __future__ import annotations

from weakref import WeakSet

import sentry_sdk

from toc.handlers.hooks import HandlerRun, Hooks
from toc.handlers.registry import registry
from toc.handlers.verdicts import Verdict

_instrumented: WeakSet[Hooks] = WeakSet()


def instrument(hooks: Hooks | None = None, *, every_attempt: bool = False) -> None:
    """Registers the hooks; a second call for the same hooks changes nothing.

    hooks: of a center (`center.hooks`); default: `toc.hooks`. every_attempt: False: only jobs that become
    dead are reported; True: each exception of an attempt is, also if the job is tried again.
    """
    target = registry.hooks if hooks is None else hooks
    if target in _instrumented:
        return
    _instrumented.add(target)
    if every_attempt:
        target.on_failure(_report_exception)
        target.on_dead(_report_verdict)
    else:
        target.on_dead(_report_exception)
        target.on_dead(_report_verdict)


def _report_exception(run: HandlerRun) -> None:
    if run.error is not None:
        with sentry_sdk.new_scope() as scope:
            _set_tags(scope, run)
            scope.capture_exception(run.error)


def _report_verdict(run: HandlerRun) -> None:
    """Reports a job that is dead by a verdict: `toc.Dead`, or `toc.Retry` in the last attempt."""
    if isinstance(run.result, Verdict):
        with sentry_sdk.new_scope() as scope:
            _set_tags(scope, run)
            text = f"a job of {run.job.biz_type} is dead: {run.result}"
            scope.capture_message(text, level="error")


def _set_tags(scope: sentry_sdk.Scope, run: HandlerRun) -> None:
    scope.set_tag("toc.biz_type", run.job.biz_type)
    scope.set_tag("toc.job_id", str(run.job.job_id))
    scope.set_tag("toc.attempt", str(run.job.attempts))
