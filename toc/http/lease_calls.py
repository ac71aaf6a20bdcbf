"""The actions of remote consumers: lease jobs, and settle the leases.

A consumer that hangs up while it waits gets nothing, and a job that was claimed for it is given back at once:
the call watches its connection. What was sent counts as leased, whether the consumer has read it or not.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import ClientDisconnect

from toc.access.authorise import is_allowed
from toc.access.caller import Caller
from toc.domain.job import Job
from toc.domain.result_document import check_progress, encode_result
from toc.http.backend import Backend
from toc.http.call import Action, Call, Reply
from toc.http.declared import require_type
from toc.http.job_documents import countdown_document, parse_job_id
from toc.http.long_poll import is_gone, wait_unless_gone
from toc.http.models import LeaseIn
from toc.http.wire_times import format_datetime
from toc.leases.settlement import ItemResult, LeaseItem
from toc.leases.waiter import Accept, LeasedJob


async def lease_jobs(backend: Backend, call: Call) -> Reply:
    """POST /v1/leases."""
    body: LeaseIn = call.body
    for name in body.types:
        require_type(backend, call.caller, "consume", name)
    server = await backend.lease_server()
    with backend.access.limits.long_poll(call.caller):
        waiting = asyncio.create_task(
            server.lease(body.types, body.max, body.wait_s, body.lease_s, _accept_for(call.caller))
        )
        # A lease that is cancelled gives its jobs back.
        jobs = await wait_unless_gone(backend, call, waiting) or []
    if await is_gone(call.request):
        server.give_back(jobs)
        raise ClientDisconnect
    if not backend.access.authenticator.is_still_valid(call.caller):  # revoked during the wait
        server.give_back(jobs)
        jobs = []
    try:
        documents = [await _lease_document(backend, job) for job in jobs]
    except BaseException:  # the consumer gets none of them
        server.give_back(jobs)
        raise
    return Reply(
        {"leases": documents},
        target=",".join(body.types),
        rows_changed=len(jobs),
        outcome="leased" if jobs else "empty",
        is_worth_auditing=bool(jobs),
    )


def _accept_for(caller: Caller) -> Accept:
    def accept(job: Job) -> bool:
        return is_allowed(caller, "consume", job.biz_type, job.tenant)

    return accept


async def _lease_document(backend: Backend, job: LeasedJob) -> dict[str, Any]:
    countdown = None
    if job.is_countdown:
        read = functools.partial(backend.center.get, job.job_id)
        found = await backend.calls.run(backend.database_of_job(job.job_id), read)
        countdown = None if found is None else found.countdown
    return {
        "job_id": str(job.job_id),
        "token": job.token,
        "lease_until": format_datetime(job.lease_until),
        "attempt": job.attempt,
        "biz_id": str(job.biz_id),
        "biz_id_is_text": isinstance(job.biz_id, str),
        "biz_type": job.biz_type,
        "tenant": job.tenant,
        "action_time": format_datetime(job.action_time),
        "payload": dict(job.attribute),
        "trace": job.trace,
        "countdown": countdown_document(countdown),
    }


# ---- settle

Settle = Callable[[Backend, Sequence[LeaseItem], Accept], Awaitable[list[ItemResult]]]


def _settle_by(verb: str) -> Action:
    """The action of POST /v1/leases:VERB."""

    async def act(backend: Backend, call: Call) -> Reply:
        items = [_lease_item(each) for each in call.body.items]
        server = await backend.lease_server()
        settle: Any = getattr(server, verb)
        results: list[ItemResult] = await settle(items, _accept_for(call.caller))
        changed = sum(it.outcome in ("settled", "extended", "released") for it in results)
        return Reply(
            {"results": [_result_document(it) for it in results]},
            outcome="ok" if changed == len(results) else "partly" if changed else "none",
            target=f"{len(items)} leases",
            rows_changed=changed,
        )

    return act


finish_leases = _settle_by("finish")
fail_leases = _settle_by("fail")
extend_leases = _settle_by("extend")
release_leases = _settle_by("release")


def _lease_item(item: Any) -> LeaseItem:
    given = {
        name: value
        for name in ("reason", "retry_after_s", "then", "lease_s")
        if (value := getattr(item, name, None)) is not None
    }
    told = getattr(item, "progress", None)
    if told is not None:
        given["progress"] = check_progress(told.done, told.total)
    if "result" in item.model_fields_set:
        given["result_json"] = encode_result(item.result)
    return LeaseItem(parse_job_id(item.job_id), item.token, **given)


def _result_document(result: ItemResult) -> dict[str, Any]:
    until = result.lease_until
    return {
        "job_id": str(result.job_id),
        "outcome": result.outcome,
        "lease_until": None if until is None else format_datetime(until),
    }
