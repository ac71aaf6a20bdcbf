"""The outermost part of the app: checks the head of each request, and gives it an id.

Without the check of Host, a web page could make a browser on the server's machine or network call toc under a
name of the page's own (DNS rebinding).
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toc.http.problems import HttpProblem
from toc.http.responses import problem_response
from toc.runtime import metrics

REQUEST_ID = "toc.request_id"
HEADERS_MAX = 100
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::\d{1,5})?", re.ASCII)
_NO_SNIFF, _NO_STORE = (b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class FrontDoor:
    """ASGI middleware. `hosts`: names of `web.hosts`; names of loopback are always accepted."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        # The ids of requests differ between processes, and are no secret.
        self._process_id, self._numbers = secrets.token_hex(8), itertools.count(1)
        self._names = frozenset(name.lower() for name in hosts if not name.startswith("*."))
        for code in (HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.SERVICE_UNAVAILABLE):
            metrics.HTTP_REQUESTS.labels(code.value)  # from 0 on: an alert needs the rise to 1
        self._suffixes = tuple(name[1:].lower() for name in hosts if name.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # a web socket: closed without an answer
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        is_id = _REQUEST_ID.fullmatch(given) is not None
        request_id = given if is_id else f"{self._process_id}-{next(self._numbers):x}"
        scope[REQUEST_ID] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                metrics.HTTP_REQUESTS.labels(message["status"]).inc()
                answered = message["headers"] = list(message.get("headers", ()))
                answered += ((b"x-request-id", request_id.encode()), _NO_SNIFF)
                if not any(name == b"cache-control" for name, _ in answered):
                    answered.append(_NO_STORE)
            await send(message)

        problem = self._find_problem(headers)
        if problem is not None:
            await problem_response(problem, request_id)(scope, receive, send_with_id)
            return
        await self._app(scope, receive, send_with_id)

    def _find_problem(self, headers: Headers) -> HttpProblem | None:
        """Why a request is refused before anything else of it is looked at; None: it is not."""
        # What follows such a request is not read: client, proxy and server may differ about where it ends.
        close = {"Connection": "close"}
        if len(headers.raw) > HEADERS_MAX:
            return HttpProblem(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                "too_many_headers",
                f"a request may have at most {HEADERS_MAX} headers",
                headers=close,
            )
        if "transfer-encoding" in headers and "content-length" in headers:
            return HttpProblem(
                HTTPStatus.BAD_REQUEST,
                "ambiguous_length",
                "a request must not have both Transfer-Encoding and Content-Length",
                headers=close,
            )
        if not self._accepts(headers.getlist("host")):
            return HttpProblem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "wrong_host",
                "the header Host must name this server (web.hosts)",
                headers=close,
            )
        return None

    def _accepts(self, hosts: list[str]) -> bool:
        if len(hosts) != 1:
            return False
        name = host_name_of(hosts[0])
        return name is not None and (
            name in _LOOPBACK_NAMES or name in self._names or name.endswith(self._suffixes)
        )


def host_name_of(host: str) -> str | None:
    """The name in a header Host, without the port, in lower case; None: it is not valid."""
    found = _HOST.fullmatch(host)
    return None if found is None else found.group(1).lower()


def is_loopback_name(host: str) -> bool:
    """Whether a header Host names this machine's loopback interface."""
    return host_name_of(host) in _LOOPBACK_NAMES
