"""The actions that schedule and read jobs.

A single job without a key is written together with those of other calls that wait at the same time, as
`AsyncTimeoutCenter` does. Names of Python become those of HTTP: attribute is payload, and dedup_key is
key.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections import defaultdict
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from toc.access.authorise import is_allowed
from toc.access.caller import Caller
from toc.center.job_spec import CheckedJob
from toc.center.job_wait import wait_for_end_async
from toc.domain.biz_ids import BusinessId, check_business_id
from toc.domain.job import Job, Scheduled
from toc.errors import InvalidInput, NotFound, TocError
from toc.http.backend import Backend
from toc.http.call import Call, Reply
from toc.http.declared import not_allowed
from toc.http.job_checks import JobChecks, with_names_of_http
from toc.http.job_documents import (
    etag_of,
    job_document,
    parse_biz_id,
    parse_flag,
    parse_job_id,
    parse_limit,
    parse_wait,
    scheduled_document,
)
from toc.http.long_poll import wait_unless_gone
from toc.http.masks import mask_job
from toc.http.models import JobIn, JobsIn
from toc.http.problems import HttpProblem, problem_of
from toc.store.jobs import OnDuplicate

CHECKS_S_MAX = 0.002  # of checks between two looks at other calls
_IDEMPOTENCY_KEY = re.compile(r'"([!#-~]{1,255})"|([!#-~]{1,255})', re.ASCII)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
_Wanted = tuple[int, CheckedJob]
"""A job to write, and its position in the call."""


async def schedule_jobs(backend: Backend, call: Call) -> Reply:
    """POST /v1/jobs."""
    key = _idempotency_key_of(call)
    if isinstance(call.body, JobsIn):
        return await _schedule_bulk(backend, call, call.body.jobs, key)
    try:
        wanted, rule = JobChecks(backend, call.caller).check_job(call.body, key)
        if wanted.trace is None:
            wanted = wanted._replace(trace=_traceparent_of(call))
        done = await _schedule_one(backend, call.caller, wanted, rule)
    except InvalidInput as error:
        raise with_names_of_http(error) from None
    status = HTTPStatus.CREATED if done.created else HTTPStatus.OK
    return Reply(
        scheduled_document(done),
        status,
        {"Location": f"/v1/jobs/{done.job_id}"},
        done.did,
        f"{wanted.biz_type} {done.job_id}",
        int(done.did != "kept"),
    )


async def _schedule_one(
    backend: Backend, caller: Caller, wanted: CheckedJob, rule: OnDuplicate
) -> Scheduled:
    index = backend.database_of_business(wanted.business)
    await require_room(backend, index, wanted.business, wanted.biz_type)
    if wanted.dedup_key is None:
        with backend.calls.place(index):
            job_id = await backend.write_job(wanted)
        return Scheduled(job_id, "inserted")
    write = functools.partial(backend.write_jobs, [wanted], rule, caller.actor)
    (done,) = await backend.calls.run(index, write)
    if isinstance(done, Exception):
        raise done
    return done


async def require_room(
    backend: Backend, index: int, business: BusinessId, biz_type: str, jobs: int = 1
) -> None:
    """Raises TooManyCalls when the business id has too many live jobs (web.limits.jobs_per_biz_id)."""
    limit = backend.access.live_jobs
    if not limit.admits(business, biz_type, jobs):
        check = functools.partial(limit.check, business, biz_type, jobs)
        await backend.calls.run(index, check)


async def _schedule_bulk(
    backend: Backend, call: Call, jobs: Sequence[JobIn], key: str | None
) -> Reply:
    """Writes the jobs that are acceptable; each job has its own result."""
    results: list[Scheduled | Exception] = [NotFound("not tried")] * len(jobs)
    checks, monotonic_s = JobChecks(backend, call.caller), backend.clock.monotonic_s
    # The groups of one database go one after the other: a call takes one of the database's places.
    by_database: dict[int, dict[OnDuplicate, list[_Wanted]]] = defaultdict(
        lambda: defaultdict(list)
    )
    began_s = monotonic_s()
    for position, job in enumerate(jobs):
        if monotonic_s() - began_s > CHECKS_S_MAX:
            await asyncio.sleep(0)  # other calls go on: schemas make a check slow
            began_s = monotonic_s()
        try:
            own_key = None if key is None else f"{key}\n{position}"
            wanted, rule = checks.check_job(job, own_key)
        except (InvalidInput, HttpProblem) as error:
            results[position] = error
            continue
        index = backend.database_of_business(wanted.business)
        by_database[index][rule].append((position, wanted))

    async def write_groups(index: int) -> None:
        for rule, all_of_group in by_database[index].items():
            group = await _jobs_with_room(backend, index, all_of_group, results)
            if not group:
                continue
            write = functools.partial(
                backend.write_jobs,
                [wanted for _, wanted in group], rule, call.caller.actor,
            )  # fmt: skip
            found: Sequence[Scheduled | Exception]
            try:
                found = await backend.calls.run(index, write)
            except (TocError, HttpProblem) as error:
                found = [error] * len(group)
            for (position, _), result in zip(group, found, strict=True):
                results[position] = result

    await asyncio.gather(*map(write_groups, by_database))
    written = sum(isinstance(it, Scheduled) and it.did != "kept" for it in results)
    failed = sum(isinstance(it, Exception) for it in results)
    return Reply(
        {"results": [_result_document(it) for it in results]},
        outcome="ok" if not failed else "partly" if failed < len(jobs) else "refused",
        target=f"{len(jobs)} jobs",
        rows_changed=written,
    )


async def _jobs_with_room(
    backend: Backend,
    index: int,
    group: Sequence[_Wanted],
    results: list[Scheduled | Exception],
) -> list[_Wanted]:
    """The jobs whose business ids have room for them; `results` gets the errors of the others."""
    by_business: dict[tuple[BusinessId, str], list[_Wanted]] = defaultdict(list)
    for each in group:
        by_business[each[1].business, each[1].biz_type].append(each)
    accepted: list[_Wanted] = []
    for (business, biz_type), jobs in by_business.items():
        try:
            await require_room(backend, index, business, biz_type, len(jobs))
        except (TocError, HttpProblem) as error:
            for position, _ in jobs:
                results[position] = error
        else:
            accepted += jobs
    return sorted(accepted, key=lambda job: job[0])


def _result_document(result: Scheduled | Exception) -> dict[str, Any]:
    if isinstance(result, Scheduled):
        return scheduled_document(result)
    if isinstance(result, InvalidInput):
        result = with_names_of_http(result)
    return {"problem": problem_of(result).as_document()}


def _traceparent_of(call: Call) -> str | None:
    """The W3C traceparent of the request; None: it has none, or one of another form, which is ignored."""
    found = _TRACEPARENT.fullmatch(call.request.headers.get("traceparent", ""))
    return None if found is None else found.group()


def _idempotency_key_of(call: Call) -> str | None:
    values = call.request.headers.getlist("idempotency-key")
    if not values:
        return None
    found = _IDEMPOTENCY_KEY.fullmatch(values[0]) if len(values) == 1 else None
    if found is None:
        rule = (
            "must be 1 to 255 of the characters ! to ~ without '\"', given once; quotes may stand around "
            "all of them"
        )
        raise InvalidInput("Idempotency-Key", values[0], rule)
    return found.group(1) or found.group(2)


# ---- reads


async def get_job(backend: Backend, call: Call) -> Reply:
    """GET /v1/jobs/{job_id}."""
    wait_s = parse_wait(call.query.get("wait_s"), backend.settings.limits.wait_s)
    job = await _read_job_in_time(backend, call)
    if wait_s and job.status.live:
        job = await _wait_for_end(backend, call, job, wait_s)
    document = mask_job(backend, call.caller, job_document(job, job.countdown))  # `get` has read it
    etag = etag_of(document)
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    given = call.request.headers.get("if-none-match", "")
    if etag in (part.strip().removeprefix("W/") for part in given.split(",")):
        return Reply(None, HTTPStatus.NOT_MODIFIED, headers)
    return Reply(document, headers=headers)


async def _read_job_in_time(backend: Backend, call: Call) -> Job:
    """Reads a job for a call that may wait, and so has no deadline of its own."""
    async with asyncio.timeout(backend.settings.web.limits.call_s):
        return await read_job(backend, call)


async def _wait_for_end(backend: Backend, call: Call, job: Job, wait_s: float) -> Job:
    """The job when it has ended, or as it is after `wait_s`, at a stop, or when the token was revoked."""
    read = functools.partial(_read_job_in_time, backend, call)
    with backend.access.limits.long_poll(call.caller):
        waiting = asyncio.create_task(
            wait_for_end_async(job.job_id, wait_s, read, backend.settings.limits.waiters)
        )
        return await wait_unless_gone(backend, call, waiting) or job


async def read_job(backend: Backend, call: Call) -> Job:
    """The job of the path, if the caller may see it. Raises NotFound for a missing and for a foreign one."""
    job_id = parse_job_id(call.path["job_id"])
    read = functools.partial(backend.center.get, job_id)
    job = await backend.calls.run(backend.database_of_job(job_id), read)
    if job is None or not is_allowed(call.caller, "read", job.biz_type, job.tenant):
        raise NotFound("no such job")
    return job


async def find_jobs(backend: Backend, call: Call) -> Reply:
    """GET /v1/types/{biz_type}/jobs."""
    query, caller = call.query, call.caller
    biz_type = call.path["biz_type"]
    if not is_allowed(caller, "read", biz_type, caller.tenant):
        raise not_allowed("read")
    if "biz_id" not in query:
        raise InvalidInput("biz_id", None, "must be given")
    is_text = parse_flag(query.get("biz_id_is_text"), "biz_id_is_text")
    biz_id = parse_biz_id(query["biz_id"], is_text, digits_are_text=False)
    limit = parse_limit(query.get("limit"), backend.settings.limits.find)
    before = parse_job_id(query["before"]) if "before" in query else None
    business = check_business_id(biz_id, caller.tenant)
    try:
        find = functools.partial(
            backend.center.find, biz_id, biz_type, tenant=caller.tenant,
            dedup_key=query.get("key"), limit=limit, before=before,
        )  # fmt: skip
        jobs = await backend.calls.run(backend.database_of_business(business), find)
    except InvalidInput as error:
        raise with_names_of_http(error) from None
    last = str(jobs[-1].job_id) if len(jobs) == limit else None
    shown = [mask_job(backend, caller, job_document(job)) for job in jobs]
    return Reply({"jobs": shown, "next": last})
