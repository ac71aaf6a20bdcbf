"""The pages Jobs (find by a filter or job id) and Job (its life, and what happens next)."""

from __future__ import annotations

from http import HTTPStatus

from starlette.responses import HTMLResponse, RedirectResponse, Response

from toc.access.authorise import is_allowed
from toc.dashboard.actions import said
from toc.dashboard.form_times import field_time_of
from toc.dashboard.job_life import attempts_of, life_of
from toc.dashboard.job_search import FILTERS, JobList, list_jobs
from toc.dashboard.render import render
from toc.dashboard.visit import Visit
from toc.domain.job import Status
from toc.errors import InvalidInput
from toc.http import explain_calls
from toc.http.declared import declared_types
from toc.http.job_documents import parse_job_id


async def show_jobs(visit: Visit) -> Response:
    """GET /ui/jobs with a filter, or ?job_id=, which leads to the job's page."""
    query = {name: value.strip() for name, value in visit.query.items()}
    if query.get("job_id"):
        page = f"{visit.root}/ui/jobs/{parse_job_id(query['job_id'])}"
        return RedirectResponse(page, HTTPStatus.SEE_OTHER)
    names, found, wrong = _readable_types(visit), JobList(), ""
    is_asked = any(query.get(name) for name in FILTERS)
    if is_asked:
        try:
            found = await list_jobs(visit, query, names)
        except InvalidInput as error:
            wrong = visit.texts.refusal(error)
    html = render(
        visit, "jobs.html", query=query, types=names, found=found, wrong=wrong, is_asked=is_asked,
        times={name: field_time_of(query.get(name, "")) for name in ("from", "until")},
        statuses=[status.name.lower() for status in Status],
    )  # fmt: skip
    return HTMLResponse(html)


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
    now_ms = visit.backend.clock.wall_ms()
    html = render(
        visit, "job.html", found=reply.document, job=job, may=may, said=said(visit),
        life=life_of(reply.document, now_ms), attempts=attempts_of(reply.document, now_ms),
    )  # fmt: skip
    return HTMLResponse(html)


def _readable_types(visit: Visit) -> list[str]:
    caller = visit.person
    return [
        name
        for name in sorted(declared_types(visit.backend))
        if is_allowed(caller, "read", name, caller.tenant)
    ]
