"""The action of debounced jobs."""

from __future__ import annotations

from datetime import timedelta
from http import HTTPStatus

from toc.domain.biz_ids import check_business_id
from toc.domain.job import Scheduled
from toc.errors import InvalidInput
from toc.http.backend import Backend
from toc.http.call import Call, Reply
from toc.http.declared import require_type
from toc.http.job_calls import require_room
from toc.http.job_checks import check_single_payload, with_names_of_http
from toc.http.job_documents import parse_biz_id, scheduled_document
from toc.http.models import DebounceIn
from toc.http.wire_times import parse_delay


async def debounce_job(backend: Backend, call: Call) -> Reply:
    """POST /v1/jobs:debounce."""
    body: DebounceIn = call.body
    caller = call.caller
    declared = require_type(backend, caller, "schedule", body.biz_type)
    check_single_payload(declared, body.payload, backend.settings.limits.attribute_bytes)
    biz_id = parse_biz_id(body.biz_id, body.biz_id_is_text, digits_are_text=True)
    business = check_business_id(biz_id, caller.tenant)
    quiet, max_wait = (
        _parse_duration("quiet", body.quiet),
        _parse_duration("max_wait", body.max_wait),
    )

    def debounce() -> Scheduled:
        return backend.center.debounce(
            biz_id, quiet=quiet, max_wait=max_wait, biz_type=body.biz_type,
            attribute=body.payload, dedup_key=body.key, tenant=caller.tenant,
            priority=body.priority, details=True,
        )  # fmt: skip

    index = backend.database_of_business(business)
    await require_room(backend, index, business, body.biz_type)
    try:
        done = await backend.calls.run(index, debounce)
    except InvalidInput as error:
        raise with_names_of_http(error) from None
    return Reply(
        scheduled_document(done),
        HTTPStatus.CREATED if done.created else HTTPStatus.OK,
        {"Location": f"/v1/jobs/{done.job_id}"},
        done.did,
        f"{body.biz_type} {done.job_id}",
        1,
    )


def _parse_duration(field: str, value: float | str) -> timedelta:
    try:
        return parse_delay(value)
    except InvalidInput as error:
        raise InvalidInput(field, error.value, error.rule) from None
