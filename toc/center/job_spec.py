"""The arguments of a job to schedule: as a caller gives them, and as they were checked."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Required, TypedDict

from toc.domain.argument_checks import check_biz_type, check_trace, encode_attribute
from toc.domain.biz_ids import BusinessId, check_business_id
from toc.domain.countdown import check_free_key
from toc.domain.priorities import check_priority
from toc.domain.times import action_time_to_ms
from toc.errors import InvalidInput

When = datetime | timedelta


class JobSpec(TypedDict, total=False):
    """One job for `schedule_many`; biz_id and action_time are required."""

    biz_id: Required[int | str]
    action_time: Required[When]
    biz_type: str
    attribute: dict[str, Any] | None
    dedup_key: str | None
    tenant: str | None
    trace: str | None
    priority: int


_FIELDS = JobSpec.__annotations__.keys()
_REQUIRED = frozenset({"biz_id", "action_time"})


class CheckedJob(NamedTuple):
    """The checked arguments of one job to schedule.

    action_time: in ms since 1970, or the delay from the time of the job's database. attribute: JSON text.
    """

    business: BusinessId
    biz_type: str
    action_time: int | timedelta
    attribute: str | None
    dedup_key: str | None
    trace: str | None = None
    priority: int = 0


def check_job_fields(
    now_ms: int, attribute_bytes_max: int, fields: Mapping[str, Any], biz_type: str
) -> CheckedJob:
    """Checks the arguments of `schedule`. Raises InvalidInput.

    `now_ms`: the time now, by the clock of this process. It only serves to check that a delay ends within
    the range of DATETIME, so the clock need not be exact. `biz_type`: if `fields` names none.
    """
    action_time = fields["action_time"]
    action_ms = action_time_to_ms(action_time, now_ms)
    return CheckedJob(
        check_business_id(fields["biz_id"], fields.get("tenant")),
        check_biz_type(fields.get("biz_type", biz_type)),
        action_time if isinstance(action_time, timedelta) else action_ms,
        encode_attribute(fields.get("attribute"), attribute_bytes_max),
        check_free_key(fields.get("dedup_key")),
        check_trace(fields.get("trace")),
        check_priority(fields.get("priority", 0)),
    )


def check_job_spec(
    now_ms: int, attribute_bytes_max: int, position: int, job: object, biz_type: str
) -> CheckedJob:
    """Checks one item of `schedule_many`, a pair or a mapping of fields. Raises InvalidInput."""
    if isinstance(job, tuple) and len(job) == 2:
        job = {"biz_id": job[0], "action_time": job[1]}
    if not isinstance(job, Mapping):
        raise InvalidInput(
            f"jobs[{position}]", job, "must be a dict or a pair (biz_id, action_time)"
        )
    if not _REQUIRED <= job.keys() <= _FIELDS:
        unknown = job.keys() - _FIELDS
        name = min(map(str, unknown or _REQUIRED - job.keys()))
        rule = "is not a field of a job" if unknown else "is missing"
        raise InvalidInput(f"jobs[{position}].{name}", job.get(name), rule)
    try:
        return check_job_fields(now_ms, attribute_bytes_max, job, biz_type)
    except InvalidInput as error:
        raise InvalidInput(f"jobs[{position}].{error.field}", error.value, error.rule) from None
