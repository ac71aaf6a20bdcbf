"""The steps of `countdown` and `arrive`."""

from __future__ import annotations

from toc.center.connections import Connections
from toc.center.job_spec import CheckedJob
from toc.center.job_target import JobTarget
from toc.domain.argument_checks import check_biz_type
from toc.domain.countdown import COUNTDOWN_KEY, ArrivalAnswer, check_own_key
from toc.errors import DuplicateJob
from toc.store.countdowns import NewArrival, count_arrival, insert_countdown
from toc.store.jobs import InsertResult, OnDuplicate
from toc.timer.reminder import Reminder


def start_countdown(
    state: Connections, job: CheckedJob, count: int, on_duplicate: OnDuplicate, actor: str | None
) -> InsertResult:
    """Inserts the countdown and arms its job."""
    database = state.database_of_business(job.business)
    state.payload_checks.check_job(database, job)
    (new,) = state.make_new_jobs(database, [job])
    try:
        inserted = insert_countdown(state.jobs, new, count, on_duplicate, actor)
    except DuplicateJob as error:  # names the key that the caller gave
        key = error.dedup_key.removeprefix(COUNTDOWN_KEY)
        raise DuplicateJob(
            error.job_id, error.biz_id, error.biz_type, key, running=error.running
        ) from None
    if inserted.written:
        state.count_scheduled(job.biz_type)
        state.arm_near_jobs([(job.biz_type, Reminder(inserted.due_ms, inserted.job_id))])
    return inserted


def countdown_target(
    job_id: object, biz_id: object, biz_type: object, dedup_key: object, tenant: object
) -> JobTarget:
    """The countdown that a call of `arrive` names. Raises InvalidInput."""
    key = COUNTDOWN_KEY + check_own_key(dedup_key)
    return JobTarget.from_arguments(job_id, biz_id, check_biz_type(biz_type), key, tenant)


def arrive_at(
    state: Connections, target: JobTarget, arrival_id: str, actor: str | None
) -> ArrivalAnswer:
    """Counts the arrival; arms the job if it is the last one."""
    job_ids = target.find_job_ids(state)
    if job_ids:
        job_id = job_ids[0]
        now_ms = state.database_now_ms(state.database_of_job(job_id))
        arrival = NewArrival(job_id, arrival_id, now_ms, actor or state.jobs.actor)
        answer = count_arrival(state.databases, arrival)
        if answer == "completed":
            state.arm_changed_job(job_id, now_ms)
        if answer != "unknown" or answer.hint is not None:
            return answer
    return ArrivalAnswer("unknown", hint=target.make_answer_for_no_job(state).hint)
