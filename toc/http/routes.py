"""The table of routes: every call that the HTTP interface has."""

from __future__ import annotations

from http import HTTPStatus

from toc.http import (
    countdown_calls,
    debounce_calls,
    declaration_calls,
    explain_calls,
    job_calls,
    job_verbs,
    lease_calls,
    mass_change_calls,
    pause_calls,
    recurring_calls,
)
from toc.http.call import Route
from toc.http.mass_change_models import (
    MassChangeIn,
    MassChangeOut,
    MassChangesOut,
    MassCountIn,
    MassCountOut,
)
from toc.http.models import (
    AnswerOut,
    ArrivalOut,
    ArriveIn,
    BackfillIn,
    BackfillOut,
    BusinessArriveIn,
    BusinessIn,
    BusinessRescheduleIn,
    CountdownIn,
    DebounceIn,
    ExplanationOut,
    ExtendIn,
    FailIn,
    FinishIn,
    HealthOut,
    JobIn,
    JobOut,
    JobResults,
    JobsIn,
    JobsOut,
    LeaseIn,
    LeaseResults,
    LeasesOut,
    PauseIn,
    PauseOut,
    PausesOut,
    ReasonIn,
    RecurringIn,
    RecurringListOut,
    RecurringOut,
    ReleaseIn,
    RescheduleIn,
    ResumeIn,
    RunOut,
    ScheduledOut,
    TypeChangesIn,
    TypeIn,
    TypeOut,
    TypesOut,
)

_OK, _CREATED = HTTPStatus.OK, HTTPStatus.CREATED
_NOT_FOUND, _CONFLICT = HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT

ROUTES: tuple[Route, ...] = (
    Route(
        "POST", "/v1/jobs", job_calls.schedule_jobs, ScheduledOut,
        "Schedule a job, or several: 201 if the job is new, 200 if one with its key was kept or changed; of "
        "several each has its own result.",
        scope="schedule", bodies=(JobIn, JobsIn), statuses=(_CREATED, _OK), problems=(_CONFLICT,),
        audited="jobs.schedule",
    ),
    Route(
        "POST", "/v1/jobs:countdown", countdown_calls.start_countdown, ScheduledOut,
        "Start a countdown: a job that fires when so many arrivals have come, at the latest at its deadline.",
        scope="schedule", bodies=(CountdownIn,), statuses=(_CREATED, _OK), problems=(_CONFLICT,),
        audited="jobs.countdown",
    ),
    Route(
        "POST", "/v1/jobs:debounce", debounce_calls.debounce_job, ScheduledOut,
        "Move the pending job of a key to the end of a quiet period, up to a maximum; or make one.",
        scope="schedule", bodies=(DebounceIn,), statuses=(_CREATED, _OK), problems=(_CONFLICT,),
        audited="jobs.debounce",
    ),
    # Paths with a verb come before the path that would take the verb as a part of an id.
    Route(
        "POST", "/v1/jobs/{job_id}:cancel", job_verbs.cancel_job, AnswerOut,
        "Cancel a pending job: after \"cancelled\" no handler starts.",
        scope="cancel", bodies=(ReasonIn,), needs_body=False, audited="jobs.cancel",
    ),
    Route(
        "POST", "/v1/jobs/{job_id}:reschedule", job_verbs.reschedule_job, AnswerOut,
        "Move a pending job to another time.",
        scope="cancel", bodies=(RescheduleIn,), audited="jobs.reschedule",
    ),
    Route(
        "POST", "/v1/jobs/{job_id}:redrive", job_verbs.redrive_job, AnswerOut,
        "Make a dead job pending again, due now, with all attempts.",
        scope="operate", bodies=(ReasonIn,), needs_body=False, audited="jobs.redrive",
    ),
    Route(
        "POST", "/v1/jobs/{job_id}:discard", job_verbs.discard_job, AnswerOut,
        "Cancel a dead job: after \"cancelled\" it cannot be redriven.",
        scope="operate", bodies=(ReasonIn,), needs_body=False, audited="jobs.discard",
    ),
    Route(
        "POST", "/v1/jobs/{job_id}:run_now", job_verbs.run_job_now, AnswerOut,
        "Make a pending job due now.",
        scope="operate", bodies=(ReasonIn,), needs_body=False, audited="jobs.run_now",
    ),
    Route(
        "POST", "/v1/jobs/{job_id}:arrive", countdown_calls.arrive_by_id, ArrivalOut,
        "Count an arrival of a countdown; the last one makes the job due now.",
        scope="schedule", bodies=(ArriveIn,), audited="jobs.arrive",
    ),
    Route(
        "GET", "/v1/jobs/{job_id}", job_calls.get_job, JobOut,
        "Show a job, at once or when it has ended.",
        scope="read", statuses=(_OK, HTTPStatus.NOT_MODIFIED), problems=(_NOT_FOUND,),
        query={
            "wait_s": "Wait so many seconds for the end of the job, at most; it may still be live then.",
        },
        is_long_poll=True,
    ),
    Route(
        "GET", "/v1/jobs/{job_id}/explain", explain_calls.explain, ExplanationOut,
        "Show a job, its events, its reminder, and what happens to it next.",
        scope="read", problems=(_NOT_FOUND,),
    ),
    Route(
        "GET", "/v1/types/{biz_type}/jobs", job_calls.find_jobs, JobsOut,
        "List the jobs of a business id, newest first.",
        scope="read",
        query={
            "biz_id": "The business id; digits mean an integer.",
            "biz_id_is_text": "true: digits are a text.",
            "key": "Only jobs with this key.",
            "limit": "The size of a page (default 100).",
            "before": "Only jobs that were made before this job_id: `next` of the page before.",
        },
    ),
    Route(
        "POST", "/v1/types/{biz_type}/jobs:cancel", job_verbs.cancel_by_key, AnswerOut,
        "Cancel all live jobs of a business id (and key).",
        scope="cancel", bodies=(BusinessIn,), audited="jobs.cancel",
    ),
    Route(
        "POST", "/v1/types/{biz_type}/jobs:reschedule", job_verbs.reschedule_by_key, AnswerOut,
        "Move the live job of a business id (and key) to another time.",
        scope="cancel", bodies=(BusinessRescheduleIn,), audited="jobs.reschedule",
    ),
    Route(
        "POST", "/v1/types/{biz_type}/jobs:redrive", job_verbs.redrive_by_key, AnswerOut,
        "Make the newest dead job of a business id (and key) pending again.",
        scope="operate", bodies=(BusinessIn,), audited="jobs.redrive",
    ),
    Route(
        "POST", "/v1/types/{biz_type}/jobs:run_now", job_verbs.run_now_by_key, AnswerOut,
        "Make the live job of a business id (and key) due now.",
        scope="operate", bodies=(BusinessIn,), audited="jobs.run_now",
    ),
    Route(
        "POST", "/v1/types/{biz_type}/jobs:arrive", countdown_calls.arrive_by_key, ArrivalOut,
        "Count an arrival of the countdown of a business id (and key).",
        scope="schedule", bodies=(BusinessArriveIn,), audited="jobs.arrive",
    ),
    Route(
        "POST", "/v1/types/{biz_type}:pause", pause_calls.pause_type, PauseOut,
        "Pause a type for all tenants; it needs a token without a tenant.",
        scope="operate", bodies=(PauseIn,), needs_body=False, audited="types.pause",
    ),
    Route(
        "POST", "/v1/types/{biz_type}:resume", pause_calls.resume_type, PauseOut,
        "End the pause of a type; its jobs start again at a growing rate.",
        scope="operate", bodies=(ResumeIn,), needs_body=False, audited="types.resume",
    ),
    Route(
        "POST", "/v1/topics/{topic}:pause", pause_calls.pause_topic, PauseOut,
        "Pause all types of a topic; it needs a token for all types, without a tenant.",
        scope="admin", bodies=(PauseIn,), needs_body=False, audited="topics.pause",
    ),
    Route(
        "POST", "/v1/topics/{topic}:resume", pause_calls.resume_topic, PauseOut,
        "End the pause of a topic; it needs a token for all types, without a tenant.",
        scope="admin", bodies=(ResumeIn,), needs_body=False, audited="topics.resume",
    ),
    Route(
        "POST", "/v1/all:pause", pause_calls.pause_everything, PauseOut,
        "Pause everything; it needs a token for all types, without a tenant.",
        scope="admin", bodies=(PauseIn,), needs_body=False, audited="all.pause",
    ),
    Route(
        "POST", "/v1/all:resume", pause_calls.resume_everything, PauseOut,
        "End the pause of everything; it needs a token for all types, without a tenant.",
        scope="admin", bodies=(ResumeIn,), needs_body=False, audited="all.resume",
    ),
    Route(
        "GET", "/v1/pauses", pause_calls.list_pauses, PausesOut,
        "List what is paused, and what ramps after a pause.", scope="read",
    ),
    Route(
        "POST", "/v1/leases", lease_calls.lease_jobs, LeasesOut,
        "Lease due jobs of pull types; waits for them.",
        scope="consume", bodies=(LeaseIn,), audited="leases.lease", is_long_poll=True,
    ),
    Route(
        "POST", "/v1/leases:finish", lease_calls.finish_leases, LeaseResults, "End leased jobs as done.",
        scope="consume", bodies=(FinishIn,), audited="leases.finish",
    ),
    Route(
        "POST", "/v1/leases:fail", lease_calls.fail_leases, LeaseResults,
        "End attempts as failed: another one follows, until the attempts are used up.",
        scope="consume", bodies=(FailIn,), audited="leases.fail",
    ),
    Route(
        "POST", "/v1/leases:extend", lease_calls.extend_leases, LeaseResults, "Move the ends of leases.",
        scope="consume", bodies=(ExtendIn,), audited="leases.extend",
    ),
    Route(
        "POST", "/v1/leases:release", lease_calls.release_leases, LeaseResults,
        "Give jobs back: due at once, the attempt is not counted.",
        scope="consume", bodies=(ReleaseIn,), audited="leases.release",
    ),
    Route(
        "GET", "/v1/recurring", recurring_calls.list_schedules, RecurringListOut,
        "List the recurring schedules that the token may use.", scope="read",
    ),
    Route(
        "POST", "/v1/recurring/{name}:pause", recurring_calls.pause_schedule, RecurringOut,
        "Pause a recurring schedule: its job that has not begun is cancelled.",
        scope="operate", bodies=(ReasonIn,), needs_body=False, problems=(_NOT_FOUND,),
        audited="recurring.pause",
    ),
    Route(
        "POST", "/v1/recurring/{name}:resume", recurring_calls.resume_schedule, RecurringOut,
        "Resume a paused recurring schedule from now on.",
        scope="operate", bodies=(ReasonIn,), needs_body=False, problems=(_NOT_FOUND,),
        audited="recurring.resume",
    ),
    Route(
        "POST", "/v1/recurring/{name}:run", recurring_calls.run_schedule, RunOut,
        "Make one more job of a recurring schedule, due now.",
        scope="operate", problems=(_NOT_FOUND,), audited="recurring.run",
    ),
    Route(
        "POST", "/v1/recurring/{name}:backfill", recurring_calls.backfill_schedule, BackfillOut,
        "Make the jobs of a range of nominal times that had none, due now.",
        scope="operate", bodies=(BackfillIn,), problems=(_NOT_FOUND,), audited="recurring.backfill",
    ),
    Route(
        "GET", "/v1/recurring/{name}", recurring_calls.get_schedule, RecurringOut,
        "Show a recurring schedule.", scope="read", problems=(_NOT_FOUND,),
        query={"next": "How many of its next times to show (default 1, at most 1000)."},
    ),
    Route(
        "PUT", "/v1/recurring/{name}", recurring_calls.put_schedule, RecurringOut,
        "Declare a recurring schedule, or change it as a whole.",
        scope="admin", bodies=(RecurringIn,), problems=(_NOT_FOUND,), audited="recurring.put",
    ),
    Route(
        "DELETE", "/v1/recurring/{name}", recurring_calls.delete_schedule, RecurringOut,
        "Remove a recurring schedule, and cancel its job that has not begun.",
        scope="admin", problems=(_NOT_FOUND,), audited="recurring.remove",
    ),
    Route(
        "GET", "/v1/types", declaration_calls.list_types, TypesOut,
        "List the declared types that the token may use.", scope="read",
    ),
    Route(
        "POST", "/v1/types/{biz_type}:forget", declaration_calls.forget_type, TypeOut,
        "Remove the declaration of a type; its jobs stay. It needs a token without a tenant.",
        scope="admin", bodies=(ReasonIn,), needs_body=False, problems=(_NOT_FOUND,),
        audited="types.forget",
    ),
    Route(
        "GET", "/v1/types/{biz_type}", declaration_calls.get_type, TypeOut,
        "Show a declared type.", scope="read", problems=(_NOT_FOUND,),
    ),
    Route(
        "PUT", "/v1/types/{biz_type}", declaration_calls.declare_type, TypeOut,
        "Declare a type, as a whole. It needs a token without a tenant.",
        scope="admin", bodies=(TypeIn,), audited="types.declare",
    ),
    Route(
        "PATCH", "/v1/types/{biz_type}", declaration_calls.set_type, TypeOut,
        "Change single fields of a declared type. It needs a token without a tenant.",
        scope="admin", bodies=(TypeChangesIn,), problems=(_NOT_FOUND,), audited="types.set",
    ),
    Route(
        "POST", "/v1/mass_changes:count", mass_change_calls.count_jobs, MassCountOut,
        "Count the dead jobs to redrive or to discard, or the pending jobs to cancel; nothing is changed.",
        scope="operate", bodies=(MassCountIn,),
    ),
    Route(
        "POST", "/v1/mass_changes", mass_change_calls.start_change, MassChangeOut,
        "Redrive or cancel the jobs that were counted, at a rate, in the background; a cancel also needs the "
        "scope 'cancel'.",
        scope="operate", bodies=(MassChangeIn,), statuses=(_CREATED,), problems=(_CONFLICT,),
        audited="mass_changes.start",
    ),
    Route(
        "GET", "/v1/mass_changes", mass_change_calls.list_changes, MassChangesOut,
        "List the newest mass changes of the token's types and tenant, newest first.", scope="read",
    ),
    Route(
        "POST", "/v1/mass_changes/{mass_change_id}:stop", mass_change_calls.stop_change, MassChangeOut,
        "Stop a mass change; it ends within 2 seconds, after the jobs that it is changing.",
        scope="operate", problems=(_NOT_FOUND,), audited="mass_changes.stop",
    ),
    Route(
        "GET", "/v1/mass_changes/{mass_change_id}", mass_change_calls.get_change, MassChangeOut,
        "Show how far a mass change is.", scope="read", problems=(_NOT_FOUND,),
    ),
    Route(
        "GET", "/v1/health", explain_calls.health, HealthOut, "Whether the databases answer.",
        statuses=(_OK, HTTPStatus.SERVICE_UNAVAILABLE),
    ),
)  # fmt: skip

BULK_ANSWERS = {"/v1/jobs": JobResults}
"""The answers of routes to a body with several items, where they differ from those to a single one."""
