"""The documents of the HTTP interface. The OpenAPI page is made from these models.

Requests are strict: an unknown name, or a text where a number is expected, is refused. Ids in answers are
texts, since JavaScript has no 64-bit integers.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

KEY_CHARS_MAX = 64
BULK_MAX = 5000  # of `web.limits.bulk`, which is the limit in force

BizId = Annotated[
    int | str,
    Field(
        description="The business id: an integer from 0 to 2^64-1, or a text of 1 to 64 characters. The "
        'integer 42 and the text "42" are different businesses.'
    ),
]
IsText = Annotated[
    bool | None,
    Field(
        description="false: a `biz_id` that is a text of digits means the integer, for languages without "
        "64-bit integers"
    ),
]
Key = Annotated[
    str | None,
    Field(
        max_length=KEY_CHARS_MAX,
        description="There is one live job per tenant, biz_id, biz_type and key: the `dedup_key` of Python.",
    ),
]
OwnKey = Annotated[
    str,
    Field(
        max_length=56,
        description="There is one live countdown, and one debounced job, per tenant, biz_id, biz_type "
        "and key.",
    ),
]
Reason = Annotated[
    str | None, Field(max_length=1000, description="Why; it is kept in the job's events.")
]
ActionTime = Annotated[
    str | None,
    Field(
        max_length=64,
        description="An RFC 3339 time, as 2026-01-31T18:00:00Z; the past means at once.",
    ),
]
Delay = Annotated[
    float | int | str | None,
    Field(
        description="Instead of action_time: seconds, or an ISO 8601 duration as PT30M, from now by the "
        "database's clock."
    ),
]
JobId = Annotated[str, Field(pattern=r"^[0-9]{1,19}$", description="A job_id, as a text.")]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


# ---- jobs


JobPriority = Annotated[
    int,
    Field(
        ge=0,
        le=9,
        description="Where due jobs of the type wait, those of a higher priority go first, if the type is "
        "declared with a priority.",
    ),
]


class JobIn(_Request):
    """A job to schedule. Give `action_time` or `delay`."""

    biz_id: BizId
    biz_id_is_text: IsText = None
    biz_type: Annotated[str, Field(max_length=64, description="A declared type.")]
    action_time: ActionTime = None
    delay: Delay = None
    payload: Annotated[
        dict[str, Any] | None,
        Field(description="A JSON object that the handler gets: `attribute`."),
    ] = None
    key: Key = None
    on_duplicate: Annotated[
        Literal["keep", "replace", "earliest", "latest", "error"],
        Field(description="What happens if a live job has the key."),
    ] = "keep"
    trace: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=64,
            pattern="^[!-~]+$",
            description="Kept with the job: a W3C traceparent, say. Of a single job, default: the header "
            "traceparent.",
        ),
    ] = None
    priority: JobPriority = 0


class JobsIn(_Request):
    """Several jobs. Each is authorised, checked and written for itself; each has its own result."""

    jobs: Annotated[
        list[JobIn],
        Field(min_length=1, max_length=BULK_MAX, description="At most web.limits.bulk."),
    ]


class ScheduledOut(_Answer):
    """The job that acts on the call. `running`: it was kept and runs already, so it will not."""

    job_id: str
    did: Literal["inserted", "replaced", "kept"]
    running: bool


class ProblemOut(BaseModel):
    """RFC 9457. `code` is stable; `field` and `rule` say what to change."""

    model_config = ConfigDict(extra="allow")
    type: str
    title: str
    status: int
    detail: str
    code: str
    field: str | None = None
    rule: str | None = None
    job_id: str | None = None
    running: bool | None = None
    request_id: str | None = None


class JobResult(_Answer):
    """The result of one job of a bulk: as of a single one, or a problem."""

    job_id: str | None = None
    did: Literal["inserted", "replaced", "kept"] | None = None
    running: bool | None = None
    problem: ProblemOut | None = None


class JobResults(_Answer):
    """The results in the order of the jobs."""

    results: list[JobResult]


class ProgressOut(_Answer):
    """How far a job is."""

    done: int
    total: int


class DebounceIn(_Request):
    """A call that one job may stand for, together with others of its tenant, biz_id, biz_type and key."""

    biz_id: BizId
    biz_id_is_text: IsText = None
    biz_type: Annotated[str, Field(max_length=64, description="A declared type.")]
    quiet: Annotated[
        float | int | str,
        Field(
            description="The job fires when no call has come for so long: seconds, or an ISO 8601 duration."
        ),
    ]
    max_wait: Annotated[
        float | int | str,
        Field(description="The longest time from the call that made the job, as quiet."),
    ]
    payload: Annotated[
        dict[str, Any] | None,
        Field(description="A JSON object; the handler gets that of the last call."),
    ] = None
    key: OwnKey = ""
    priority: JobPriority = 0


class CountdownIn(_Request):
    """A countdown to start. Give `deadline` or `delay`."""

    biz_id: BizId
    biz_id_is_text: IsText = None
    biz_type: Annotated[str, Field(max_length=64, description="A declared type.")]
    count: Annotated[
        int, Field(ge=1, le=10_000, description="Arrivals to wait for: up to limits.countdown.")
    ]
    deadline: ActionTime = None
    delay: Delay = None
    payload: Annotated[
        dict[str, Any] | None,
        Field(description="A JSON object that the handler gets: `attribute`."),
    ] = None
    key: OwnKey = ""
    on_duplicate: Annotated[
        Literal["keep", "once", "error"],
        Field(
            description="What happens if a live countdown has the key; once: also one that has ended."
        ),
    ] = "keep"
    priority: JobPriority = 0


class ArriveIn(_Request):
    """An arrival of a countdown."""

    arrival_id: Annotated[
        str, Field(min_length=1, max_length=64, description="The same one counts once.")
    ]


class BusinessArriveIn(ArriveIn):
    """An arrival of the countdown of a business id (and key)."""

    biz_id: BizId
    biz_id_is_text: IsText = None
    key: OwnKey = ""


class ArrivalOut(_Answer):
    """Whether the arrival counts. arrived: it does. completed: it was the last one; the job is due now.

    repeated: an earlier call has counted it. Otherwise it does not count, and this is the job's status.
    unknown: no such countdown that you may see.
    """

    answer: Literal[
        "arrived", "completed", "repeated", "pending", "running", "done", "already_cancelled", "dead",
        "unknown",
    ]  # fmt: skip
    job_id: str | None
    arrived: int
    wanted: int


class CountdownOut(_Answer):
    """How far a countdown is. `by`: what made it fire; null: it has not fired."""

    wanted: int
    arrived: int
    arrival_ids: list[str]
    by: Literal["arrivals", "deadline"] | None


class JobOut(_Answer):
    """A job as its database has it now."""

    job_id: str
    biz_id: str
    biz_id_is_text: bool
    tenant: str | None
    biz_type: str
    status: Literal["pending", "running", "done", "cancelled", "dead"]
    action_time: str
    due_time: Annotated[
        str | None,
        Field(description="When toc acts next; running: the end of the lease; ended: null."),
    ]
    attempts: int
    payload: dict[str, Any]
    key: str | None
    trace: str | None
    priority: int
    progress: Annotated[
        ProgressOut | None, Field(description="What the job's handler or consumer has told last.")
    ]
    result: Annotated[
        Any, Field(description="What a job that is done has kept: any JSON, or null.")
    ]
    countdown: Annotated[
        CountdownOut | None, Field(description="Of a countdown; null in lists of jobs.")
    ]
    masked: Annotated[
        bool,
        Field(description="Payload, progress and result are left out: they need the scope admin."),
    ]


class JobsOut(_Answer):
    """Jobs, newest first. `next`: give it as `before` for the next page; null: there are no more."""

    jobs: list[JobOut]
    next: str | None


class ReasonIn(_Request):
    """Why a job is changed."""

    reason: Reason = None


class RescheduleIn(_Request):
    """The new time. Give `action_time` or `delay`."""

    action_time: ActionTime = None
    delay: Delay = None
    reason: Reason = None


class BusinessIn(_Request):
    """The live jobs of a business id (and key)."""

    biz_id: BizId
    biz_id_is_text: IsText = None
    key: Key = None
    reason: Reason = None


class BusinessRescheduleIn(BusinessIn):
    """The live job of a business id (and key), and its new time."""

    action_time: ActionTime = None
    delay: Delay = None


class AnswerOut(_Answer):
    """What the call did, or the status that the job has instead. `unknown`: no such job that you may see."""

    answer: Literal[
        "cancelled", "rescheduled", "redriven", "pending", "running", "done", "already_cancelled", "dead",
        "superseded", "unknown",
    ]  # fmt: skip
    job_id: str | None
    attempts: int


class EventOut(_Answer):
    """A recorded change of the job."""

    time: str
    what: str
    from_status: str
    to_status: str
    attempts: int
    claimed_time: Annotated[
        str | None,
        Field(
            description="When the attempt began that this event ends; null: it ends none, or the attempt "
            "was lost: its worker died or hung, so that its end is not known."
        ),
    ]
    took_ms: Annotated[int | None, Field(description="From claimed_time to the event, in ms.")]
    actor: str
    reason: str | None


class ReminderOut(_Answer):
    """Where the reminder of a job is in Redis."""

    topic: str
    slot: int
    armed_time: Annotated[str | None, Field(description="Its score: when it is due.")]
    out_time: Annotated[
        str | None,
        Field(description="It was popped: when it comes back, unless a worker settles the job."),
    ]


class OwnerOut(_Answer):
    """A node that owns the slot of the job in a topic; `topic` null: the node that owns its shard."""

    topic: str | None
    node: str
    since: str
    deputy: Annotated[str | None, Field(description="The node that takes over from it.")]


class ExplanationOut(_Answer):
    """A job, its events, its reminder in Redis and how late it was."""

    job: JobOut
    means: Annotated[str, Field(description="The state and what happens next, in a sentence.")]
    created_time: str
    claimed_time: Annotated[str | None, Field(description="When its last attempt began.")]
    ended_time: str | None
    shard: int
    armed_time: Annotated[str | None, Field(description="When its reminder in Redis is due.")]
    reminder: Annotated[
        ReminderOut | None, Field(description="null: there is no Redis, or it did not answer.")
    ]
    runner: Annotated[str | None, Field(description="The process that runs it: host:pid.")]
    owners: Annotated[list[OwnerOut], Field(description="Empty without ZooKeeper.")]
    claimed_after_ms: int | None
    ended_after_ms: int | None
    error: Annotated[str | None, Field(description="The last error of a dead job.")]
    events: list[EventOut]
    missing: Annotated[list[str], Field(description="Servers that did not answer.")]


# ---- leases


class LeaseIn(_Request):
    """Asks for due jobs of pull types; waits for them up to `wait_s` seconds."""

    types: Annotated[
        list[str], Field(min_length=1, max_length=1000, description="Declared pull types.")
    ]
    max: Annotated[
        int, Field(ge=1, le=1000, description="Jobs, at most: up to leases.jobs_max.")
    ] = 1
    wait_s: Annotated[
        float | int, Field(ge=0, le=3600, description="Up to leases.wait_s_max; 0: answer at once.")
    ] = 0
    lease_s: Annotated[
        float | int | None,
        Field(
            gt=0, le=86_400, description="How long the leases last (default: the type's timeout)."
        ),
    ] = None


class LeaseOut(_Answer):
    """A job that is leased to you until `lease_until`. `token` settles the lease; keep it secret.

    nominal_time: the time of the recurring schedule that the job stands for; null: it is of none.
    """

    job_id: str
    token: str
    lease_until: str
    attempt: int
    biz_id: str
    biz_id_is_text: bool
    biz_type: str
    tenant: str | None
    action_time: str
    nominal_time: str | None
    payload: dict[str, Any]
    trace: str | None
    countdown: CountdownOut | None


class LeasesOut(_Answer):
    """The leased jobs; none if no job came due in time."""

    leases: list[LeaseOut]


Token = Annotated[str, Field(min_length=1, max_length=96, description="The token of the lease.")]


class ProgressIn(_Request):
    """How far a job is: integers with 0 <= done <= total."""

    done: Annotated[int, Field(ge=0)]
    total: Annotated[int, Field(ge=1, le=2**53 - 1)]


Told = Annotated[
    ProgressIn | None, Field(description="How far the job is; shown as `progress` of the job.")
]


class ReleaseItem(_Request):
    """A lease to give back."""

    job_id: JobId
    token: Token


class FinishItem(ReleaseItem):
    """A lease that ends as done. A result of more than `limits.result_bytes` is not kept."""

    progress: Told = None
    result: Annotated[
        Any, Field(description="Any JSON that the job keeps until retention deletes it.")
    ] = None


class FailItem(ReleaseItem):
    """An attempt that failed: the type's retry policy decides when the next one is, or `retry_after_s`.

    then: dead: more attempts would not help. cancelled: no action is needed any more. snooze: again after
    `retry_after_s`, and the attempt is not counted.
    """

    reason: Annotated[str | None, Field(min_length=1, max_length=1000)] = None
    retry_after_s: Annotated[float | int | None, Field(ge=0)] = None
    then: Literal["retry", "dead", "cancelled", "snooze"] = "retry"
    progress: Told = None


class ExtendItem(ReleaseItem):
    """A lease that lasts until `lease_s` from now (default: the type's timeout)."""

    progress: Told = None
    lease_s: Annotated[float | int | None, Field(gt=0, le=86_400)] = None


class FinishIn(_Request):
    """Leases that end as done."""

    items: Annotated[list[FinishItem], Field(min_length=1, max_length=BULK_MAX)]


class FailIn(_Request):
    """Attempts that failed."""

    items: Annotated[list[FailItem], Field(min_length=1, max_length=BULK_MAX)]


class ExtendIn(_Request):
    """Leases to extend."""

    items: Annotated[list[ExtendItem], Field(min_length=1, max_length=BULK_MAX)]


class ReleaseIn(_Request):
    """Leases to give back: due at once, the attempt is not counted."""

    items: Annotated[list[ReleaseItem], Field(min_length=1, max_length=BULK_MAX)]


class LeaseResult(_Answer):
    """What became of one lease.

    lost: the token is not, or not any more, that of a running lease: nothing was changed. limit: the attempt
    has lasted as long as extensions allow. unknown: no such job that you may see. unavailable: its database
    does not answer: call again.
    """

    job_id: str
    outcome: Literal["settled", "extended", "released", "lost", "limit", "unknown", "unavailable"]
    lease_until: str | None = None


class LeaseResults(_Answer):
    """The results in the order of the items."""

    results: list[LeaseResult]


# ---- pauses


class PauseIn(_Request):
    """Until when the target is paused: `until` or `delay`; neither: until somebody resumes it."""

    until: Annotated[
        str | None, Field(max_length=64, description="An RFC 3339 time in the future.")
    ] = None
    delay: Delay = None
    reason: Reason = None


class ResumeIn(_Request):
    """How the target is resumed."""

    now: Annotated[bool | None, Field(description="true: without a ramp, or end the ramp now")] = (
        None
    )
    reason: Reason = None


class PauseOut(_Answer):
    """A pause. `rate_per_s`: while it ramps: how many jobs may start in a second, in all processes."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    target: Annotated[str, Field(description="type:NAME, topic:NAME or all.")]
    state: Literal["paused", "ramping", "over"]
    from_: Annotated[str, Field(alias="from", description="When it began.")]
    until: Annotated[
        str | None, Field(description="When it ends or ended; null: when somebody resumes.")
    ]
    rate_per_s: float | None
    actor: Annotated[
        str | None,
        Field(description="Null, as the reason, for a token that may not pause the target."),
    ]
    reason: str | None


class PausesOut(_Answer):
    """The pauses and ramps of the types that the token may read."""

    pauses: list[PauseOut]


# ---- types, health


class TypeIn(_Request):
    """The declaration of a type, as a whole: a field that is null or left out is not set."""

    mode: Annotated[
        Literal["handler", "pull", "sink"] | None,
        Field(description="Who does the jobs (default: handler; with a sink: sink)."),
    ] = None
    sink: Annotated[
        str | None,
        Field(max_length=300, description="Where workers send the jobs: one that web.sinks has."),
    ] = None
    timeout_s: Annotated[
        float | int | None, Field(description="Seconds that one run or lease may take.")
    ] = None
    max_attempts: Annotated[int | None, Field(description="Runs before a job is dead.")] = None
    retry: Annotated[
        str | list[float | int] | dict[str, float | int] | None,
        Field(
            description='"exponential", "webhook", waits in seconds, or first_s, factor, max_s, jitter.'
        ),
    ] = None
    payload_schema: Annotated[
        dict[str, Any] | None, Field(description="JSON Schema (2020-12) of payloads.")
    ] = None
    rate: Annotated[
        str | None, Field(max_length=20, description="Jobs that may start: 500/s, 100/m, 1000/h.")
    ] = None
    burst: Annotated[int | None, Field(description="Starts at once after a pause.")] = None
    concurrency: Annotated[int | None, Field(description="Jobs that may run at once.")] = None
    per: Annotated[
        str | None,
        Field(max_length=80, description="The limits hold for each biz_id, tenant, payload.FIELD."),
    ] = None
    codec: Annotated[
        str | None,
        Field(
            max_length=32,
            description="Encrypts the payloads: one that the server has. It cannot be removed over HTTP.",
        ),
    ] = None
    priority: Annotated[
        int | None,
        Field(
            description="0 to 9: before which other types it goes; with it its jobs' priorities count."
        ),
    ] = None
    reason: Annotated[
        str | None, Field(max_length=1000, description="Why; kept in the type's history.")
    ] = None


class TypeChangesIn(TypeIn):
    """Single fields to change. null: the field is not set any more; what is left out stays."""


class TypeOut(_Answer):
    """A declared type, and its last change. `sets`: the fields that the declaration sets.

    The other fields have the defaults; a handler's decorator may say otherwise. payload_schema: a JSON Schema
    that payloads must fit; null: any. rate ("500/s"), burst, concurrency, per ("biz_id"): its limits over all
    nodes; null: no such limit. priority: 0 to 9, before which other types it goes; null: the priorities of
    its jobs do not count. actor, reason: null for a token with a tenant. away: databases that did not
    answer the change, and get it from a node.
    """

    name: str
    mode: Literal["handler", "pull", "sink"]
    timeout_s: float
    max_attempts: int
    retry: str | list[float] | dict[str, float]
    payload_schema: dict[str, Any] | None
    sink: str | None
    rate: str | None
    burst: int | None
    concurrency: int | None
    per: str | None
    codec: str | None
    priority: int | None
    sets: list[str]
    version: int
    changed: str
    actor: str | None
    reason: str | None
    away: list[int]


class TypesOut(_Answer):
    """The declared types that the token may use."""

    types: list[TypeOut]


class HealthOut(_Answer):
    """`ok`; `degraded`: some databases do not answer; `down`: none does."""

    state: Literal["ok", "degraded", "down"]


# ---- recurring schedules

_ScheduleTime = Annotated[
    str | None, Field(max_length=64, description="An RFC 3339 time, as 2026-01-31T18:00:00Z.")
]
_Length = Annotated[
    float | int | str,
    Field(description="Whole seconds, or an ISO 8601 duration as PT30M."),
]


class RecurringIn(_Request):
    """A recurring schedule. Give one of `cron`, `every` and `rrule`."""

    biz_type: Annotated[str, Field(max_length=64, description="A declared type: of the jobs.")]
    cron: Annotated[
        str | None, Field(max_length=200, description='Five fields of cron, as "0 3 * * *".')
    ] = None
    every: Annotated[
        float | int | str | None,
        Field(description="Time between two jobs: whole seconds, or an ISO 8601 duration."),
    ] = None
    rrule: Annotated[
        str | None, Field(max_length=500, description="An RRULE of RFC 5545; needs `start`.")
    ] = None
    tz: Annotated[
        str, Field(max_length=64, description="The zone of cron and rrule, as Asia/Shanghai.")
    ] = "UTC"
    payload: Annotated[
        dict[str, Any] | None, Field(description="A JSON object that each job's handler gets.")
    ] = None
    start: _ScheduleTime = None
    end: _ScheduleTime = None
    gap: Annotated[
        Literal["skip", "next"],
        Field(description="For wall times that daylight saving skips: none, or the gap's end."),
    ] = "skip"
    overlap: Annotated[
        Literal["skip", "queue", "cancel-other"],
        Field(description="For a time at which the job before still lives."),
    ] = "skip"
    catch_up: _Length = 3600
    jitter: _Length = 0
    priority: JobPriority = 0
    reason: Reason = None


class RecurringOut(_Answer):
    """A recurring schedule as it stands now. job_id, nominal_time: its newest job."""

    name: str
    biz_type: str
    cron: str | None
    every_s: int | None
    rrule: str | None
    tz: str
    gap: Literal["skip", "next"]
    start: str | None
    end: str | None
    overlap: Literal["skip", "queue", "cancel-other"]
    catch_up_s: int
    jitter_s: int
    priority: int
    payload: dict[str, Any] | None
    masked: Annotated[bool, Field(description="The payload is left out: it needs the scope admin.")]
    paused_since: str | None
    job_id: str | None
    nominal_time: str | None
    next_times: list[str]
    made: int
    skipped: int
    version: int
    actor: str
    reason: str | None


class RecurringListOut(_Answer):
    """The recurring schedules of the token's tenant and types."""

    recurring: list[RecurringOut]


class RunOut(_Answer):
    """The job that was made."""

    job_id: str


class BackfillIn(_Request):
    """The range of a backfill, both ends included."""

    start: Annotated[str, Field(max_length=64, description="An RFC 3339 time.")]
    end: Annotated[str, Field(max_length=64, description="An RFC 3339 time.")]


class BackfillOut(_Answer):
    """The new jobs; `present`: nominal times that had a job already."""

    job_ids: list[str]
    present: int
