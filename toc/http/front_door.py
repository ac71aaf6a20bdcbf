"""The outermost part of the app: checks the head of each request, and gives it an id.

Without the check of Host, a web page could make a browser on the server's machine or network call toc under a
name of the page's own (DNS rebinding).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toc.http.problems import HttpProblem

REQUEST_ID = "toc.request_id"
HEADERS_MAX = 100
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::\d{1,5})?", re.ASCII)
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


class FrontDoor:
    """ASGI middleware. `hosts`: names of `web.hosts`; names of loopback are always accepted."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._names = frozenset(name.lower() for name in hosts if not name.startswith("*."))
        self._suffixes = tuple(name[1:].lower() for name in hosts if name.startswith("*."))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # a web socket: closed without an answer
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12)
        scope[REQUEST_ID] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                added["X-Request-ID"] = request_id
                added["X-Content-Type-Options"] = "nosniff"
                added.setdefault("Cache-Control", "no-store")
            await send(message)

        problem = self._find_problem(headers)
        if problem is not None:
            from toc.http.endpoint import problem_response  # noqa: PLC0415 - it imports this module

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
