"""The pages of mass changes: choose and count the jobs, confirm, see how far it is, stop."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from starlette.responses import HTMLResponse, RedirectResponse, Response

from toc.access.authorise import is_allowed
from toc.dashboard.actions import said
from toc.dashboard.render import render
from toc.dashboard.visit import Visit
from toc.errors import InvalidInput
from toc.http import mass_change_calls
from toc.http.body import make_model
from toc.http.call_audit import CallAudit
from toc.http.declared import declared_types
from toc.http.mass_change_models import MassChangeIn, MassCountIn
from toc.http.problems import HttpProblem, problem_of
from toc.http.routes import ROUTES

SELECTION = ("verb", "biz_type", "error_class", "since", "until", "biz_id")
CONFIRMATION = ("as_of", "expected_count", "rate_per_s", "reason")
NUMBER_DIGITS_MAX = 9
RATE_PER_S = 50  # that the page proposes

(_START,) = (each for each in ROUTES if (each.method, each.path) == ("POST", "/v1/mass_changes"))


async def show_changes(visit: Visit) -> Response:
    """GET /ui/mass_changes."""
    reply = await mass_change_calls.list_changes(visit.backend, visit.call())
    html = render(visit, "mass_changes.html", changes=reply.document["mass_changes"])
    return HTMLResponse(html)


async def show_form(visit: Visit) -> Response:
    """GET /ui/mass_changes/new?verb=&biz_type=…: the count of the jobs, and the form that confirms it."""
    return await _show_form(visit, _given(visit.query, SELECTION), HTTPStatus.OK, "")


async def start_change(visit: Visit) -> Response:
    """POST /ui/mass_changes. What is refused is shown with a new count."""
    fields = _given(visit.form, SELECTION + CONFIRMATION)
    numbers = {
        name: int(text)
        for name, text in fields.items()
        if name in ("expected_count", "rate_per_s")
        and text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX
    }  # fmt: skip
    try:
        body = make_model(MassChangeIn, _with_biz_id(fields) | numbers)
        reply = await CallAudit(_START, visit.backend).run(visit.call({}, {}, body))
    except (InvalidInput, HttpProblem) as error:
        problem = problem_of(error)
        if problem.status not in (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY):
            raise
        return await _show_form(visit, fields, problem.status, _explain(visit, problem))
    change_id = reply.document["mass_change_id"]
    return RedirectResponse(f"{visit.root}/ui/mass_changes/{change_id}", HTTPStatus.SEE_OTHER)


async def show_change(visit: Visit) -> Response:
    """GET /ui/mass_changes/{mass_change_id}."""
    path = {"mass_change_id": visit.request.path_params["mass_change_id"]}
    reply = await mass_change_calls.get_change(visit.backend, visit.call(path))
    change = reply.document
    may_operate = is_allowed(visit.person, "operate", change["biz_type"], visit.person.tenant)
    html = render(
        visit, "mass_change.html", change=change, may_operate=may_operate, said=said(visit),
        again=urlencode(_rest_of(change)),
    )  # fmt: skip
    return HTMLResponse(html)


async def _show_form(
    visit: Visit, fields: Mapping[str, str], status: HTTPStatus, alert: str
) -> Response:
    counted = None
    if fields.get("biz_type"):
        try:
            selection = {name: fields[name] for name in SELECTION if name in fields}
            body = make_model(MassCountIn, _with_biz_id({"verb": "redrive"} | selection))
            reply = await mass_change_calls.count_jobs(visit.backend, visit.call(body=body))
            counted = reply.document
        except (InvalidInput, HttpProblem) as error:
            problem = problem_of(error)
            if problem.status is not HTTPStatus.UNPROCESSABLE_ENTITY:
                raise
            status, alert = problem.status, alert or _explain(visit, problem)
    rate_max = visit.backend.settings.web.limits.mass_rate_per_s
    html = render(
        visit, "mass_form.html", fields=fields, counted=counted, alert=alert, rate_max=rate_max,
        rate=fields.get("rate_per_s", str(min(RATE_PER_S, rate_max))), types=_operable_types(visit),
    )  # fmt: skip
    return HTMLResponse(html, status)


def _given(fields: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The fields that are not empty."""
    found = {name: fields.get(name, "").strip() for name in names}
    return {name: text for name, text in found.items() if text}


def _with_biz_id(fields: Mapping[str, str]) -> dict[str, Any]:
    """The fields for a model: a business id of digits means the integer, as on the page Jobs."""
    biz_id = fields.get("biz_id", "")
    return (
        {**fields, "biz_id_is_text": False} if biz_id.isascii() and biz_id.isdigit() else {**fields}
    )


def _explain(visit: Visit, problem: HttpProblem) -> str:
    if problem.code in ("count_differs", "too_many_mass_changes"):
        return visit.texts[problem.code]
    return visit.texts.detail_of(problem)


def _rest_of(change: Mapping[str, Any]) -> dict[str, str]:
    """The query of the form for the jobs that an interrupted change has left."""
    fields = {name: change[name] for name in SELECTION if change[name] is not None}
    if change["verb"] != "cancel":  # not those that were redriven, and have died again
        fields["until"] = min(change["until"] or change["as_of"], change["as_of"])
    return fields


def _operable_types(visit: Visit) -> list[str]:
    caller = visit.person
    return [
        name
        for name in sorted(declared_types(visit.backend))
        if is_allowed(caller, "operate", name, caller.tenant)
    ]
