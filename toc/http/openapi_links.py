"""The links of the OpenAPI document: which value of an answer a further call takes.

Tools that make clients or tests follow them; tests/http/stateful_calls.py does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from toc.http.call import Route

_FIRST_TYPE = {"biz_type": "$response.body#/types/0/name"}
_SAME_TYPE = {"types": ["$request.body#/biz_type"]}
_JOB_ID = {"job_id": "$response.body#/job_id"}
_BIZ_TYPE = {"path.biz_type": "$request.body#/biz_type"}
_BUSINESS = {"biz_id": "$request.body#/biz_id"}
_FIRST_LEASE = {
    "items": [
        {"job_id": "$response.body#/leases/0/job_id", "token": "$response.body#/leases/0/token"}
    ]
}
_OK = (HTTPStatus.OK,)
_SCHEDULED = (HTTPStatus.CREATED, HTTPStatus.OK)
_LINKS: tuple[tuple[str, str, Iterable[HTTPStatus], Mapping[str, Any]], ...] = (
    (r"/v1/jobs(:countdown)?", "get_v1_types", _OK, {"requestBody": _FIRST_TYPE}),
    (r"/v1/jobs/\{job_id\}:arrive", "post_v1_jobs_countdown", _SCHEDULED, {"parameters": _JOB_ID}),
    (r"/v1/jobs/\{job_id\}.*", "post_v1_jobs", _SCHEDULED, {"parameters": _JOB_ID}),
    (r"/v1/types/\{biz_type\}/jobs", "post_v1_jobs", _SCHEDULED,
     {"parameters": _BIZ_TYPE | {"query.biz_id": "$request.body#/biz_id"}}),
    (r"/v1/types/\{biz_type\}/jobs:.*", "post_v1_jobs", _SCHEDULED,
     {"parameters": _BIZ_TYPE, "requestBody": _BUSINESS}),
    (r"/v1/leases", "post_v1_jobs", _SCHEDULED, {"requestBody": _SAME_TYPE}),
    (r"/v1/leases:.*", "post_v1_leases", _OK, {"requestBody": _FIRST_LEASE}),
)  # fmt: skip
"""The paths of calls, the call whose answer leads to them, the statuses of that answer, and the values."""


def make_links(routes: Iterable[Route]) -> dict[tuple[str, HTTPStatus], dict[str, Any]]:
    """The links of each answer, by the operationId of its call and the status."""
    found: dict[tuple[str, HTTPStatus], dict[str, Any]] = {}
    for route in routes:
        name = operation_id(route)
        for path, source, statuses, values in _LINKS:
            if re.fullmatch(path, route.path):
                for status in statuses:
                    found.setdefault((source, status), {})[name] = {"operationId": name, **values}
    return found


def operation_id(route: Route) -> str:
    """The name of a call in the document, as post_v1_jobs_job_id_cancel."""
    text = f"{route.method.lower()}{route.path}"
    return re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")
