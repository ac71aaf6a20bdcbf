"""The buttons: each form calls the action of HTTP that does the same, with its checks and its audit."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from toc.dashboard.door import Page, Show
from toc.dashboard.form_times import rfc_time_of
from toc.dashboard.visit import Visit
from toc.errors import InvalidInput
from toc.http.body import make_model
from toc.http.call import Route
from toc.http.call_audit import CallAudit
from toc.http.job_checks import with_names_of_http
from toc.http.routes import ROUTES

ReadFields = Callable[[Mapping[str, str]], dict[str, Any]]
"""Makes the fields of a call's body of those of a form. Raises InvalidInput."""
_WORD = re.compile(r"[a-z_]{1,30}", re.ASCII)


def button(route_path: str, page: str) -> Page:
    """A form's target: POST /ui/... does what POST /v1/... does, then shows `page` with the answer's word.

    The parameters of the path are the same; `page` may have them. Fields that are empty are left out.
    """
    (route,) = (each for each in ROUTES if each.method == "POST" and each.path == route_path)
    path = route_path.replace("/v1/", "/ui/").replace(":", "/")
    return Page(path, _make_action(route, page, _filled_fields), route.scope, "POST")


def change_form(route_path: str, page: str, read_changes: ReadFields) -> Page:
    """A form's target: POST /ui/.../set does what PATCH /v1/... does, with the changes that the form has."""
    (route,) = (each for each in ROUTES if each.method == "PATCH" and each.path == route_path)
    path = f"{route_path.replace('/v1/', '/ui/')}/set"
    return Page(path, _make_action(route, page, read_changes), route.scope, "POST")


def _filled_fields(form: Mapping[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {name: text.strip() for name, text in form.items() if text.strip()}
    if fields.get("now") == "true":  # the only flag of a form
        fields["now"] = True
    if "until" in fields:
        fields["until"] = rfc_time_of(fields["until"])
    return fields


def _make_action(route: Route, page: str, read_fields: ReadFields) -> Show:
    async def act(visit: Visit) -> Response:
        names = dict(visit.request.path_params)
        fields = read_fields(visit.form)
        body = make_model(route.bodies[0], fields) if route.bodies else None
        try:
            reply = await CallAudit(route, visit.backend).run(visit.call(names, {}, body))
        except InvalidInput as error:
            raise with_names_of_http(error) from None
        back = page.format(**{name: quote(text, safe="") for name, text in names.items()})
        return RedirectResponse(
            f"{visit.root}{back}?said={quote(reply.outcome)}", HTTPStatus.SEE_OTHER
        )

    return act


def said(visit: Visit) -> str:
    """The word that the last action answered; "" if there is none. A link may say anything: only a word."""
    word = visit.query.get("said", "")
    return word if _WORD.fullmatch(word) else ""
