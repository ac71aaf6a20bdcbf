"""The links of the OpenAPI document: which value of an answer a further call takes.

Tools that make clients or tests follow them; tests/http/stateful_calls.py does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from toc.http.call import Route

_JOB_ID = {"job_id": "$response.body#/job_id"}
_BIZ_TYPE = {"path.biz_type": "$request.body#/biz_type"}
_BUSINESS = {"biz_id": "$request.body#/biz_id"}
_FIRST_LEASE = {
    "items": [
        {"job_id": "$response.body#/leases/0/job_id", "token": "$response.body#/leases/0/token"}
    ]
}
_SCHEDULED = (HTTPStatus.CREATED, HTTPStatus.OK)


def make_links(routes: Iterable[Route]) -> dict[tuple[str, HTTPStatus], dict[str, Any]]:
    """The links of each answer, by the operationId of its call and the status."""
    found: dict[tuple[str, HTTPStatus], dict[str, Any]] = {}
    for route in routes:
        to, link = operation_id(route), _link_to(route)
        if link is None:
            continue
        source, statuses, what = link
        for status in statuses:
            found.setdefault((source, status), {})[to] = {"operationId": to, **what}
    return found


def _link_to(route: Route) -> tuple[str, Iterable[HTTPStatus], Mapping[str, Any]] | None:
    """The call whose answer leads to this one, the statuses of the answer, and the values."""
    path = route.path
    if "{job_id}" in path:
        return "post_v1_jobs", _SCHEDULED, {"parameters": _JOB_ID}
    if path == "/v1/types/{biz_type}/jobs":
        query = {"query.biz_id": "$request.body#/biz_id"}
        return "post_v1_jobs", _SCHEDULED, {"parameters": _BIZ_TYPE | query}
    if "{biz_type}" in path:
        return "post_v1_jobs", _SCHEDULED, {"parameters": _BIZ_TYPE, "requestBody": _BUSINESS}
    if path == "/v1/leases":
        types = {"types": ["$request.body#/biz_type"]}
        return "post_v1_jobs", _SCHEDULED, {"requestBody": types}
    if path.startswith("/v1/leases:"):
        return "post_v1_leases", (HTTPStatus.OK,), {"requestBody": _FIRST_LEASE}
    return None


def operation_id(route: Route) -> str:
    """The name of a call in the document, as post_v1_jobs_job_id_cancel."""
    text = f"{route.method.lower()}{route.path}"
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
