"""The steps of `debounce`."""

from __future__ import annotations

from toc.center.connections import Connections
from toc.center.debounce_spec import CheckedDebounce
from toc.runtime import metrics
from toc.store.jobs import InsertResult
from toc.store.quiet_periods import QuietCall, debounce_job
from toc.timer.reminder import Reminder


def debounce(state: Connections, wanted: CheckedDebounce) -> InsertResult:
    """Moves or inserts the job, and arms it."""
    database = state.database_of_business(wanted.job.business)
    state.payload_checks.check_job(database, wanted.job)
    (new,) = state.make_new_jobs(database, [wanted.job])
    call = QuietCall(new, wanted.key, wanted.max_wait_ms)
    done = debounce_job(state.databases, state.jobs, call)
    metrics.SCHEDULED.inc(done.holder is None)
    state.arm_near_jobs([(wanted.job.biz_type, Reminder(done.due_ms, done.job_id))])
    return done
