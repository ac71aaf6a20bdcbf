"""Documents and problems as responses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from toc.http.call import Reply
from toc.http.problems import MEDIA_TYPE, HttpProblem

_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def document_response(reply: Reply, headers: Mapping[str, str]) -> Response:
    """The response of a reply."""
    if reply.document is None:
        return Response(status_code=reply.status, headers={**headers, **reply.headers})
    return Response(
        _JSON.encode(reply.document),
        reply.status,
        {**headers, **reply.headers},
        "application/json",
    )


def problem_response(
    problem: HttpProblem, request_id: str | None, headers: Mapping[str, str] | None = None
) -> Response:
    """The response of a problem."""
    document: Any = problem.as_document(request_id)
    return Response(
        _JSON.encode(document), problem.status, {**(headers or {}), **problem.headers}, MEDIA_TYPE
    )
