"""The steps of `debounce`."""

from __future__ import annotations

from toc.center.connections import Connections
from toc.center.debounce_spec import CheckedDebounce
from toc.store.jobs import InsertResult
from toc.store.quiet_periods import QuietCall, debounce_job
from toc.timer.reminder import Reminder


def debounce(state: Connections, wanted: CheckedDebounce) -> InsertResult:
    """Moves or inserts the job, and arms a new one.

    The reminder of a moved job stays where it is: when it is popped, the claim finds the job due later, and
    puts the reminder back at the job's time. So a call costs no call of Redis.
    """
    database = state.database_of_business(wanted.job.business)
    state.payload_checks.check_job(database, wanted.job)
    (new,) = state.make_new_jobs(database, [wanted.job])
    call = QuietCall(new, wanted.key, wanted.max_wait_ms)
    done = debounce_job(state.databases, state.jobs, call)
    if done.holder is None:
        state.count_scheduled(wanted.job.biz_type)
        state.arm_near_jobs([(wanted.job.biz_type, Reminder(done.due_ms, done.job_id))])
    return done
