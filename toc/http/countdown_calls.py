"""The actions of countdowns: start one, and count an arrival."""

from __future__ import annotations

from http import HTTPStatus

from toc.access.authorise import is_allowed
from toc.domain.biz_ids import check_business_id
from toc.domain.countdown import ArrivalAnswer
from toc.domain.job import Scheduled
from toc.errors import InvalidInput
from toc.http.backend import Backend
from toc.http.call import Call, Reply
from toc.http.declared import not_allowed, require_type
from toc.http.job_calls import require_room
from toc.http.job_checks import check_single_payload, with_names_of_http
from toc.http.job_documents import (
    arrival_document,
    parse_biz_id,
    parse_job_id,
    parse_when,
    scheduled_document,
)
from toc.http.models import CountdownIn


async def start_countdown(backend: Backend, call: Call) -> Reply:
    """POST /v1/jobs:countdown."""
    body: CountdownIn = call.body
    caller, limits = call.caller, backend.settings.limits
    declared = require_type(backend, caller, "schedule", body.biz_type)
    check_single_payload(declared, body.payload, limits.attribute_bytes)
    biz_id = parse_biz_id(body.biz_id, body.biz_id_is_text, digits_are_text=True)
    business = check_business_id(biz_id, caller.tenant)
    try:
        deadline = parse_when(body.deadline, body.delay)
    except InvalidInput as error:
        raise _with_deadline(error) from None

    def start() -> Scheduled:
        return backend.center.countdown(
            biz_id, count=body.count, deadline=deadline, biz_type=body.biz_type,
            attribute=body.payload, dedup_key=body.key, on_duplicate=body.on_duplicate,
            tenant=caller.tenant, priority=body.priority, actor=caller.actor, details=True,
        )  # fmt: skip

    index = backend.database_of_business(business)
    await require_room(backend, index, business, body.biz_type)
    try:
        done = await backend.calls.run(index, start)
    except InvalidInput as error:
        raise with_names_of_http(error) from None
    return Reply(
        scheduled_document(done),
        HTTPStatus.CREATED if done.created else HTTPStatus.OK,
        {"Location": f"/v1/jobs/{done.job_id}"},
        done.did,
        f"{body.biz_type} {done.job_id}",
        int(done.created),
    )


async def arrive_by_id(backend: Backend, call: Call) -> Reply:
    """POST /v1/jobs/{job_id}:arrive."""
    job_id = parse_job_id(call.path["job_id"])

    def read_and_arrive() -> ArrivalAnswer:
        job = backend.center.get(job_id)
        if job is None or not is_allowed(call.caller, "schedule", job.biz_type, job.tenant):
            return ArrivalAnswer("unknown")
        return backend.center.arrive(call.body.arrival_id, job_id=job_id, actor=call.caller.actor)

    answer = await backend.calls.run(backend.database_of_job(job_id), read_and_arrive)
    return _reply(answer, str(job_id))


async def arrive_by_key(backend: Backend, call: Call) -> Reply:
    """POST /v1/types/{biz_type}/jobs:arrive."""
    biz_type, caller, body = call.path["biz_type"], call.caller, call.body
    if not is_allowed(caller, "schedule", biz_type, caller.tenant):
        raise not_allowed("schedule")
    biz_id = parse_biz_id(body.biz_id, body.biz_id_is_text, digits_are_text=True)
    business = check_business_id(biz_id, caller.tenant)

    def arrive() -> ArrivalAnswer:
        return backend.center.arrive(
            body.arrival_id, biz_id=biz_id, biz_type=biz_type, dedup_key=body.key,
            tenant=caller.tenant, actor=caller.actor,
        )  # fmt: skip

    try:
        answer = await backend.calls.run(backend.database_of_business(business), arrive)
    except InvalidInput as error:
        raise with_names_of_http(error) from None
    return _reply(answer, f"{biz_type} {business.given_id!r} {body.key!r}")


def _with_deadline(error: InvalidInput) -> InvalidInput:
    rule = error.rule.replace("action_time", "deadline")
    return InvalidInput(error.field.replace("action_time", "deadline"), error.value, rule)


def _reply(answer: ArrivalAnswer, target: str) -> Reply:
    return Reply(
        arrival_document(answer),
        outcome=str(answer),
        target=target,
        rows_changed=int(answer in ("arrived", "completed")),
    )
