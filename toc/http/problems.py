"""Errors as RFC 9457 problem+json. One table says which status each error of toc has.

A text of a driver, a server's address or a traceback never gets out: only errors that are about the caller's
own input keep their text. A problem's `code` is stable, and clients should decide by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from toc.errors import (
    AccessUnavailable,
    DuplicateJob,
    InvalidInput,
    NotFound,
    Overloaded,
    StoreUnavailable,
    TocError,
    TooManyCalls,
    Unauthenticated,
)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1


class HttpProblem(Exception):
    """An error that becomes a problem+json answer.

    detail: for people. facts: further members, as `field` and `rule`. headers: of the answer.
    """

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.facts = status, code, detail, facts
        self.headers = dict(headers or {})

    def as_document(self, request_id: str | None = None) -> dict[str, Any]:
        """The members of the problem; None members are left out."""
        document = {
            "type": f"urn:toc:problem:{self.code}",
            "title": self.status.phrase,
            "status": int(self.status),
            "detail": self.detail,
            "code": self.code,
            **self.facts,
            "request_id": request_id,
        }
        return {name: value for name, value in document.items() if value is not None}


@dataclass(frozen=True, slots=True)
class _Kind:
    """How an error of toc is told. detail None: its own text, which is about the caller's input."""

    status: HTTPStatus
    detail: str | None
    facts: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


_RETRY = {"Retry-After": str(RETRY_AFTER_S)}
_KINDS: dict[type[TocError], _Kind] = {
    InvalidInput: _Kind(HTTPStatus.UNPROCESSABLE_ENTITY, None, ("field", "rule")),
    DuplicateJob: _Kind(HTTPStatus.CONFLICT, "a live job has this key", ("job_id", "running")),
    Unauthenticated: _Kind(
        HTTPStatus.UNAUTHORIZED,
        "the header Authorization must have a valid token: Bearer toc_ID_SECRET",
        headers={"WWW-Authenticate": 'Bearer realm="toc"'},
    ),
    AccessUnavailable: _Kind(
        HTTPStatus.SERVICE_UNAVAILABLE, "tokens or the audit cannot be used now", headers=_RETRY
    ),
    NotFound: _Kind(HTTPStatus.NOT_FOUND, "there is no such job or type"),
    StoreUnavailable: _Kind(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "a database cannot be used now; the call may have taken effect, and may be repeated",
        headers=_RETRY,
    ),
}


def problem_of(error: BaseException) -> HttpProblem:
    """The problem that an error is told as. Everything without a line in the table is an internal error."""
    if isinstance(error, HttpProblem):
        return error
    if isinstance(error, TooManyCalls):
        return HttpProblem(
            HTTPStatus.TOO_MANY_REQUESTS,
            error.code,
            "too many calls: try again later",
            headers={"Retry-After": str(math.ceil(error.retry_after_s))},
            rule=f"web.limits.{error.limit}",
        )
    if isinstance(error, Overloaded):
        return overloaded("the server has too many calls of this kind")
    if isinstance(error, TimeoutError):
        return HttpProblem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "deadline",
            "the call took too long; it may have taken effect, and may be repeated",
            headers=_RETRY,
        )
    for kind, how in _KINDS.items():
        if isinstance(error, kind):
            facts = {name: getattr(error, name) for name in how.facts}
            if "job_id" in facts:
                facts["job_id"] = str(facts["job_id"])
            # The refused value is not repeated: it may be a secret, or large.
            detail = how.detail or f"{facts['field']}: {facts['rule']}"
            return HttpProblem(how.status, error.code, detail, headers=how.headers, **facts)
    return HttpProblem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "internal",
        "the server failed; its log has the error under this request_id",
    )


def invalid(
    field: str, rule: str, status: HTTPStatus = HTTPStatus.UNPROCESSABLE_ENTITY
) -> HttpProblem:
    """The problem of a value that breaks a rule."""
    return HttpProblem(status, InvalidInput.code, f"{field}: {rule}", field=field, rule=rule)


def forbidden(scope: str) -> HttpProblem:
    """The problem of a token without a scope."""
    return HttpProblem(
        HTTPStatus.FORBIDDEN, "forbidden", f"the token needs the scope {scope!r} for this call"
    )


def overloaded(what: str) -> HttpProblem:
    """The problem of a call that finds a full queue."""
    return HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", what, headers=_RETRY)


def unavailable(what: str) -> HttpProblem:
    """The problem of a call that needs a database, none of which has answered since this process started."""
    return HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, StoreUnavailable.code, what, headers=_RETRY)
