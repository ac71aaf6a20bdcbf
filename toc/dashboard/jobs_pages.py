"""The pages Jobs (find by business id or job id) and Job (its life, and what happens next)."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from starlette.responses import HTMLResponse, RedirectResponse, Response

from toc.access.authorise import is_allowed
from toc.dashboard.actions import said
from toc.dashboard.render import render
from toc.dashboard.visit import Visit
from toc.errors import InvalidInput
from toc.http import declaration_calls, explain_calls, job_calls, pause_calls
from toc.http.declared import declared_types
from toc.http.job_documents import parse_job_id

TYPES_SEARCHED_MAX = 50
PAGE = 50


async def show_jobs(visit: Visit) -> Response:
    """GET /ui/jobs?biz_id=&type=&key=&before=, or ?job_id=, which leads to the job's page."""
    query = {name: value.strip() for name, value in visit.query.items()}
    if query.get("job_id"):
        page = f"{visit.root}/ui/jobs/{parse_job_id(query['job_id'])}"
        return RedirectResponse(page, HTTPStatus.SEE_OTHER)
    names = _readable_types(visit)
    found: list[dict[str, Any]] = []
    following, refused = None, ""
    if query.get("biz_id"):
        wanted = [query["type"]] if query.get("type") else names[:TYPES_SEARCHED_MAX]
        try:
            found, following = await _find(visit, query, wanted)
        except InvalidInput as error:
            refused = str(error)
    html = render(
        visit,
        "jobs.html",
        query=query,
        types=names,
        jobs=found,
        following=following,
        refused=refused,
    )
    return HTMLResponse(html)


async def _find(
    visit: Visit, query: dict[str, str], types: list[str]
) -> tuple[list[dict[str, Any]], str | None]:
    """The jobs, newest first, and where the next page begins. A business' jobs lie in one shard."""
    asked = {"biz_id": query["biz_id"], "limit": str(PAGE)}
    asked |= {name: query[name] for name in ("key", "before") if query.get(name)}
    replies = await asyncio.gather(
        *(
            job_calls.find_jobs(visit.backend, visit.call({"biz_type": name}, asked))
            for name in types
        )
    )
    jobs = [job for reply in replies for job in reply.document["jobs"]]
    jobs.sort(key=lambda job: int(job["job_id"]), reverse=True)
    has_more = len(jobs) > PAGE or any(reply.document["next"] for reply in replies)
    jobs = jobs[:PAGE]
    return jobs, str(jobs[-1]["job_id"]) if has_more else None


async def show_job(visit: Visit) -> Response:
    """GET /ui/jobs/{job_id}."""
    call = visit.call({"job_id": visit.request.path_params["job_id"]})
    reply = await explain_calls.explain(visit.backend, call)
    job = reply.document["job"]
    may = {
        scope
        for scope in ("cancel", "operate")
        if is_allowed(visit.person, scope, job["biz_type"], visit.person.tenant)
    }
    html = render(visit, "job.html", found=reply.document, job=job, may=may, said=said(visit))
    return HTMLResponse(html)


def _readable_types(visit: Visit) -> list[str]:
    caller = visit.person
    return [
        name
        for name in sorted(declared_types(visit.backend))
        if is_allowed(caller, "read", name, caller.tenant)
    ]


async def show_types(visit: Visit) -> Response:
    """GET /ui/types."""
    reply = await declaration_calls.list_types(visit.backend, visit.call())
    # Not those of the watcher, which are some seconds old: a person has just pressed the button.
    found = await pause_calls.list_pauses(visit.backend, visit.call())
    pauses = {each["target"] for each in found.document["pauses"]}
    operable = {
        each["name"]
        for each in reply.document["types"]
        if is_allowed(visit.person, "operate", each["name"], None)
    }
    html = render(
        visit, "types.html", types=reply.document["types"], pauses=pauses, operable=operable,
        said=said(visit),
    )  # fmt: skip
    return HTMLResponse(html)
