"""What happens with each request for a page: who looks, where a form comes from, limits, errors as pages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from toc.access.caller import Scope
from toc.dashboard.render import render
from toc.dashboard.sign_in_attempt import PAGE_CHARS_MAX
from toc.dashboard.texts import texts_of
from toc.dashboard.visit import Visit, identify_visitor, language_of
from toc.dashboard.watcher import Watcher
from toc.errors import TocError, Unauthenticated
from toc.http.backend import Backend
from toc.http.front_door import REQUEST_ID
from toc.http.problems import HttpProblem, problem_of
from toc.sentences import sentence

log = logging.getLogger(__name__)

FORM_BYTES_MAX = 16_384
FORM_FIELDS_MAX = 50
PROTECTION = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}

Show = Callable[[Visit], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Page:
    """A line of the table of pages. scope: what the token must have; None: everybody may see it."""

    path: str
    show: Show
    scope: Scope | None = "read"
    method: str = "GET"


class PageDoor:
    """The ASGI app of one page."""

    def __init__(self, page: Page, backend: Backend, watcher: Watcher) -> None:
        self._page, self._backend, self._watcher = page, backend, watcher

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        for name, value in PROTECTION.items():
            response.headers[name] = value
        response.headers["Vary"] = "Cookie, Accept-Language"
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        visit = Visit(
            self._backend, self._watcher, request, None, texts_of(language_of(request)), {}
        )
        try:
            if not self._backend.is_started:
                await asyncio.to_thread(self._backend.start)
            if request.method == "POST":
                require_own_origin(request, visit)
                self._require_writable(visit)
            visit = Visit(
                self._backend, self._watcher, request, self._identify(request), visit.texts,
                await read_form(request) if request.method == "POST" else {},
            )  # fmt: skip
            if self._page.scope is not None and visit.caller is None:
                return to_sign_in(visit)
            return await self._show(visit)
        except (HttpProblem, TocError, TimeoutError) as error:
            problem = problem_of(error)
            if problem.code == "internal":
                log.exception("page %s failed", request.scope[REQUEST_ID])
            return self._problem_page(visit, problem)
        except ClientDisconnect:
            raise
        except Exception:
            log.exception("page %s failed", request.scope[REQUEST_ID])
            return self._problem_page(visit, problem_of(AssertionError()))

    async def _show(self, visit: Visit) -> Response:
        limits = self._backend.access.limits
        if visit.caller is None:
            return await self._page.show(visit)
        if self._page.scope is not None and not visit.may(self._page.scope):
            text = visit.texts["no_scope"].format(scope=self._page.scope)
            raise HttpProblem(HTTPStatus.FORBIDDEN, "forbidden", text)
        limits.take(visit.caller, 1.0).raise_if_refused()
        with limits.open_call(visit.caller):
            async with asyncio.timeout(self._backend.settings.web.limits.call_s):
                return await self._page.show(visit)

    def _require_writable(self, visit: Visit) -> None:
        """Raises HttpProblem for a change in a read-only dashboard. Signing in and the language are none."""
        if self._page.scope is not None and self._backend.settings.web.dashboard_read_only:
            raise HttpProblem(HTTPStatus.FORBIDDEN, "read_only", visit.texts["read_only_refused"])

    def _identify(self, request: Request) -> Any:
        try:
            return identify_visitor(self._backend, request)
        except Unauthenticated:
            return None

    def _problem_page(self, visit: Visit, problem: HttpProblem) -> Response:
        is_missing = problem.status is HTTPStatus.NOT_FOUND
        title = visit.texts["not_found" if is_missing else "failed"]
        html = render(
            visit, "problem.html", title=title, detail=visit.texts.detail_of(problem),
            request_id=visit.request.scope[REQUEST_ID],
        )  # fmt: skip
        return HTMLResponse(html, problem.status, headers=problem.headers)


def to_sign_in(visit: Visit) -> Response:
    """Sends a visitor to the page that asks for a token, and later back to the page of this request."""
    url = visit.request.url
    page = f"{url.path}?{url.query}" if url.query else url.path
    address = f"{visit.root}/ui/sign-in"
    is_other_page = visit.request.method == "GET" and page != f"{visit.root}/ui/"
    if is_other_page and len(page) <= PAGE_CHARS_MAX:
        address += f"?{urlencode({'next': page})}"
    return RedirectResponse(address, HTTPStatus.SEE_OTHER)


def require_own_origin(request: Request, visit: Visit) -> None:
    """Refuses a form that another site has sent. Raises HttpProblem.

    Browsers say where a request comes from in Sec-Fetch-Site (all since 2023), and in Origin with each POST.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_own = site == "same-origin"
    else:
        is_own = origin is not None and urlsplit(origin).netloc == request.headers.get("host")
    if not is_own:
        raise HttpProblem(HTTPStatus.FORBIDDEN, "foreign_form", visit.texts["refused_form"])


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; of a name that is given twice, the last value. Raises HttpProblem."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            raise HttpProblem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large",
                sentence("a form may have at most {most} bytes", most=FORM_BYTES_MAX),
            )  # fmt: skip
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict",
            max_num_fields=FORM_FIELDS_MAX,
        )  # fmt: skip
    except ValueError:
        raise HttpProblem(HTTPStatus.BAD_REQUEST, "bad_form", "the form cannot be read") from None
    return dict(pairs)
