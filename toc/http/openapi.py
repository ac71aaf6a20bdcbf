"""The OpenAPI document, made from the table of routes and the models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from toc.http.call import Route
from toc.http.models import ProblemOut
from toc.http.openapi_links import make_links, operation_id
from toc.http.problems import MEDIA_TYPE
from toc.http.routes import BULK_ANSWERS

_REF = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_ALWAYS = (
    HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.MISDIRECTED_REQUEST,
    HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE,
)  # fmt: skip
_OF_BODIES = (
    HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)  # fmt: skip
Links = dict[tuple[str, HTTPStatus], dict[str, Any]]
_PATTERNS = {
    "job_id": r"^[0-9]{1,19}$",
    "biz_type": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    "topic": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
    "name": r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$",
    "mass_change_id": r"^[0-9a-f]{16}$",
}


def make_openapi(routes: Iterable[Route]) -> dict[str, Any]:
    """The document of OpenAPI 3.1."""
    routes = tuple(routes)
    models: dict[type[BaseModel], Any] = {ProblemOut: "serialization"}
    for route in routes:
        models.update(dict.fromkeys(route.bodies, "validation"))
        for answer in _answers_of(route):
            models[answer] = "serialization"
    links = make_links(routes)
    keys, definitions = models_json_schema(list(models.items()), ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation_of(route, keys, links)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "toc",
            "version": version("toc"),
            "description": "A timeout center: durable jobs that act at a time, unless they are cancelled.",
        },
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _answers_of(route: Route) -> list[type[BaseModel]]:
    bulk = BULK_ANSWERS.get(route.path)
    return [model for model in (route.answer, bulk) if model is not None]


def _operation_of(route: Route, keys: Any, links: Links) -> dict[str, Any]:
    name = operation_id(route)
    answers = [keys[model, "serialization"] for model in _answers_of(route)]
    answer = answers[0] if len(answers) == 1 else {"oneOf": answers}
    responses: dict[str, Any] = {}
    for status in route.statuses:
        content = {"application/json": {"schema": answer}}
        has_content = status is not HTTPStatus.NOT_MODIFIED
        responses[str(int(status))] = {"description": status.phrase} | (
            {"content": content} if has_content else {}
        )
        if (name, status) in links:
            responses[str(int(status))]["links"] = links[name, status]
    problem = {MEDIA_TYPE: {"schema": keys[ProblemOut, "serialization"]}}
    refusals = list(route.problems) + (list(_OF_BODIES) if route.bodies else [])
    if route.scope is not None:
        refusals += _ALWAYS
    for status in refusals:
        responses.setdefault(str(int(status)), {"description": status.phrase, "content": problem})
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": route.summary,
        "parameters": _parameters_of(route),
        "responses": responses,
        "security": [] if route.scope is None else [{"token": []}],
    }
    if route.scope is not None:
        operation["description"] = f"Needs the scope {route.scope!r}."
    if route.bodies:
        bodies = [keys[model, "validation"] for model in route.bodies]
        schema = bodies[0] if len(bodies) == 1 else {"oneOf": bodies}
        operation["requestBody"] = {
            "required": route.needs_body,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _parameters_of(route: Route) -> list[dict[str, Any]]:
    found = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": _PATTERNS[name]},
        }
        for name in _PARAMETER.findall(route.path)
    ]
    for name, description in route.query.items():
        found.append(
            {
                "name": name,
                "in": "query",
                "required": name == "biz_id",
                "description": description,
                "schema": {"type": "string"},
            }
        )
    if route.audited == "jobs.schedule":
        found.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "A repeated call with this key, biz_id and biz_type gets the job of the "
                "first call, until retention deletes it. For jobs without a key.",
                "schema": {"type": "string", "pattern": "^[!#-~]{1,255}$"},
            }
        )
    return found
